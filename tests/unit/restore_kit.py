"""A task with two stores in two backends, to be restored from whatever is left."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from typing_extensions import override

from statekeep.backends.base import (
    CommitContext,
    RestoreContext,
    StateBackendFactory,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.memory import MemoryBackendFactory, MemoryPlace, forget_place, memory_place
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    StoreName,
    TaskName,
)
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.store_settings import StoreFactoryName, StoreSettings
from statekeep.errors import RetriableError, UnknownFormatError
from statekeep.restore.manager import RestoreCandidate, RestoreOutcome, TaskRestorer
from statekeep.restore.plan import BadMarkers
from statekeep.restore.progress import RestoreProgress
from statekeep.stores.factory import open_store
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import MANIFEST_FILE, KnownChecksums, SealedVersion
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

TASK = TaskIdentity("job", "main", TaskName("Partition 0"))
A, B = StoreName("a"), StoreName("b")
FIRST, SECOND = BackendName("first"), BackendName("second")
NEW = [b"new of a", b"new of b"]
OLD = [b"old of a", b"old of b"]


class SilentBackendFactory(MemoryBackendFactory):
    """Holds what it held, and does not answer."""

    text = "no answer, on purpose"

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        raise RetriableError(self.text)


class NewerBackendFactory(MemoryBackendFactory):
    """Holds what a newer release has written."""

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        raise UnknownFormatError("state of an unknown format: version=9")


class Rig:
    """A task with two stores, two memory backends, and two commits whose content is known."""

    def __init__(self, root: Path, engine: StoreFactoryName = "memory") -> None:
        for name in (FIRST, SECOND):
            forget_place(f"{root}/{name}")
        self.root = root
        self.engine: StoreFactoryName = engine
        self.directory = TaskDirectory.of(root / "local", TASK)
        both = (FIRST, SECOND)
        self.stores: Mapping[StoreName, StoreSettings] = {
            name: StoreSettings(name, factory=engine, backup_factories=both, restore_factories=both)
            for name in (A, B)
        }
        self.factories: dict[BackendName, StateBackendFactory] = {
            name: MemoryBackendFactory(name, {"place": f"{root}/{name}"}) for name in both
        }
        self.reports: list[RestoreProgress] = []
        self.versions: list[SealedVersion] = []

    def place(self, backend: BackendName) -> MemoryPlace:
        return memory_place(f"{self.root}/{backend}")

    async def commit(
        self, text: bytes, spoil: Callable[[Path], None] = lambda _: None
    ) -> RestoreCandidate:
        """Seal a version whose stores hold ``text`` and back it up in both backends.

        Args:
            text: What the stores hold.
            spoil: Changes the image of store `A` before its checksums are taken.
        """
        number = len(self.versions)
        uid = f"{number:08x}"
        parent = self.versions[-1] if self.versions else None
        with self.directory.begin(uid, parent, (A, B)) as work:
            for name in (A, B):
                work.open_store(name, self.engine).put(b"text", text + b" of " + name.encode())
            version = work.seal(number, uid, parent)
        spoil(version.store_directory(A))
        version = sealed_anew(version)
        self.versions.append(version)
        pipeline = TaskStorageCommitManager(
            TASK,
            self.stores,
            self.factories,
            executor=SerialExecutor(),
            clock=FakeClock(),
        )
        await pipeline.init()
        backed_up = await pipeline.commit(
            CommitContext(CheckpointId(number, 0), 1, number, version, None, None), {}
        )
        await pipeline.close()
        return RestoreCandidate(backed_up.checkpoint, version.id, frozenset({A, B}))

    def lose_disk(self) -> None:
        shutil.rmtree(self.root / "local")

    def lose(self, backend: BackendName, candidate: RestoreCandidate, store: StoreName) -> None:
        assert candidate.checkpoint is not None
        del self.place(backend).images[candidate.checkpoint.state_markers[backend][store]]

    def silence(self, backend: BackendName) -> None:
        self.factories[backend] = SilentBackendFactory(backend, {"place": f"{self.root}/{backend}"})

    def upgrade(self, backend: BackendName) -> None:
        self.factories[backend] = NewerBackendFactory(backend, {"place": f"{self.root}/{backend}"})

    def damage_local(self, version: SealedVersion) -> None:
        path = next(version.store_directory(A).iterdir())
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    async def restore(
        self, *candidates: RestoreCandidate, bad_markers: BadMarkers = ()
    ) -> RestoreOutcome:
        restorer = TaskRestorer(
            TASK,
            self.directory,
            self.stores,
            self.factories,
            executor=SerialExecutor(),
            clock=FakeClock(),
            on_progress=self.reports.append,
            bad_markers=bad_markers,
        )
        return await restorer.restore(candidates)

    def content(self, outcome: RestoreOutcome) -> list[bytes | None]:
        assert outcome.version is not None
        outcome.version.verify()
        read: list[bytes | None] = []
        for name in (A, B):
            directory = outcome.version.store_directory(name)
            store = open_store(name, self.engine, directory, is_new=False)
            read.append(store.get(b"text"))
            store.close()
        return read


def sealed_anew(version: SealedVersion) -> SealedVersion:
    """Write the manifest that a version has if its files were as they are now when it was sealed."""
    (version.directory / MANIFEST_FILE).unlink()
    files = KnownChecksums().entries(version.directory)
    manifest = dataclasses.replace(version.manifest, files=files)
    (version.directory / MANIFEST_FILE).write_bytes(manifest.encode())
    return SealedVersion(version.directory, manifest)

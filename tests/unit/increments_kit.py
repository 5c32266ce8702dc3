"""One task whose real store is committed to blobs in memory, version by version."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoded_kit import plain_index

from statekeep.backends.base import (
    BackupContext,
    CommitContext,
    RestoreContext,
    TaskBackupManager,
    TaskIdentity,
)
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.index import IndexAddition, SnapshotIndex, decode_index
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    TaskName,
)
from statekeep.config.store_settings import StoreFactoryName
from statekeep.stores.factory import open_store, open_to_load
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.stores.work_directory import WorkDirectory
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import FaultPlan, FaultyBlobStoreManager
from statekeep.testing.versions import STORE

BLOB = BackendName("blob")
TASK = TaskIdentity("job", "main", TaskName("Partition 3"))

Changes = Mapping[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Made:
    """A commit that was made."""

    checkpoint: CheckpointV2
    version: SealedVersion
    index: SnapshotIndex
    attempt: tuple[int, int]

    @property
    def marker(self) -> Marker:
        return self.checkpoint.markers_of(BLOB)[STORE]


class IncrementJob:
    """Seals, commits, restores and cleans up; plays container and job log."""

    def __init__(
        self,
        root: Path,
        kind: StoreFactoryName = "memory",
        settings: Mapping[str, str] | None = None,
        make_blobs: Callable[[], BlobStoreManager] | None = None,
    ) -> None:
        """Begin a job.

        Args:
            root: For local files, and the name of a place in memory.
            kind: Of the store.
            settings: Of the backend.
            make_blobs: Makes clients of another place; None: one in memory.
        """
        self.root = root
        self.kind: StoreFactoryName = kind
        self.plan = FaultPlan()
        make = make_blobs or (lambda: MemoryBlobStoreManager(str(root), SerialExecutor()))
        self.blobs = make()
        self._make_blobs = make
        self._settings = {"uri": str(root), **(settings or {})}
        self.versions = TaskDirectory.of(root / "local", TASK)
        self.commits: list[Made] = []
        self.closed: list[tuple[int, int]] = []
        self._contexts: dict[CheckpointId, CommitContext] = {}
        self._numbers = itertools.count(1)
        self.manager = self.new_manager()

    def new_manager(self) -> TaskBackupManager:
        """Build a factory and a backup manager, as each process that runs the job has them."""
        self.factory = BlobBackendFactory(
            BLOB,
            self._settings,
            make_manager=lambda _, __: FaultyBlobStoreManager(self._make_blobs(), self.plan),
        )
        return self.factory.backup_manager(
            BackupContext(TASK, (STORE,), self._contexts.__getitem__, SerialExecutor(), FakeClock())
        )

    def seal(
        self, base: SealedVersion | None, *batches: Changes, is_captured: bool = True
    ) -> SealedVersion:
        """Seal a version for each batch of changes, on top of each other; return the last."""
        for changes in batches:
            number = next(self._numbers)
            captured = [STORE] if is_captured else []
            uid = f"{number:08x}"
            with self.versions.begin(uid, base, [STORE], captured=captured) as work:
                work.open_store(STORE, self.kind).write(changes)
                base = work.seal(number, uid, base)
        assert base is not None
        return base

    def open_attempt(self, version: SealedVersion) -> CommitContext:
        number = next(self._numbers)
        base = self.commits[-1] if self.commits else None
        context = CommitContext(
            CheckpointId(0, number),
            1,
            number,
            version,
            base.checkpoint if base else None,
            base.version.id if base else None,
        )
        self._contexts[context.checkpoint_id] = context
        return context

    async def commit(self, version: SealedVersion) -> Made:
        context = self.open_attempt(version)
        markers = await self.manager.upload(
            context.checkpoint_id, self.manager.snapshot(context.checkpoint_id)
        )
        checkpoint = CheckpointV2(context.checkpoint_id, {}, {BLOB: dict(markers)})
        index = await read_index(self.blobs, markers[STORE])
        self.commits.append(Made(checkpoint, version, index, (1, context.attempt)))
        return self.commits[-1]

    def release(self, number: int) -> None:
        self.closed.append(self.commits.pop(number).attempt)

    async def clean_up(self) -> None:
        retained = [commit.checkpoint.markers_of(BLOB) for commit in self.commits]
        await self.manager.clean_up(retained, self.closed)

    async def check_ledger(self) -> None:
        """The place holds exactly what the retained commits reach."""
        reached: set[str] = set()
        for commit in self.commits:
            reached |= {commit.marker, *commit.index.blob_ids()}
        assert set(await self.blobs.list("")) == reached

    async def restore(
        self, checkpoint: CheckpointV2, *reusable: SealedVersion, directory: Path | None = None
    ) -> tuple[Mapping[bytes, bytes], int]:
        """Return the restored content, and how many bytes were fetched for it."""
        if directory is None:
            directory = self.root / f"restored-{next(self._numbers)}" / "db"
            directory.parent.mkdir(parents=True)
        sizes: list[int] = []
        totals: list[int] = []
        await self._run_restore(checkpoint, directory, reusable, sizes, totals)
        assert sum(sizes) == sum(totals)
        assert [path.name for path in directory.parent.iterdir()] == ["db"]
        return self.content_at(directory), sum(sizes)

    async def restore_into(self, work: WorkDirectory, checkpoint: CheckpointV2) -> None:
        """Fill a work directory, as the restore of a task does."""
        directory = work.store_directory(STORE)
        directory.parent.mkdir(parents=True)
        await self._run_restore(checkpoint, directory, (), [], [])

    def content_at(self, directory: Path) -> Mapping[bytes, bytes]:
        store = open_store(STORE, self.kind, directory, is_new=False)
        try:
            return dict(store.scan())
        finally:
            store.close()

    async def _run_restore(
        self,
        checkpoint: CheckpointV2,
        directory: Path,
        reusable: Sequence[SealedVersion],
        sizes: list[int],
        totals: list[int],
    ) -> None:
        context = RestoreContext(
            task=TASK,
            directories={STORE: directory},
            reusable=reusable,
            open_store=lambda name, path: open_to_load(name, self.kind, path, is_new=True),
            open_image=lambda name, path: open_to_load(name, self.kind, path, is_new=False),
            on_bytes=sizes.append,
            on_total=totals.append,
            executor=SerialExecutor(),
            clock=FakeClock(),
        )
        manager = self.factory.restore_manager(context)
        try:
            await manager.init(checkpoint)
            await manager.restore()
        finally:
            await manager.close()


async def read_index(blobs: BlobStoreManager, marker: Marker) -> SnapshotIndex:
    """Return a whole index, joined with the full one that it adds to."""
    index = decode_index(plain_index(await blobs.get(marker), marker), where="test")
    if isinstance(index, IndexAddition):
        full = await read_index(blobs, Marker(index.full_index_blob_id))
        index = index.joined(full, where="test")
    return index.stored_at(marker)


def folded(*batches: Changes) -> dict[bytes, bytes]:
    """Return what a store holds after some batches of changes."""
    content: dict[bytes, bytes] = {}
    for changes in batches:
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
    return content


async def named_blobs(blobs: BlobStoreManager, markers: Iterable[Marker]) -> set[str]:
    """Return what the indexes of some markers name, read as the plain JSON that they are."""
    named: set[str] = set()
    for marker in markers:
        present = json.loads(plain_index(await blobs.get(marker), marker))
        named.add(marker)
        if "full-index-blob-id" in present:
            named |= await named_blobs(blobs, [Marker(present["full-index-blob-id"])])
        else:
            named.update(_blobs_of(present["dir-index"]))
        for delta in present.get("deltas", ()):
            named |= {delta["blob-id"], *(blob["blob-id"] for blob in delta.get("blobs", ()))}
    return named - {"."}


def _blobs_of(directory: Mapping[str, Any]) -> Iterator[str]:
    """Yield the blobs of the files that an index says are there."""
    for file in directory["files-present"]:
        yield from (blob["blob-id"] for blob in file["blobs"])
    for sub_dir in directory["sub-dirs-present"]:
        yield from _blobs_of(sub_dir)

"""What commits upload beside what they changed, and what a restore costs: the blob backend.

One store is loaded and compacted, as one that has lived for a while is, and backed up in full. Then
random keys change, commit by commit. Uploaded bytes are all that is put, indexes included; changed
bytes are the keys and values that were written. Places are directories, so a restore's time is
that of the disk and the processors alone: over a network (`benchmarks/restore_over_link.py`) the
deltas weigh less.
"""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from typing_extensions import override

from benchmarks import state
from benchmarks.figures import Figure, percentile
from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    RestoreContext,
    TaskIdentity,
)
from statekeep.backends.blob.codec import Codec, EncodingSettings
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.index import SnapshotIndex
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    TaskName,
)
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.stores.factory import open_to_load
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.storage import bare_manager

BLOB = BackendName("blob")
STORE = StoreName("state")
TASK = TaskIdentity("benchmark", "main", TaskName("Partition 0"))
CHANGED_KEYS = 5_000
CHANGED_KEY_BYTES = len(state.key(0)) + state.VALUE_BYTES
CHANGED_BYTES = CHANGED_KEYS * CHANGED_KEY_BYTES
RESTORES = 3
THREADS = 16


@dataclass(frozen=True)
class Commit:
    """One commit that was made."""

    checkpoint: CheckpointV2
    index: SnapshotIndex
    uploaded_bytes: int


T = TypeVar("T")


class CountingManager(WrappedBlobStoreManager):
    """Counts the bytes that are put."""

    put_bytes = 0

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        type(self).put_bytes += size
        return await super().put(name, content, metadata, if_absent=if_absent)


def measure(size_mb: int, commits: int) -> list[Figure]:
    """Measure one size of state."""
    return asyncio.run(_measure(size_mb, commits))


async def _measure(size_mb: int, commits: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        executor = BoundedExecutor(THREADS, "benchmark")
        try:
            made = await commit_all(root, size_mb, commits, executor)
            restores = await restore_all(root, made, partial(_factory, root), executor)
        finally:
            await executor.close()
    case = f"{size_mb / 1000:g} GB of state, {commits:,} commits of {CHANGED_KEYS:,} random keys"
    changes = [commit for commit in made[1:] if commit.index.deltas]
    ratios = [commit.uploaded_bytes / CHANGED_BYTES for commit in changes]
    total = sum(commit.uploaded_bytes for commit in made[1:])
    figures = [
        Figure("increments", case, "uploaded by all commits", total / 1e6, "MB", total / CHANGED_BYTES / commits),
        Figure("increments", case, "uploaded by a commit of changes, p50", percentile(ratios, 0.5) * CHANGED_BYTES / 1e3, "KB", percentile(ratios, 0.5)),
        Figure("increments", case, "uploaded by a commit of changes, most", max(ratios) * CHANGED_BYTES / 1e3, "KB", max(ratios)),
        Figure("increments", case, "snapshots", len(made) - 1 - len(changes), ""),
    ]  # fmt: skip
    return [*figures, *restore_figures(case, restores)]


def restore_figures(case: str, seconds: Mapping[str, float]) -> list[Figure]:
    """Hold the seconds of `restore_all` against those of the base."""
    base = seconds["the base alone"]
    return [
        Figure("increments", case, f"restore of {subject}", each, "s", each / base)
        for subject, each in seconds.items()
    ]


async def commit_all(
    root: Path,
    size_mb: int,
    commits: int,
    executor: BlockingExecutor,
    changed_keys: int = CHANGED_KEYS,
) -> Sequence[Commit]:
    """Make the base and all commits, of so many random keys each; none is released."""
    contexts: dict[CheckpointId, CommitContext] = {}
    factory = _factory(root)
    manager = factory.backup_manager(
        BackupContext(TASK, (STORE,), contexts.__getitem__, executor, SystemClock())
    )
    await manager.init()
    blobs = factory.blob_store_manager(executor, SystemClock())
    await blobs.init()
    indexes = IndexBlobs(blobs, Codec(EncodingSettings(), None, bytes), executor)
    directory = TaskDirectory(root / "local", TASK)
    draw, numbers = random.Random(size_mb), range(state.key_count(size_mb))
    made: list[Commit] = []
    base: SealedVersion | None = None
    with directory.begin("bench", None, [STORE], captured=[STORE]) as work:
        store = work.open_store(STORE, "rocksdb")
        state.load(store, len(numbers), draw)
        _compact(cast("RocksDbStore", getattr(store, "_store")))  # noqa: B009  # a look behind the capture
        for number in range(commits + 1):
            if number:
                state.change(store, draw.sample(numbers, changed_keys), draw)
            version = work.seal(number, f"{number:032x}", base, committed=base.id if base else None)
            checkpoint_id = CheckpointId(0, number)
            contexts[checkpoint_id] = CommitContext(
                checkpoint_id, 1, number, version,
                made[-1].checkpoint if made else None, base.id if base else None,
            )  # fmt: skip
            before = CountingManager.put_bytes
            markers = await manager.upload(checkpoint_id, manager.snapshot(checkpoint_id))
            made.append(
                Commit(
                    CheckpointV2(checkpoint_id, {}, {BLOB: markers}),
                    await indexes.load(markers[STORE]),
                    CountingManager.put_bytes - before,
                )
            )
            base = version
            directory.retain([version.id], number)
    await blobs.close()
    await manager.close()
    shutil.rmtree(root / "local")
    return made


def subjects(made: Sequence[Commit]) -> Mapping[str, Commit]:
    """Return the commits whose restores say something, by what they are."""
    longest = max(made, key=lambda commit: commit.index.delta_bytes())
    return {
        "the base alone": made[0],
        "the image of the longest chain alone": _image_of(made, longest),
        "the longest chain of deltas": longest,
    }


async def restore_all(
    root: Path,
    made: Sequence[Commit],
    make_factory: Callable[[], BlobBackendFactory],
    executor: BlockingExecutor,
) -> Mapping[str, float]:
    """Return the seconds that restores take, each the median of some in turn.

    Args:
        root: Holds nothing called ``restored``.
        made: The commits.
        make_factory: Of the place to restore from.
        executor: For everything that blocks.
    """
    seconds: dict[str, list[float]] = {}
    for _ in range(RESTORES):
        for subject, commit in subjects(made).items():
            took = await _restore(root, commit.checkpoint, make_factory(), executor)
            seconds.setdefault(subject, []).append(took)
    return {subject: percentile(times, 0.5) for subject, times in seconds.items()}


def _image_of(made: Sequence[Commit], commit: Commit) -> Commit:
    wanted = commit.index.image_version or commit.index.version
    return next(other for other in made if other.index.version == wanted)


async def _restore(
    root: Path, checkpoint: CheckpointV2, factory: BlobBackendFactory, executor: BlockingExecutor
) -> float:
    target = root / "restored"
    target.mkdir()
    context = RestoreContext(
        task=TASK,
        directories={STORE: target / "db"},
        reusable=(),
        open_store=lambda name, directory: open_to_load(name, "rocksdb", directory, is_new=True),
        open_image=lambda name, directory: open_to_load(name, "rocksdb", directory, is_new=False),
        on_bytes=lambda _: None,
        on_total=lambda _: None,
        executor=executor,
        clock=SystemClock(),
    )
    manager = factory.restore_manager(context)
    begin = time.perf_counter()
    await manager.init(checkpoint)
    await manager.restore()
    seconds = time.perf_counter() - begin
    await manager.close()
    shutil.rmtree(target)
    return seconds


def _factory(root: Path) -> BlobBackendFactory:
    def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
        return CountingManager(bare_manager(settings["uri"], {}, executor))

    return BlobBackendFactory(BLOB, {"uri": (root / "place").as_uri()}, make_manager=make_manager)


def _compact(store: RocksDbStore) -> None:
    """Bring a store into one sorted run, as a store is that was not just loaded."""
    database = getattr(store, "_db")  # noqa: B009  # the contract of a store knows no compaction
    database.flush()
    database.compact_range(None, None)

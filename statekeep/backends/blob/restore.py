"""Restoring a task's stores from blobs: what is proven here is linked, the rest is downloaded."""

import asyncio
import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path

from typing_extensions import override

from statekeep.backends.awaiting import run_all, run_bounded, run_to_early_end, run_to_end
from statekeep.backends.base import RestoreContext, TaskRestoreManager
from statekeep.backends.blob.codec import Codec
from statekeep.backends.blob.content_reader import ContentReader, Target
from statekeep.backends.blob.index import DeltaBlob, DirIndex, FileIndex, SnapshotIndex
from statekeep.backends.blob.index_blobs import IndexBlobs, check_bound, check_owner
from statekeep.backends.blob.local_reuse import LocalCopies, clone_newest, link_equal_file
from statekeep.backends.blob.restored_file import DeltaLoad, FetchedDelta
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.pacing import ByteBudget
from statekeep.backends.storage.names import TaskPrefix
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName
from statekeep.errors import BackendClosedError, CheckpointCorruptError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _StorePlan:
    """What is to be done for one store, after its directory was begun."""

    store: StoreName
    files: Sequence[Target]
    """Of the image; none where a local version was cloned."""
    deltas: Sequence[FetchedDelta]
    """What leads from there to the version that is wanted, in order."""


class BlobRestoreManager(TaskRestoreManager):
    """Fills the directories of a task's stores from the indexes that its checkpoint names.

    Every byte is compared with the sha-256 of its file's index (CRC32 where Samza wrote the
    index), at all depths, whether it came from a blob or from a local version. Deltas are applied to
    the image by the store's own engine; where a local version lies on their way, only those after
    it are fetched.
    """

    def __init__(
        self,
        context: RestoreContext,
        manager: BlobStoreManager,
        backend: BackendName,
        *,
        codec: Codec,
        buffers: ByteBudget,
    ) -> None:
        self._context = context
        self._manager = manager
        self._codec = codec
        self._index_blobs = IndexBlobs(manager, codec, context.executor)
        self._reader = ContentReader(manager, context.executor, codec, buffers, context.on_bytes)
        self._backend = backend
        self._indexes: dict[StoreName, SnapshotIndex] = {}
        self._is_closed = False

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        self._check_open()
        await self._manager.init()
        stores = list(self._context.directories)
        indexes = await run_all(self._find(checkpoint, store) for store in stores)
        self._indexes = dict(zip(stores, indexes, strict=True))

    @override
    async def restore(self) -> None:
        self._check_open()
        plans = await run_all(self._begin(store, index) for store, index in self._indexes.items())
        missing = await self._link([target for plan in plans for target in plan.files])
        delta_bytes = sum(item.delta.size for plan in plans for item in plan.deltas)
        self._context.on_total(sum(target.file.size for target in missing) + delta_bytes)
        by_store: dict[StoreName, list[Target]] = {plan.store: [] for plan in plans}
        for target in missing:
            by_store[target.store].append(target)
        await run_all(self._fill(plan, by_store[plan.store]) for plan in plans)

    @override
    async def close(self) -> None:
        self._is_closed = True
        await self._manager.close()

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"blob restore manager is closed: task={self._context.task.task_name}"
            raise BackendClosedError(msg)

    async def _find(self, checkpoint: CheckpointV2, store: StoreName) -> SnapshotIndex:
        marker = checkpoint.markers_of(self._backend).get(store)
        if marker is None:
            msg = (
                f"checkpoint has no marker: task={self._context.task.task_name} "
                f"checkpoint_id={checkpoint.checkpoint_id} backend={self._backend} store={store}"
            )
            raise CheckpointCorruptError(msg)
        index = await self._index_blobs.load(marker)
        check_owner(index, marker, self._context.task, store)
        if self._codec.is_encrypted(store):
            prefix = TaskPrefix(self._backend, self._context.task)
            check_bound(index, marker, prefix, store, self._context.version)
        return index

    async def _begin(self, store: StoreName, index: SnapshotIndex) -> _StorePlan:
        """Begin a store's directory: as a clone of a local version, or empty."""
        root = self._context.directories[store]
        run = self._context.executor
        deltas = await run_to_end(run, clone_newest, self._context.reusable, store, index, root)
        if deltas is not None:
            return _StorePlan(store, (), _beside(root, deltas))
        await run_to_end(run, _make_directories, root, index.dir_index)
        files = _targets(store, root, index.dir_index)
        return _StorePlan(store, files, _beside(root, index.deltas))

    async def _fill(self, plan: _StorePlan, missing: Sequence[Target]) -> None:
        """Fetch a store's image, then its deltas, each of which is applied while others come.

        The image first: nothing can be applied without it, and it is most of the bytes.
        """
        await self._reader.fetch(missing)
        if not plan.deltas:
            return
        has_come = [asyncio.Event() for _ in plan.deltas]

        async def fetch(item: FetchedDelta, come: asyncio.Event) -> None:
            target = Target(plan.store, item.delta.as_file(), item.path, item.path, is_delta=True)
            if item.delta.in_index:
                load = partial(self._index_blobs.load_delta, item.delta)
                await self._reader.fetch_small(target, load)
            else:
                await self._reader.fetch([target])
            come.set()

        fetches = map(partial, repeat(fetch), plan.deltas, has_come)
        await run_all([run_bounded(fetches), self._apply(plan, has_come)])

    async def _apply(self, plan: _StorePlan, has_come: Sequence[asyncio.Event]) -> None:
        """Bring a store's image to the version of its index, by deltas that come in any order."""
        executor = self._context.executor
        root = self._context.directories[plan.store]
        load = DeltaLoad(partial(self._context.open_image, plan.store, root))
        is_cancelled = threading.Event()
        try:
            for item, come in zip(plan.deltas, has_come, strict=True):
                await come.wait()
                await run_to_early_end(executor, is_cancelled.set, load.apply, item, is_cancelled)
        finally:
            await run_to_end(executor, load.close)

    async def _link(self, targets: list[Target]) -> list[Target]:
        """Link what a local version holds; return the files that are still missing."""
        copies = {store: LocalCopies(self._context.reusable, store) for store in self._indexes}
        is_cancelled = threading.Event()

        async def link(target: Target) -> bool:
            candidates = copies[target.store].candidates(target.file)
            return bool(candidates) and await run_to_early_end(
                self._context.executor,
                is_cancelled.set,
                link_equal_file,
                candidates,
                target.file,
                target.path,
                is_cancelled,
            )

        linked = await run_bounded(partial(link, target) for target in targets)
        missing = [
            target for target, is_linked in zip(targets, linked, strict=True) if not is_linked
        ]
        logger.debug(
            "local files linked: task=%s backend=%s files=%d files_missing=%d",
            self._context.task.task_name,
            self._backend,
            len(targets) - len(missing),
            len(missing),
        )
        return missing


def _targets(store: StoreName, root: Path, index: DirIndex) -> list[Target]:
    files = [
        (file, directory / file.file_name)
        for directory, found in _directories(root, index)
        for file in found.files_present
    ]
    return [
        Target(store, file, path, _spare(root, path, file, number))
        for number, (file, path) in enumerate(files)
    ]


def _spare(root: Path, path: Path, file: FileIndex, number: int) -> Path:
    """Return where a part of a file waits: beside the image, so that no name of it can clash."""
    if len(file.blobs) <= 1:
        return path
    return root.parent / f".{root.name}.{number}.{_digest(file.blobs[0].blob_id)}.part"


def _directories(root: Path, index: DirIndex) -> Iterator[tuple[Path, DirIndex]]:
    """Yield the directories of an image, each before those in it."""
    yield root, index
    for sub_dir in index.sub_dirs_present:
        yield from _directories(root / sub_dir.dir_name, sub_dir)


def _make_directories(root: Path, index: DirIndex) -> None:
    for directory, _ in _directories(root, index):
        directory.mkdir(parents=directory == root, exist_ok=False)


def _beside(root: Path, deltas: Sequence[DeltaBlob]) -> Sequence[FetchedDelta]:
    """Say where deltas wait: beside the image, so that no name of it can clash.

    Their own names are those of their blobs, which what a failed backend has left there has not; and
    their places, as an index may name one blob twice.
    """
    return [
        FetchedDelta(delta, root.parent / f".{root.name}.{number}.{_digest(delta.blob_id)}.delta")
        for number, delta in enumerate(deltas)
    ]


def _digest(blob_id: str) -> str:
    """Return what stands for an id in the name of a file, which it may be too long for."""
    return hashlib.sha256(blob_id.encode()).hexdigest()[:32]

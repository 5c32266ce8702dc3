"""Restoring a task's stores from blobs: proven local files are linked, the rest is downloaded."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from typing_extensions import override

from statekeep.backends.base import BlobStoreManager, RestoreContext, TaskRestoreManager
from statekeep.backends.blob.index import DirIndex, FileIndex, SnapshotIndex
from statekeep.backends.blob.index_blobs import check_owner, load_index
from statekeep.backends.blob.local_reuse import LocalCopies, link_equal_file
from statekeep.backends.blob.restored_file import append_part, check_file
from statekeep.backends.fan_out import run_all
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName
from statekeep.errors import BackendClosedError, CheckpointCorruptError

logger = logging.getLogger(__name__)

_DOWNLOAD_TRIES: Final = 2
"""A file that arrives damaged is fetched once more: the damage may lie in the transfer."""


@dataclass(frozen=True, slots=True)
class _Target:
    """One file to restore, and where to."""

    store: StoreName
    file: FileIndex
    path: Path


class BlobRestoreManager(TaskRestoreManager):
    """Fills the directories of a task's stores from the indexes that its checkpoint names.

    Every byte is compared with the sha-256 of its file's index (CRC32 where Samza wrote the
    index), at all depths, whether it came from a blob or from a local version.
    """

    def __init__(
        self, context: RestoreContext, manager: BlobStoreManager, backend: BackendName
    ) -> None:
        self._context = context
        self._manager = manager
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
        targets = [
            target
            for store, index in self._indexes.items()
            for target in _targets(store, index.dir_index, self._context.directories[store])
        ]
        for store, index in self._indexes.items():
            root = self._context.directories[store]
            await self._context.executor.run(_make_directories, root, index.dir_index)
        missing = await self._link(targets)
        self._context.on_total(sum(target.file.size for target in missing))
        await run_all(self._fetch(target) for target in missing)

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
        index = await load_index(self._manager, marker)
        check_owner(index, marker, self._context.task, store)
        return index

    async def _link(self, targets: list[_Target]) -> list[_Target]:
        """Link what a local version holds; return the files that are still missing."""
        copies = {store: LocalCopies(self._context.reusable, store) for store in self._indexes}
        linked = await run_all(
            self._context.executor.run(
                link_equal_file,
                copies[target.store].candidates(target.file),
                target.file,
                target.path,
            )
            for target in targets
        )
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

    async def _fetch(self, target: _Target) -> None:
        """Download one file and verify it.

        Raises:
            CheckpointCorruptError: It is damaged, also when fetched anew.
        """
        on_bytes = self._context.on_bytes
        for tries_left in reversed(range(_DOWNLOAD_TRIES)):
            sha256 = await self._download(target, on_bytes)
            try:
                await self._context.executor.run(check_file, target.path, target.file, sha256)
            except CheckpointCorruptError as exc:
                if not tries_left:
                    raise
                logger.warning("damaged download is repeated: store=%s error=%s", target.store, exc)
                await self._context.executor.run(target.path.unlink)
                on_bytes = _ignore_bytes
            else:
                return

    async def _download(self, target: _Target, on_bytes: Callable[[int], None]) -> str | None:
        """Write a file's blobs to its path; return the sha-256 if one pass has given it."""
        blobs = sorted(target.file.blobs, key=lambda blob: blob.offset)
        if len(blobs) == 1 and blobs[0].offset == 0:
            return await self._manager.download(blobs[0].blob_id, target.path, on_bytes)
        run = self._context.executor.run
        await run(target.path.touch, exist_ok=False)
        part = _part_path(self._context.directories[target.store], target.path)
        for blob in blobs:
            await self._manager.download(blob.blob_id, part, on_bytes)
            await run(append_part, part, target.path, blob.offset)
        return None


def _targets(store: StoreName, index: DirIndex, directory: Path) -> list[_Target]:
    targets = [_Target(store, file, directory / file.file_name) for file in index.files_present]
    for sub_dir in index.sub_dirs_present:
        targets += _targets(store, sub_dir, directory / sub_dir.dir_name)
    return targets


def _make_directories(directory: Path, index: DirIndex) -> None:
    directory.mkdir(parents=True, exist_ok=False)
    for sub_dir in index.sub_dirs_present:
        _make_directories(directory / sub_dir.dir_name, sub_dir)


def _part_path(root: Path, path: Path) -> Path:
    """Return where a part of a file waits: beside the image, so that no name of it can clash."""
    relative = "-".join(PurePosixPath(path.relative_to(root)).parts)
    return root.parent / f".{root.name}.{relative}.part"


def _ignore_bytes(size: int) -> None:
    del size

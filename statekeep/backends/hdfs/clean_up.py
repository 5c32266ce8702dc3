"""Deleting files of a task by lineage, safely, whoever does it and however late (R8).

Deleted is a file that (1) an attempt made which is not newer than the newest one that the job log
has closed, and (2) no load of a retained commit reads. The argument of
`statekeep.backends.blob.clean_up` holds, with "its lineage" for "its index": what a later commit
reaches beyond its own attempt it reaches by way of its base, and so by way of the newest commit of
the view, whose load is spared.

What is particular here: a load ends at the newest snapshot of the lineage, and snapshots are made
later than their deltas. So nothing is deleted before the snapshots at which the retained loads end
were read to their ends and found whole. A snapshot that shows up later only makes loads shorter. One
that is still being written, by whatever process, has a temporary name; it is spared as long as the
delta of its upload is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.names import TaskPrefix
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.fan_out import most_telling, run_all
from statekeep.backends.hdfs.names import FileKind, FileName, attempt_of, parse_marker
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import StoreFiles
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.checkpoint.escaping import unescape_name
from statekeep.errors import CheckpointCorruptError, StateBackupError

logger = logging.getLogger(__name__)


async def delete_unreached(
    manager: BlobStoreManager,
    prefix: TaskPrefix,
    retained: Sequence[Mapping[StoreName, Marker]],
    closed_attempts: Sequence[tuple[int, int]],
    *,
    files_of: Callable[[StoreName], StoreFiles],
    executor: BlockingExecutor,
    verified: set[str],
) -> None:
    """Delete the files of closed and of older attempts that no retained commit reads. Idempotent.

    What their puts have left unfinished goes too. Stores that the configuration has dropped are
    collected too.

    Args:
        manager: Where the files lie.
        prefix: Of the task; nothing outside it is touched.
        retained: The markers of every commit that is not released.
        closed_attempts: (epoch, attempt) that never complete or are never restored.
        files_of: Gives the files of a store, also of one that is no longer configured.
        executor: For reading snapshots.
        verified: Paths of snapshots that were found whole; more are added.

    Raises:
        BlobNotFoundError: A file of a retained commit is gone: nothing of its store was deleted, and
            all other stores were tried. A note names the store.
        CheckpointCorruptError: A header cannot be read: as above.
        RetriableError: The service may answer later; some of it may be deleted.
    """
    if not closed_attempts:
        return
    newest_closed = max(closed_attempts)
    spared: set[str] = set()
    failed: dict[str, Exception] = {}
    for store, names in (await _names_by_store(manager, prefix)).items():
        candidates = {name for name in names if _is_closed(name, newest_closed)}
        if not candidates:
            continue
        markers = {markers[store] for markers in retained if store in markers}
        files = files_of(store)
        try:
            cleaner = _StoreCleaner(files, executor, verified)
            reached = await cleaner.delete_unreached(candidates, markers)
        except (StateBackupError, OSError) as exc:  # the other stores are still to do; raised below
            exc.add_note(f"task={prefix.task.task_name} backend={prefix.backend} store={store}")
            failed[files.prefix] = exc
        else:
            spared.update(files.path(FileName(name.id, FileKind.SNAPSHOT)) for name in reached)

    def is_closed(path: str) -> bool:
        name = FileName.parse(path.rpartition("/")[2])
        is_kept = path in spared or path.startswith(tuple(failed))
        return name is not None and not is_kept and _is_closed(name, newest_closed)

    await manager.remove_unfinished(str(prefix), is_closed)
    if failed:
        raise most_telling(list(failed.values()))


async def _names_by_store(
    manager: BlobStoreManager, prefix: TaskPrefix
) -> dict[StoreName, set[FileName]]:
    """Return the files of a task by their stores, also of stores that the configuration dropped."""
    stores: dict[StoreName, set[FileName]] = {}
    for blob_id in await manager.list(str(prefix)):
        directory, _, text = blob_id.rpartition(str(prefix))[2].rpartition("/")
        name = FileName.parse(text)
        if name is not None and "/" not in directory:
            stores.setdefault(StoreName(unescape_name(directory)), set()).add(name)
    return stores


class _StoreCleaner:
    """One clean-up of one store."""

    def __init__(self, files: StoreFiles, executor: BlockingExecutor, verified: set[str]) -> None:
        self._files = files
        self._executor = executor
        self._verified = verified
        self._ends: set[FileName] = set()

    async def delete_unreached(
        self, candidates: set[FileName], markers: set[Marker]
    ) -> set[FileName]:
        """Delete those files that a restore from none of the markers reads; return all it reads."""
        reached = await self._reached(markers)
        unreached = candidates - reached
        if unreached and await self._are_ends_whole():
            # The oldest last: what is left by a crash is still a chain.
            ordered = sorted(unreached, key=lambda name: name.id, reverse=True)
            await run_all(self._files.delete(name) for name in ordered)
            logger.debug(
                "unreached files deleted: prefix=%s files=%d", self._files.prefix, len(unreached)
            )
        return reached

    async def _reached(self, markers: set[Marker]) -> set[FileName]:
        """Return the files that a restore from one of the markers reads."""
        found: set[FileName] = set()
        for marker in markers:
            if SparkStart.parse(marker) is not None:  # whose files are Spark's
                continue
            prefix, upload = parse_marker(marker)
            if prefix != self._files.prefix:  # of another job, whose files are not deleted here
                continue
            plan = await self._files.plan(upload)
            self._ends.add(FileName(plan.snapshot, FileKind.SNAPSHOT))
            found.update(plan.files)
        return found

    async def _are_ends_whole(self) -> bool:
        """Return whether every snapshot at which a load ends can be read; False with a warning."""
        for name in sorted(self._ends, key=str):
            path = self._files.path(name)
            if path in self._verified:
                continue
            try:
                await self._read(name)
            except CheckpointCorruptError as exc:
                logger.warning("snapshot is damaged, nothing behind it is deleted: error=%s", exc)
                return False
            self._verified.add(path)
        return True

    async def _read(self, name: FileName) -> None:
        async with self._files.ahead([name]) as ahead:
            await self._files.read(name, ahead, self._executor, take=_pass, on_bytes=_pass)


def _pass(_: object) -> None:
    """Take what is only to be checked."""


def _is_closed(name: FileName, newest_closed: tuple[int, int]) -> bool:
    attempt = attempt_of(name.id)
    return attempt is not None and attempt <= newest_closed

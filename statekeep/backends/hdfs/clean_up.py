"""Deletes files of a task by lineage; safe for any process, however late (R8).

Deleted is a file that (1) an attempt made which is not newer than the newest one that the job log
has closed, and (2) no load of a retained commit reads. The argument of
`statekeep.backends.blob.clean_up` holds, with "its lineage" for "its index": what a later commit
reaches beyond its own attempt it reaches by way of its base, and so by way of the newest commit of
the view, whose load is spared.

What is particular here: a load ends at the newest snapshot of the lineage, and snapshots are made
later than their deltas. So nothing is deleted before the snapshots at which the retained loads end
were read to their ends and found whole; where one is not, what a load without it reads is spared
too. A snapshot that shows up later only makes loads shorter. One that is still being written, by
whatever process, has a temporary name; it is spared as long as the delta of its upload is.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from statekeep.backends.awaiting import most_telling, run_all
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.hdfs.lineage import LoadPlan
from statekeep.backends.hdfs.names import FileKind, FileName, UploadMarker, attempt_of
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import StoreFiles, check_digest
from statekeep.backends.storage.names import TaskPrefix
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.checkpoint.names import is_escaped, unescape_name
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, StateBackupError
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)


async def delete_unreached(
    manager: BlobStoreManager,
    prefix: TaskPrefix,
    retained: Sequence[Mapping[StoreName, Marker]],
    closed_attempts: Sequence[tuple[int, int]],
    *,
    files_of: Callable[[StoreName], StoreFiles],
    executor: BlockingExecutor,
    checked: dict[str, bool],
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
        checked: Paths of snapshots that were read, and whether they are whole; kept up to date.

    Raises:
        BlobNotFoundError: A file of a retained commit is gone: nothing of its store was deleted, and
            all other stores were tried. A note names the store.
        CheckpointCorruptError: A header cannot be read: as above.
        UnknownFormatError: A newer version of Statekeep wrote a file: as above.
        RetriableError: The service may answer later; some of it may be deleted.
    """
    if not closed_attempts:
        return
    newest_closed = max(closed_attempts)
    spared: set[str] = set()
    failed: dict[str, Exception] = {}
    by_store = await _names_by_store(manager, prefix)
    _forget_deleted(
        checked,
        str(prefix),
        {files_of(store).path(name) for store, names in by_store.items() for name in names},
    )
    for store, names in by_store.items():
        candidates = {name for name in names if _is_closed(name, newest_closed)}
        if not candidates:
            continue
        markers = {markers[store] for markers in retained if store in markers}
        files = files_of(store)
        try:
            cleaner = _StoreCleaner(files, executor, checked)
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
        if name is not None and is_escaped(directory):
            stores.setdefault(StoreName(unescape_name(directory)), set()).add(name)
    return stores


class _StoreCleaner:
    """One clean-up of one store."""

    def __init__(
        self, files: StoreFiles, executor: BlockingExecutor, checked: dict[str, bool]
    ) -> None:
        self._files = files
        self._executor = executor
        self._checked = checked

    async def delete_unreached(
        self, candidates: set[FileName], markers: set[Marker]
    ) -> set[FileName]:
        """Delete those files that a restore from none of the markers reads; return all it reads."""
        plans = [(each, await self._files.plan(each)) for each in self._own_uploads(markers)]
        reached = {name for _, plan in plans for name in plan.files}
        # A snapshot that was made after its upload is in no marker yet: the next commit names it.
        reached |= {FileName(name.id, FileKind.SNAPSHOT) for name in reached}
        if candidates <= reached:
            return reached
        for marker, plan in plans:
            reached |= await self._beyond_damage(marker, plan)
        # The oldest last: what is left by a crash is still a chain.
        unreached = sorted(candidates - reached, key=lambda name: name.id, reverse=True)
        fault_point("clean_up.before_uploads")
        await run_all(self._files.delete(name) for name in unreached)
        logger.debug(
            "unreached files deleted: prefix=%s files=%d", self._files.prefix, len(unreached)
        )
        return reached

    def _own_uploads(self, markers: set[Marker]) -> Iterator[UploadMarker]:
        """Yield the uploads that have files here: not Spark's, nor those of another job."""
        for marker in markers:
            if SparkStart.parse(marker) is None:
                upload = UploadMarker.parse(marker)
                if upload.prefix == self._files.prefix:
                    yield upload

    async def _beyond_damage(self, marker: UploadMarker, plan: LoadPlan) -> set[FileName]:
        """Return what a restore reads that finds the snapshot of a plan damaged, and so on."""
        found: set[FileName] = set()
        damaged: set[FileName] = set()
        while not await self._is_whole(plan):
            damaged.add(FileName(plan.snapshot, FileKind.SNAPSHOT))
            try:
                plan = await self._files.plan(marker, without=frozenset(damaged))
            except BlobNotFoundError:
                logger.warning(
                    "no whole snapshot is left of a retained commit: upload=%s", marker.id
                )
                break
            found.update(plan.files)
        return found

    async def _is_whole(self, plan: LoadPlan) -> bool:
        """Return whether the snapshot of a plan has its digest, and can be read; False with a warning."""
        name = FileName(plan.snapshot, FileKind.SNAPSHOT)
        path = self._files.path(name)
        if path not in self._checked:
            try:
                await self._read(name, plan.snapshot_sha256)
            except CheckpointCorruptError as exc:
                logger.warning("snapshot is damaged, what lies behind it is kept: error=%s", exc)
                self._checked[path] = False
            else:
                self._checked[path] = True
        return self._checked[path]

    async def _read(self, name: FileName, sha256: str | None) -> None:
        async with self._files.ahead([name]) as ahead:
            read = await self._files.read(name, ahead, self._executor, take=_pass, on_bytes=_pass)
        if sha256 is not None:
            check_digest(self._files.path(name), read, sha256)


def _forget_deleted(checked: dict[str, bool], prefix: str, existing: Collection[str]) -> None:
    for path in [path for path in checked if path.startswith(prefix) and path not in existing]:
        del checked[path]


def _pass(_: object) -> None:
    """Take what is only to be checked."""


def _is_closed(name: FileName, newest_closed: tuple[int, int]) -> bool:
    attempt = attempt_of(name.id)
    return attempt is not None and attempt <= newest_closed

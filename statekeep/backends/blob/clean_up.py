"""Deletes blobs that nothing reaches; safe for any process, however late (R8).

Deleted is a blob that (1) an attempt made which is not newer than the newest one that the job log
has closed, and (2) no index of a retained commit names. Attempts are begun one after the other and
one is open at a time, so what is older than a closed attempt is closed itself, or committed. The
bound says so also of attempts that a trimmed log no longer names: a later commit may have reached
their blobs until long after. And a retained commit keeps no more than what its good markers reach.
Both lists come from *one* view of the log, at some position p. The
deletion may run at any time after p, also while later commits are made or long after them, by a
process that knows nothing of them. It never deletes what a commit later than p reaches:

    Let c be a commit recorded after p. Its index, read together with the full one that it may add to,
    names blobs of its own attempt, and blobs that it took over from its base: files of an image,
    deltas that follow it, and indexes, which are the full one and those that hold a delta. Such an
    index is either the base's own or reached by the base. So nothing is reached but by c's index and
    its full one.

    * Its own attempt is not closed at p: an aborted attempt never completes, and an attempt that is
      released has committed before its release. It is newer than all that are closed at p: it is
      open at p or begun later, and was begun after each of them had ended. So (1) spares these
      blobs.
    * Its base is the newest commit b at the moment when c's attempt was opened (R9); one attempt is
      open at a time (R5), so b is still the newest commit when c is recorded.
      If b was recorded after p, what c took over from it is spared by induction.
      If b was recorded before p, it is the newest commit at p. The newest commit is never
      released, so it is among the retained ones, and (2) spares what c took over from it.

It follows what a caller must keep: pass *every* commit that the view does not hold as released (not
only those of some window), and both lists from the same view; never release the newest commit;
take no base but the newest commit; open no attempt while one is open. What a late writer of a
closed attempt still uploads is found by the next clean-up.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import GarbageCollector, GarbageScope
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob.names import attempt_of, is_index
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.names import TaskPrefix, backend_prefix
from statekeep.checkpoint.checkpoints import BackendName, Marker
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

CLEAN_UPS_A_LOOK: Final = 16


class UnfinishedChecks:
    """Says which clean-ups of a process look for what puts that never ended have left.

    Only a process that was killed leaves any, and a look costs as much as the listing of the blobs.
    """

    def __init__(self) -> None:
        self._clean_ups: Counter[str] = Counter()

    def is_due(self, prefix: str) -> bool:
        """Count a clean-up of what lies below ``prefix``; return whether it is to look."""
        self._clean_ups[prefix] += 1
        return self._clean_ups[prefix] % CLEAN_UPS_A_LOOK == 1


async def delete_unreached(
    manager: BlobStoreManager,
    index_blobs: IndexBlobs,
    prefix: TaskPrefix,
    retained: Iterable[Marker],
    closed_attempts: Sequence[tuple[int, int]],
    *,
    checks: UnfinishedChecks,
) -> None:
    """Delete the blobs of closed and of older attempts that no retained index names.

    What puts of those attempts have left unfinished goes too, now and then: they have ended.
    Idempotent. Stores that the configuration has dropped are collected too. Indexes go before the
    files that they name.

    Args:
        manager: Where the blobs lie.
        index_blobs: Reads the indexes there.
        prefix: Of the task; nothing outside it is touched.
        retained: The markers of all commits that are not released.
        closed_attempts: (epoch, attempt) that never complete or are never restored.
        checks: Of the process.

    Raises:
        BlobNotFoundError: A retained index is gone, lost or released and deleted since the view was
            taken: nothing was deleted.
        CheckpointCorruptError: A retained index cannot be read: nothing was deleted.
        KeyUnavailableError: The key of a retained index is missing: nothing was deleted.
        UnknownFormatError: A newer version of Statekeep wrote a retained index: nothing was deleted.
        RetriableError: The service may answer later; some of it may be deleted.
    """
    if not closed_attempts:
        return
    newest = max(closed_attempts)
    if checks.is_due(str(prefix)):
        await manager.remove_unfinished(str(prefix), lambda name: _is_made_until(name, newest))
    candidates = await _made_until(manager, str(prefix), newest)
    if not candidates:
        return
    unreached = candidates - await _reached(index_blobs, frozenset(retained))
    await delete_blobs(manager, unreached)
    logger.debug(
        "unreached blobs deleted: task=%s backend=%s blobs=%d kept=%d",
        prefix.task.task_name,
        prefix.backend,
        len(unreached),
        len(candidates) - len(unreached),
    )


async def delete_blobs(manager: BlobStoreManager, blob_ids: Iterable[str]) -> None:
    """Delete blobs, indexes before the files that they name."""
    ordered = sorted(blob_ids)
    await manager.delete_all([blob_id for blob_id in ordered if is_index(blob_id)])
    fault_point("clean_up.before_files")
    await manager.delete_all([blob_id for blob_id in ordered if not is_index(blob_id)])


class BlobGarbageCollector(GarbageCollector):
    """The same for all tasks, operators and stores that a job has, or once had, in one backend.

    What it deletes is what the clean-up of some task would: the proof above holds below any prefix,
    given the markers of every task.
    """

    def __init__(
        self, manager: BlobStoreManager, index_blobs: IndexBlobs, backend: BackendName
    ) -> None:
        self._manager = manager
        self._index_blobs = index_blobs
        self._backend = backend
        self._scope: GarbageScope | None = None

    @override
    async def find(self, scope: GarbageScope) -> Sequence[str]:
        await self._manager.init()
        self._scope = scope
        candidates = await _made_until(self._manager, self._prefix(scope), scope.newest_closed)
        if not candidates:
            return []
        return sorted(candidates - await _reached(self._index_blobs, scope.retained))

    @override
    async def delete(self, names: Sequence[str]) -> None:
        await self._manager.init()
        if (scope := self._scope) is not None:
            await self._manager.remove_unfinished(
                self._prefix(scope), lambda name: _is_made_until(name, scope.newest_closed)
            )
        await delete_blobs(self._manager, names)

    @override
    async def close(self) -> None:
        await self._manager.close()

    def _prefix(self, scope: GarbageScope) -> str:
        return backend_prefix(scope.job_name, scope.job_uid, self._backend)


async def _made_until(manager: BlobStoreManager, prefix: str, newest: tuple[int, int]) -> set[str]:
    """Return the ids of the blobs that attempts up to ``newest`` made; of no others."""
    blob_ids = await manager.list(prefix)
    return {blob_id for blob_id in blob_ids if _is_made_until(blob_id, newest)}


def _is_made_until(blob_id: str, newest: tuple[int, int]) -> bool:
    made_by = attempt_of(blob_id)
    return made_by is not None and made_by <= newest


async def _reached(index_blobs: IndexBlobs, markers: frozenset[Marker]) -> set[str]:
    """Return the ids of all blobs that a restore from one of the markers reads."""
    indexes = await run_all(index_blobs.load(marker) for marker in sorted(markers))
    return set(markers).union(*(index.blob_ids() for index in indexes))

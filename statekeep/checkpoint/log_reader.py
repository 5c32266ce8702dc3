"""Reading a job log: from bytes at positions to a `LogView`."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from statekeep.checkpoint.job_log import DAMAGED_LOG_HINT, JobLog
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    CommitRecord,
    EpochRecord,
    KeptRecord,
    Record,
    decode_record,
    is_damaged_batch,
    link_of,
)
from statekeep.errors import CheckpointCorruptError, ConfigError

logger = logging.getLogger(__name__)

_SPARE_LINKS: Final = 64
"""Of released commits, until they are dropped together."""

_AT_ONCE: Final = 1_000
"""Records in memory while a log is read. With 200 tasks and a commit each they take 40 MB."""


def _ignore(_position: int, _record: Record) -> None:
    """Ignore a record."""


class LogReader:
    """Follows one `JobLog` and keeps the `LogView` of what it has read. Writes nothing.

    Used by one event loop; calls are awaited one after the other.

    Attributes:
        view: What the log amounts to. Another object takes its place when the log was trimmed
            beyond what had been read.
    """

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self._link = ""
        self._commit_links: dict[int, str] = {}
        """`link_of` each retained commit, and of some that are not: it may be read once more."""
        self.view = LogView()

    @property
    def link(self) -> str:
        """What the record at `LogView.next_position` is to have as ``previous``.

        "" where nothing, or a damaged record, stands before it: then it may have anything.
        """
        return self._link

    async def catch_up(self, take: Callable[[int, Record], None] = _ignore) -> int:
        """Fold what was written since the last call; return how many records that were.

        A damaged batch record is logged and recorded in the view; the batch can be made again. Holds a
        thousand records at a time: a log that a pin keeps may have millions.

        Args:
            take: Is given each record that can be read, with its position.

        Raises:
            CheckpointCorruptError: Any other record cannot be read, some are missing, or one does not
                follow the one before it.
            UnknownFormatError: A newer version of Statekeep has written to the log.
            RetriableError: The service may answer later; what was folded stays folded.
        """
        try:
            return await self._catch_up(take)
        except CheckpointCorruptError as exc:
            if not exc.hints:
                exc.add_note(DAMAGED_LOG_HINT)
            raise

    async def _catch_up(self, take: Callable[[int, Record], None]) -> int:
        count = began_at = 0
        first: Record | None = None
        while True:
            found = await self._log.read(self.view.next_position, limit=_AT_ONCE)
            for position, data in found:
                if position > self.view.next_position:
                    self.view = LogView(next_position=position)
                    self._link = ""
                    began_at, first = position, None
                record = _decode(position, data)
                if record is None:
                    self.view.fold_unreadable_batch(position)
                    self._link = ""
                    continue
                self._require_next(position, record)
                self.fold(position, record, data)
                first = first or record
                take(position, record)
            count += len(found)
            if len(found) < _AT_ONCE:
                break
        if began_at > 0 and self.view.last_commit is None and not _begins_anew(first):
            msg = f"the job log was cut off behind its newest commit: position={began_at}"
            raise CheckpointCorruptError(msg)
        return count

    async def read_commits(self, positions: Iterable[int]) -> Mapping[int, CommitRecord]:
        """Return the records of retained commits, those that the view has no more from the log.

        Raises:
            CheckpointCorruptError: One is missing, cannot be read, or is another than before.
            RetriableError: The service may answer later.
        """
        wanted = sorted(set(positions))
        found = {p: self.view.commit_records[p] for p in wanted if p in self.view.commit_records}
        wanted_at = {self.view.kept_at.get(p, p): p for p in wanted if p not in found}
        for at, data in await self._log.read_at(list(wanted_at)):
            record, position = _decode(at, data), wanted_at[at]
            commit = record.commit if isinstance(record, KeptRecord) else record
            is_it = link_of(data) == self._commit_links.get(position)
            if is_it and isinstance(commit, CommitRecord):
                found[position] = commit
        missing = [position for position in wanted if position not in found]
        if missing:
            error = CheckpointCorruptError(
                "a commit is missing in the job log, or another than before: "
                f"position={missing[0]} count={len(missing)}"
            )
            error.add_note(DAMAGED_LOG_HINT)
            raise error
        return dict(sorted(found.items()))

    def require_here(self) -> None:
        """Make sure that the log did not move elsewhere.

        Raises:
            ConfigError: It did; names the backend.
        """
        if self.view.moved_to is not None:
            raise ConfigError(
                f"the job log has moved: backend={self.view.moved_to}",
                key="job.log.backend",
                hint="once `statekeep migrate-log` is done with every task: set "
                f"job.log.backend={self.view.moved_to}",
            )

    def fold(self, position: int, record: Record, data: bytes) -> None:
        """Take in a record that is known to stand at ``position``, the next one, as these bytes."""
        self.view.fold(position, record)
        self._link = link_of(data)
        if isinstance(record, KeptRecord) and self.view.kept_at.get(record.position) == position:
            self._commit_links[record.position] = self._link
        if isinstance(record, CommitRecord):
            self._commit_links[position] = self._link
            if len(self._commit_links) > 2 * len(self.view.commits) + _SPARE_LINKS:
                kept = self._commit_links.keys() & self.view.commits.keys()
                self._commit_links = {p: self._commit_links[p] for p in kept}

    def _require_next(self, position: int, record: Record) -> None:
        """Make sure that a record was written behind the one before it: here, and not elsewhere."""
        if self._link and record.previous not in {"", self._link}:
            raise CheckpointCorruptError(
                f"a record of the job log does not follow the one before it: position={position}"
            )


def _decode(position: int, data: bytes) -> Record | None:
    """Read one record; None for a batch record that is damaged."""
    try:
        return decode_record(data, where=f"position={position}")
    except CheckpointCorruptError as exc:
        if is_damaged_batch(data):
            logger.error("batch record is damaged, its batch runs again: error=%s", exc)  # noqa: TRY400  # the text says it all
            return None
        exc.add_note(DAMAGED_LOG_HINT)
        raise


def _begins_anew(first: Record | None) -> bool:
    """Return whether a trimmed log begins with a reset, which leaves no commit."""
    return isinstance(first, EpochRecord) and first.is_reset

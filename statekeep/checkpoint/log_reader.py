"""Reading a job log: from bytes at positions to a `LogView`."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    CommitRecord,
    EpochRecord,
    Record,
    decode_record,
    is_damaged_batch,
)
from statekeep.errors import CheckpointCorruptError, ConfigError

logger = logging.getLogger(__name__)

_WAY_OUT: Final = "hint: put the record back from a copy of the log, or reset the job"


class LogReader:
    """Follows one `JobLog` and keeps the `LogView` of what it has read. Writes nothing.

    Used by one event loop; calls are awaited one after the other.

    Attributes:
        view: What the log amounts to. Another object takes its place when the log was trimmed
            beyond what had been read.
    """

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self.view = LogView()

    async def catch_up(self) -> Sequence[tuple[int, Record]]:
        """Fold what was written since the last call and return it, with positions.

        A damaged batch record is logged and noted in the view; the batch can be made again.

        Raises:
            CheckpointCorruptError: Any other record cannot be read, or some are missing.
            UnknownFormatError: A newer version of Statekeep has written to the log.
            RetriableError: The service may answer later; what was folded stays folded.
        """
        found: list[tuple[int, Record]] = []
        began_at = 0
        for position, data in await self._log.read(self.view.next_position):
            if position > self.view.next_position:
                self.view = LogView(next_position=position)
                began_at = position
            record = _decode(position, data)
            if record is None:
                self.view.fold_unreadable_batch(position)
            else:
                self.fold(position, record)
                found.append((position, record))
        if began_at > 0 and not self.view.commits and not _begins_anew(found):
            msg = f"the job log was cut off behind its newest commit: position={began_at}"
            error = CheckpointCorruptError(msg)
            error.add_note(_WAY_OUT)
            raise error
        return found

    async def read_commits(self, positions: Iterable[int]) -> Mapping[int, CommitRecord]:
        """Return the records of commits, those that are not in the view any more from the log.

        Raises:
            CheckpointCorruptError: One is missing, or cannot be read.
            RetriableError: The service may answer later.
        """
        wanted = sorted(set(positions))
        found = {p: self.view.commit_records[p] for p in wanted if p in self.view.commit_records}
        for position, data in await self._log.read_at([p for p in wanted if p not in found]):
            record = _decode(position, data)
            if isinstance(record, CommitRecord):
                found[position] = record
        missing = [position for position in wanted if position not in found]
        if missing:
            msg = f"a commit is missing in the job log: position={missing[0]} count={len(missing)}"
            raise CheckpointCorruptError(msg)
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

    def fold(self, position: int, record: Record) -> None:
        """Take in a record that is known to stand at ``position``, the next one."""
        self.view.fold(position, record)


def _decode(position: int, data: bytes) -> Record | None:
    """Read one record; None for a batch record that is damaged."""
    try:
        return decode_record(data, where=f"position={position}")
    except CheckpointCorruptError as exc:
        if is_damaged_batch(data):
            logger.error("batch record is damaged, its batch is run again: error=%s", exc)  # noqa: TRY400  # the text says it all
            return None
        exc.add_note(_WAY_OUT)
        raise


def _begins_anew(records: Sequence[tuple[int, Record]]) -> bool:
    """Return whether a trimmed log begins with a reset, which leaves no commit."""
    first = records[0][1] if records else None
    return isinstance(first, EpochRecord) and first.is_reset

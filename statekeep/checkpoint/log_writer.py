"""The one way to write to a job log: append at the end, and know when one is fenced (R1)."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    CommitRecord,
    EpochRecord,
    PinRecord,
    Record,
    ReleaseRecord,
    encode_record,
)
from statekeep.errors import CommitFailedError, RetriableError, TaskFencedError

logger = logging.getLogger(__name__)

_LONG: Final = 10_000
"""Records that a start reads before it says that they are many: seconds on a disk, minutes on an
object store."""


def random_nonce() -> str:
    """Return 128 random bits as hex: the default source of nonces and uids."""
    return uuid.uuid4().hex


@dataclass
class _Append:
    """One record on its way into the log; kept while it is unknown whether it landed."""

    asked: Record
    """As the caller gave it."""
    stamped: Record
    """With epoch and nonce: the same for every try, so that the record lands at most once."""
    tried: int = -1
    """The last position tried; all lower ones hold other records."""
    position: int | None = None
    """Where it landed; None as long as that is not known."""


class LogWriter:
    """Appends records to one `JobLog` and keeps the `LogView` of all that stands in it.

    One per driver (or per task in plain Python), on one event loop; calls that overlap are done
    one after the other. A writer is *fenced* once it sees an epoch newer than its own, or a floor
    at or above a position that it wrote: from then on every call raises `TaskFencedError`.

    An append may fail, or be cancelled, with its outcome unknown: the record may have landed, or
    may still. The next append settles it, as no two records share a position: afterwards `view`
    holds the first record, or it never will. Appending an equal record again continues the first
    append instead of making a second.
    """

    def __init__(self, log: JobLog, *, new_nonce: Callable[[], str] = random_nonce) -> None:
        self._log = log
        self._reader = LogReader(log)
        self._new_nonce = new_nonce
        self._own_epoch = 0
        self._fenced_by = 0
        self._unsettled: list[_Append] = []
        self._turn = asyncio.Lock()

    @property
    def view(self) -> LogView:
        """What the log amounts to, as far as this writer has read it."""
        return self._reader.view

    @property
    def epoch(self) -> int:
        """The epoch that this writer writes under; 0 before `take_over`."""
        return self._own_epoch

    async def open(self) -> LogView:
        """Probe the place and read the whole log.

        Raises:
            ConfigError: The place cannot hold a log, or the log has moved elsewhere.
            CheckpointCorruptError: A record other than a batch record cannot be read.
        """
        async with self._turn:
            await self._log.probe()
            await self._catch_up()
            self._reader.require_here()
            _warn_if_long(self.view)
            return self.view

    async def take_over(self, owner: str) -> int:
        """Begin a new epoch, fencing every older writer, and return its number.

        Of racing callers each gets an epoch of its own; the last one in the log wins and the
        others find themselves fenced at their next append. Safe to repeat after any error but
        `TaskFencedError`.

        Args:
            owner: Host and process, for people.

        Raises:
            ConfigError: The log has moved elsewhere, perhaps since `open`.
        """
        async with self._turn:
            if self._own_epoch:
                self._raise_if_fenced()
            await self._catch_up()
            while True:
                self._reader.require_here()
                epoch = self.view.epoch + 1
                record = EpochRecord(epoch=epoch, nonce=self._new_nonce(), owner=owner)
                append = _Append(asked=record, stamped=record)
                position = await self._try_place(append)
                if position is not None:
                    break
            self._own_epoch = epoch
            await self._check_floor(position)
            return epoch

    async def append(self, record: Record) -> int:
        """Append one record under the own epoch and return its position.

        The record's ``epoch`` and ``nonce`` are filled in here.

        Raises:
            TaskFencedError: A newer epoch is in the log, or the log was trimmed past the record.
            ConfigError: The log has moved elsewhere.
            CommitFailedError: A commit record, but its attempt is void.
            ValueError: A release of the current commit, or a pin of a released one.
            RetriableError: Unknown whether the record landed, see the class; or a release of a
                commit that somebody has pinned: release what is left.
        """
        async with self._turn:
            append = self._begin(record)
            position = await self._place(append)
            await self._check_floor(position)
            self._unsettled = [other for other in self._unsettled if other is not append]
            return position

    async def check_fence(self) -> None:
        """Read the end of the log, as an append would: for a writer that appends nothing now.

        Raises:
            TaskFencedError: A newer epoch is in the log.
            RetriableError: The service may answer later; the call may be repeated.
        """
        async with self._turn:
            await self._catch_up()
            self._raise_if_fenced()

    async def look(self) -> LogView:
        """Read the end of the log, whoever wrote it, and return what all of it tells by then.

        Raises:
            CheckpointCorruptError: A record other than a batch record cannot be read.
            RetriableError: The service may answer later; the call may be repeated.
        """
        async with self._turn:
            await self._catch_up()
            return self.view

    @property
    def is_trim_wanted(self) -> bool:
        """As `JobLog.is_trim_wanted`."""
        return self._log.is_trim_wanted

    async def trim(self, floor: int) -> None:
        """Drop the records below ``floor``, once clean-up is done with them.

        Raises:
            TaskFencedError: A newer epoch is in the log.
            ValueError: A retained commit needs a lower position: see `LogView.lowest_needed`.
            RetriableError: The service may answer later; the call may be repeated.
        """
        async with self._turn:
            await self._catch_up()
            self._raise_if_fenced()
            if floor > self.view.lowest_needed:
                msg = f"the log is still needed: floor={floor} lowest_needed={self.view.lowest_needed}"
                raise ValueError(msg)
            await self._log.trim(floor)
            self.view.forget_below(floor)

    async def close(self) -> None:
        """Close the log. Idempotent."""
        await self._log.close()

    def _begin(self, record: Record) -> _Append:
        """Return the append of ``record``: the unsettled one of an equal record, or a new one."""
        if not self._own_epoch:
            msg = "append before take_over"
            raise RuntimeError(msg)
        self._unsettled = [a for a in self._unsettled if not self._has_failed(a)]
        for append in self._unsettled:
            if append.asked == record:
                return append
        stamped = msgspec.structs.replace(record, epoch=self._own_epoch, nonce=self._new_nonce())
        append = _Append(asked=record, stamped=stamped)
        self._unsettled.append(append)
        return append

    def _has_failed(self, append: _Append) -> bool:
        """Whether a record can never land: another one stands at the last position tried."""
        return append.position is None and append.tried < self.view.next_position

    async def _place(self, append: _Append) -> int:
        while append.position is None:
            self._raise_if_fenced()
            self._reader.require_here()
            _raise_if_contradicted(append.stamped, self.view)
            await self._try_place(append)
        return append.position

    async def _try_place(self, append: _Append) -> int | None:
        """Try the next position; None when another record stood there, which is folded then."""
        position = append.tried = self.view.next_position
        try:
            await self._log.append(position, encode_record(append.stamped))
        except PositionTakenError as exc:
            await self._catch_up(append)
            if self.view.next_position == position:
                msg = f"the job log refuses a position that it does not show: position={position}"
                raise RetriableError(msg) from exc
        else:
            self._reader.fold(position, append.stamped)
            append.position = position
        return append.position

    async def _catch_up(self, *appends: _Append) -> None:
        """Fold what was written since, and find out where own records landed, by their nonces."""
        for position, record in await self._reader.catch_up():
            for append in (*appends, *self._unsettled):
                if append.stamped.nonce == record.nonce:
                    append.position = position

    def _raise_if_fenced(self) -> None:
        newer_epoch = max(self._fenced_by, self.view.epoch)
        if newer_epoch > self._own_epoch:
            msg = "another driver has taken over this job"
            raise TaskFencedError(msg, own_epoch=self._own_epoch, newer_epoch=newer_epoch)

    async def _check_floor(self, position: int) -> None:
        """Make sure that the record at ``position`` is not one that the log has gone past.

        Where a position was trimmed, a fenced writer can create it anew; nobody reads it.
        """
        floor = await self._log.read_floor()
        if floor >= position and floor > 0:
            self._fenced_by = max(self._own_epoch, self.view.epoch) + 1
            msg = f"the job log was trimmed past the record: position={position} floor={floor}"
            raise TaskFencedError(msg, own_epoch=self._own_epoch, newer_epoch=self._fenced_by)


def _warn_if_long(view: LogView) -> None:
    """Say which pins make the start slow, and what to do about them."""
    kept = view.next_position - view.lowest_needed
    if kept > _LONG and view.pins_of_oldest:
        logger.warning(
            "a pin keeps the job log from being trimmed, and every start reads all of it: records=%d "
            "pins=%s (make a job of it by `statekeep savepoint restore NAME --as JOB`, then drop it)",
            kept,
            ",".join(view.pins_of_oldest),
        )


def _raise_if_contradicted(record: Record, view: LogView) -> None:
    """Refuse a record that would have no effect on ``view``, which its writer should know of."""
    match record:
        case CommitRecord():
            if (record.attempt_epoch, record.attempt) in view.void_attempts:
                msg = "the attempt is void"
                raise CommitFailedError(msg, checkpoint_id=record.checkpoint_id, step="record")
        case ReleaseRecord():
            if view.last_commit_position in record.positions:
                msg = f"the current commit is kept: position={view.last_commit_position}"
                raise ValueError(msg)
            pinned = set(view.pins.values()).intersection(record.positions)
            if pinned:
                msg = f"a commit was pinned meanwhile, look again: positions={sorted(pinned)}"
                raise RetriableError(msg)
        case PinRecord():
            if record.position not in view.commits:
                msg = f"no retained commit to pin: position={record.position} name={record.name}"
                raise ValueError(msg)
        case _:
            pass

"""The one way to write to a job log: append at the end, and know when one is fenced (R1)."""

import uuid
from collections.abc import Callable

import msgspec

from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import EpochRecord, Record, decode_record, encode_record
from statekeep.errors import RetriableError, TaskFencedError


def random_nonce() -> str:
    """Return 128 random bits as hex: the default source of nonces and uids."""
    return uuid.uuid4().hex


class LogWriter:
    """Appends records to one `JobLog` and keeps the `LogView` of all that stands in it.

    One per driver (or per task in plain Python), used by one event loop; appends are awaited one
    after the other. A writer is *fenced* once it sees an epoch newer than its own, or a floor at
    or above a position that it wrote: from then on every call raises `TaskFencedError`.
    """

    def __init__(self, log: JobLog, *, new_nonce: Callable[[], str] = random_nonce) -> None:
        self._log = log
        self._new_nonce = new_nonce
        self._own_epoch = 0
        self.view = LogView()

    @property
    def epoch(self) -> int:
        """The epoch that this writer writes under; 0 before `take_over`."""
        return self._own_epoch

    async def open(self) -> LogView:
        """Probe the place and read the whole log.

        Raises:
            ConfigError: The place cannot hold a log.
            CheckpointCorruptError: A record other than a batch record cannot be read.
        """
        await self._log.probe()
        self.view.next_position = await self._log.read_floor()
        await self._catch_up()
        return self.view

    async def take_over(self, owner: str) -> int:
        """Begin a new epoch, fencing every older writer, and return its number.

        Of racing callers each gets an epoch of its own; the last one in the log wins and the
        others find themselves fenced at their next append.
        """
        while True:
            epoch = self.view.epoch + 1
            record = EpochRecord(epoch=epoch, nonce=self._new_nonce(), owner=owner)
            if await self._append_once(record):
                self._own_epoch = epoch
                await self._check_floor(self.view.next_position - 1)
                return epoch

    async def append(self, record: Record) -> int:
        """Append one record under the own epoch and return its position.

        The record's ``epoch`` and ``nonce`` are filled in here.

        Raises:
            TaskFencedError: A newer epoch is in the log, or the log was trimmed past the record.
            RetriableError: The service may answer later; repeating the call is safe only after
                `open` on a new writer, as the record may have landed.
        """
        self._check_epoch()
        stamped = msgspec.structs.replace(record, epoch=self._own_epoch, nonce=self._new_nonce())
        while not await self._append_once(stamped):
            self._check_epoch()
        position = self.view.next_position - 1
        await self._check_floor(position)
        return position

    async def trim(self, floor: int) -> None:
        """Drop the records below ``floor``; only what no retained commit needs.

        Raises:
            TaskFencedError: A newer epoch is in the log.
        """
        await self._catch_up()
        self._check_epoch()
        await self._log.trim(floor)
        for position in [p for p in self.view.released if p < floor]:
            del self.view.released[position]

    async def close(self) -> None:
        """Close the log. Idempotent."""
        await self._log.close()

    async def _append_once(self, record: Record) -> bool:
        """Try the next position; False when another record stood there, which is folded then."""
        position = self.view.next_position
        try:
            await self._log.append(position, encode_record(record))
        except PositionTakenError as exc:
            found = await self._catch_up(own_nonce=record.nonce)
            if self.view.next_position == position:
                msg = f"the job log refuses a position that it does not show: position={position}"
                raise RetriableError(msg) from exc
            return found
        self.view.fold(position, record)
        return True

    async def _catch_up(self, own_nonce: str | None = None) -> bool:
        """Fold what was written since; True if the record with ``own_nonce`` was among it.

        A retried append whose first try had landed finds its own record: that is success.
        """
        found = False
        for position, data in await self._log.read(self.view.next_position):
            record = decode_record(data, where=f"position={position}")
            self.view.fold(position, record)
            found = found or record.nonce == own_nonce
        return found

    def _check_epoch(self) -> None:
        if self.view.epoch > self._own_epoch:
            msg = "another driver has taken over this job"
            raise TaskFencedError(msg, own_epoch=self._own_epoch, newer_epoch=self.view.epoch)

    async def _check_floor(self, position: int) -> None:
        floor = await self._log.read_floor()
        if floor >= position and floor > 0:
            self.view.epoch = max(self.view.epoch, self._own_epoch + 1)
            msg = f"the job log was trimmed past the record: position={position} floor={floor}"
            raise TaskFencedError(msg, own_epoch=self._own_epoch, newer_epoch=self.view.epoch)

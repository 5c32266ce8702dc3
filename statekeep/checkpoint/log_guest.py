"""Writing to a job log beside the job's own driver, without taking the job over."""

from collections.abc import Callable

import msgspec

from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_writer import random_nonce
from statekeep.checkpoint.records import PinRecord, Record, UnpinRecord, encode_record
from statekeep.errors import ConfigError, RetriableError


class LogGuest:
    """Appends pins and their removal under the epoch of whoever reigns; fences nobody.

    That is safe for these records alone: they say nothing of batches or attempts, and where a pin
    meets the release of the same commit, the position decides for everyone. The driver finds the
    record where it wants to write its next one, and goes on after it.

    Used by one event loop; calls are awaited one after the other. The log is closed by its owner.
    """

    def __init__(self, log: JobLog, *, new_nonce: Callable[[], str] = random_nonce) -> None:
        self._log = log
        self._reader = LogReader(log)
        self._new_nonce = new_nonce

    async def pin(self, name: str, position: int, *, expires_ms: int = 0) -> None:
        """Keep the commit at ``position`` from being released, under a name.

        Pinning it again under the same name changes nothing but how long the pin holds.

        Args:
            name: Unique in the job.
            position: Of the commit record.
            expires_ms: Wall-clock milliseconds after which the job's clean-up drops the pin by
                itself; 0: never.

        Raises:
            ConfigError: There is no such commit any more, the name is another commit's, or the log
                has moved elsewhere.
            RetriableError: Unknown whether the pin landed; the call may be repeated.
        """
        await self._catch_up()
        view = self._reader.view
        other = view.pins.get(name)
        if other == position and view.pin_expiries.get(name, 0) == expires_ms:
            return
        if other is not None and other != position:
            raise _name_in_use(name, other)
        await self._append(
            PinRecord(
                epoch=0,
                nonce=self._new_nonce(),
                name=name,
                position=position,
                expires_ms=expires_ms,
            )
        )
        if self._reader.view.pins.get(name) != position:
            raise ConfigError(f"the commit is released or was never there: commit={position}")

    async def unpin(self, name: str) -> None:
        """Give a pinned commit back to retention.

        Raises:
            ConfigError: No commit has this name, or the log has moved elsewhere.
            RetriableError: Unknown whether it took effect; the call may be repeated.
        """
        await self._catch_up()
        pins = self._reader.view.pins
        if name not in pins:
            raise ConfigError(
                f"no commit is pinned under this name: name={name} names={','.join(sorted(pins))}",
                hint="`statekeep checkpoints list` shows what is pinned",
            )
        await self._append(UnpinRecord(epoch=0, nonce=self._new_nonce(), name=name))

    async def _append(self, record: PinRecord | UnpinRecord) -> None:
        """Append after the last record, and make sure that the log did not go past it."""
        position = await self._place(record)
        if await self._log.read_floor() > position:
            # Read long ago, trimmed meanwhile: the position was free again, and nobody reads it.
            raise RetriableError(f"the job log was trimmed past the record: position={position}")

    async def _place(self, record: PinRecord | UnpinRecord) -> int:
        while True:
            self._reader.require_here()
            view = self._reader.view
            position = view.next_position
            stamped = msgspec.structs.replace(record, epoch=view.epoch)
            try:
                await self._log.append(position, encode_record(stamped))
            except PositionTakenError:
                for found, other in await self._reader.catch_up():
                    if other.nonce == record.nonce:
                        return found
                    _check_name_is_free(record, other)
                if self._reader.view.next_position == position:
                    msg = f"the log refuses a position that it does not show: position={position}"
                    raise RetriableError(msg) from None
            else:
                self._reader.fold(position, stamped)
                return position

    async def _catch_up(self) -> None:
        await self._reader.catch_up()
        self._reader.require_here()
        if not self._reader.view.commits:
            raise ConfigError("the job has no commit yet")


def _check_name_is_free(wanted: PinRecord | UnpinRecord, other: Record) -> None:
    """Make sure that what landed meanwhile does not pin another commit under the same name."""
    if (
        isinstance(wanted, PinRecord)
        and isinstance(other, PinRecord)
        and other.name == wanted.name
        and other.position != wanted.position
    ):
        raise _name_in_use(wanted.name, other.position)


def _name_in_use(name: str, commit: int) -> ConfigError:
    return ConfigError(
        f"the name is in use: name={name} commit={commit}",
        hint=f"choose another one, or `statekeep checkpoints unpin {name}` first",
    )

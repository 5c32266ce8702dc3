"""The timers of one task, with the semantics of Spark's: stored by key and by time.

An entry by key is the grouping key and the time, one by time is the time and the grouping key. So a
prefix finds the timers of one key, and a scan from the front finds those that are due.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import Row

from statekeep.errors import ConfigError
from statekeep.spark.operator.changes import WRITE_KEYS
from statekeep.spark.operator.clock import (
    LAST_TIME_MS,
    TIME_BYTES,
    TimeMode,
    decode_time,
    encode_time,
)
from statekeep.spark.operator.grouping import CHUNK_KEYS
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.rows import row_maker
from statekeep.spark.operator.variables import StateAccess

MARK: Final = b"\xc0"
"""The value of entries that say all in their key: nothing, in MessagePack."""

TIMER_NAMES: Final = {TimeMode.PROCESSING: "$procTimers", TimeMode.EVENT: "$eventTimers"}
"""Names in the registry, as Spark has them; a processor's own begin with a letter."""


def timer_index(mode: TimeMode) -> str:
    """Return the name of the index by time of a mode's timers."""
    return f"{TIMER_NAMES[mode]}_byTime"


@dataclass(slots=True)
class DueTimers:
    """Timers of different keys, in the order in which they fire."""

    times_ms: list[int] = field(default_factory=list[int])
    keys: list[Row] = field(default_factory=list[Row])
    """With the names of the grouping columns, as Spark gives them to `handleExpiredTimer`."""
    key_bytes: list[bytes] = field(default_factory=list[bytes])


class Timers:
    """Registers, deletes and lists the timers of the current key, and finds those that are due.

    Changes of the current key lie over the store until the next key. Used by the thread of the
    processor alone.
    """

    def __init__(self, by_key: bytes, by_time: bytes, keys: KeyCodec, access: StateAccess) -> None:
        """Use the entries that begin with the prefixes ``by_key`` and ``by_time``."""
        self.registered = 0
        """Calls of `register`."""
        self.deleted = 0
        """Calls of `delete`, and timers that have fired: Spark counts so."""
        self._by_key = by_key
        self._by_time = by_time
        self._keys = keys
        self._key_row = row_maker(keys.schema.names)
        self._access = access
        self._key = b""
        self._changed: dict[bytes, bytes | None] = {}
        self._pending: dict[bytes, bytes | None] = {}

    def register(self, time_ms: int) -> None:
        """Add a timer to the current key; one that is there already stays as it is.

        Raises:
            ConfigError: It is no time, or no key is being processed.
        """
        self.registered += 1
        self._set(time_ms, MARK)

    def delete(self, time_ms: int) -> None:
        """Remove a timer of the current key; one that is not there is no error.

        Raises:
            ConfigError: It is no time, or no key is being processed.
        """
        self.deleted += 1
        self._set(time_ms, None)

    def remove_fired(self, time_ms: int) -> None:
        """Remove a timer of the current key that has fired, also if it was registered again."""
        self.deleted += 1
        self._set(time_ms, None)

    def list(self) -> Iterator[int]:
        """Return the times of the current key's timers as they are now, ascending.

        Raises:
            ConfigError: No key is being processed.
        """
        prefix = self._by_key + self._enter_key()
        times = {key[len(prefix) :] for key, _ in self._access.store.scan(prefix)}
        times -= self._changed.keys()
        times.update(time for time, value in self._changed.items() if value is not None)
        return map(decode_time, sorted(times))

    def flush(self) -> None:
        """Write what has changed for the keys at hand."""
        self._leave_key()
        self._key = b""
        pending, self._pending = self._pending, {}
        self._access.writer.write(pending)

    def due(self, now_ms: int) -> Iterator[DueTimers]:
        """Yield the timers up to ``now_ms`` as they are now, by time and then by key.

        No key is twice in one part: the variables hold their state for each key at hand once.
        """
        part = DueTimers()
        seen: set[bytes] = set()
        for key, _ in self._access.store.scan(self._by_time):
            time_ms = decode_time(key[len(self._by_time) :])
            if time_ms > now_ms:
                break
            encoded = key[len(self._by_time) + TIME_BYTES :]
            if encoded in seen or len(seen) == CHUNK_KEYS:
                yield part
                part = DueTimers()
                seen.clear()
            seen.add(encoded)
            part.times_ms.append(time_ms)
            part.keys.append(self._key_row(self._keys.decode(encoded)))
            part.key_bytes.append(encoded)
        if seen:
            yield part

    def _set(self, time_ms: int, value: bytes | None) -> None:
        self._enter_key()
        self._changed[_encode(time_ms)] = value
        if len(self._changed) >= WRITE_KEYS:
            self._leave_key()

    def _enter_key(self) -> bytes:
        cursor = self._access.cursor
        cursor.require_key()
        key = cursor.key_bytes[cursor.index]
        if key != self._key:
            self._leave_key()
            self._key = key
        return key

    def _leave_key(self) -> None:
        by_key, by_time, key = self._by_key, self._by_time, self._key
        for time, value in self._changed.items():
            self._pending[by_key + key + time] = value
            self._pending[by_time + time + key] = value
        self._changed.clear()
        if len(self._pending) >= WRITE_KEYS:
            pending, self._pending = self._pending, {}
            self._access.writer.write(pending)


def _encode(time_ms: Any) -> bytes:  # noqa: ANN401 - what a processor gives
    try:
        time = time_ms.__index__()
    except (AttributeError, TypeError):
        raise ConfigError(
            f"the time of a timer is not a number of milliseconds: found={time_ms!r}",
            hint="give an int, such as timerValues.getCurrentProcessingTimeInMs() + 1000",
        ) from None
    if not -LAST_TIME_MS <= time <= LAST_TIME_MS:
        raise ConfigError(f"the time of a timer is out of range: found={time_ms!r}")
    return encode_time(time)

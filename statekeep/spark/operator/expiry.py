"""Time to live: entries with the time of their end, and an index of them by that time.

The value of an entry begins with the time of its end. For a list, that is the time at which its first
items end; its items stand in runs, each with a time of its own. The index has one entry for each entry
of the variable, whose key is that time and the entry's key without the variable's id. An entry has
ended once the time of a batch, which is recorded, has reached that time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from typing_extensions import override

from statekeep.errors import CheckpointCorruptError
from statekeep.spark.operator.changes import WRITE_KEYS, ChangeWriter
from statekeep.spark.operator.clock import LAST_TIME_MS, TIME_BYTES, encode_time
from statekeep.spark.operator.codec import LIST_HEADER_BYTES, ValueCodec, list_count
from statekeep.spark.operator.evolution import split_header
from statekeep.spark.operator.timers import MARK
from statekeep.spark.operator.variables import LocalListState, StateAccess
from statekeep.stores.base import KeyValueStore

EVICTED_ENTRIES: Final = 100_000
"""Most entries of a variable that a batch of a task removes: bounds its time. The others are as
invisible, and go with the next batches."""

_LENGTH_BYTES: Final = 4
_RUN_HEADER_BYTES: Final = TIME_BYTES + _LENGTH_BYTES


class ExpiringEntries:
    """The entries of one value or map variable, as the variable sees them: those that have not ended.

    Stands between the variable and the store, in place of both the store and the writer.
    """

    def __init__(
        self,
        prefix: bytes,
        index: bytes,
        store: KeyValueStore,
        writer: ChangeWriter,
        *,
        now_ms: int,
        ttl_ms: int,
    ) -> None:
        """Wrap the entries that begin with ``prefix``, whose index begins with ``index``."""
        self._prefix = prefix
        self._index = index
        self._store = store
        self._writer = writer
        self._now = encode_time(now_ms)
        self._end = encode_time(min(now_ms + ttl_ms, LAST_TIME_MS))

    def get(self, key: bytes) -> bytes | None:
        """Return what the variable sees under ``key``."""
        return self._seen(self._store.get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return what the variable sees under each of ``keys``."""
        return [self._seen(data) for data in self._store.get_many(keys)]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield what the variable sees under the keys that begin with ``prefix``."""
        for key, data in self._store.scan(prefix):
            seen = self._seen(data)
            if seen is not None:
                yield key, seen

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write what the variable has changed, with the time of its end, and the index."""
        written: dict[bytes, bytes | None] = {}
        old = self._store.get_many(list(changes))
        for (key, data), before in zip(changes.items(), old, strict=True):
            after = None if data is None else self._stamped(data)
            if after != before:
                self._move(key[len(self._prefix) :], before, after, written)
        self._writer.write(written)

    def failing_for_good(self) -> AbstractContextManager[None]:
        """As `ChangeWriter.failing_for_good`."""
        return self._writer.failing_for_good()

    def evict(self) -> int:
        """Remove what has ended by now, the oldest first; return how many values that were."""
        removed = 0
        doomed: list[bytes] = []
        for count, (key, _) in enumerate(self._store.scan(self._index)):
            if key[len(self._index) :][:TIME_BYTES] > self._now or count == EVICTED_ENTRIES:
                break
            doomed.append(key[len(self._index) + TIME_BYTES :])
            if len(doomed) == WRITE_KEYS:
                removed += self._remove(doomed)
                doomed = []
        return removed + self._remove(doomed)

    def _remove(self, keys: Sequence[bytes]) -> int:
        removed = 0
        written: dict[bytes, bytes | None] = {}
        stored = self._store.get_many([self._prefix + key for key in keys])
        for key, data in zip(keys, stored, strict=True):
            if data is None:
                raise CheckpointCorruptError(f"index of a time to live is damaged: key={key.hex()}")
            rest, values = self._without_ended(data)
            removed += values
            self._move(key, data, rest, written)
        self._writer.write(written)
        return removed

    def _move(
        self, key: bytes, before: bytes | None, after: bytes | None, written: dict[bytes, Any]
    ) -> None:
        """Add to ``written`` what leads from one stored value to another, index included."""
        written[self._prefix + key] = after
        old_end = None if before is None else before[:TIME_BYTES]
        new_end = None if after is None else after[:TIME_BYTES]
        if old_end == new_end:
            return
        if old_end is not None:
            written[self._index + old_end + key] = None
        if new_end is not None:
            written[self._index + new_end + key] = MARK

    def _seen(self, data: bytes | None) -> bytes | None:
        """Return what the variable sees of a stored value."""
        return None if data is None or data[:TIME_BYTES] <= self._now else data[TIME_BYTES:]

    def _stamped(self, data: bytes) -> bytes:
        """Return a value of the variable as it is stored."""
        return self._end + data

    def _without_ended(
        self,
        data: bytes,  # noqa: ARG002 - a list's has several ends
    ) -> tuple[bytes | None, int]:
        """Return what is left of a stored value whose end has come, and how many values are not."""
        return None, 1


class ExpiringItems(ExpiringEntries):
    """The same of a list variable: it sees all runs of a list, and leaves out itself what has ended."""

    def run(self, data: bytes) -> bytes:
        """Return an encoded list, with the header of its schema, as a run that is written now."""
        return list_run(self._end, data)

    def live(self, data: bytes | None) -> list[bytes]:
        """Return the runs, each an encoded list, that have not ended."""
        return [items for end, items in split_runs(data or b"") if end > self._now]

    @override
    def _seen(self, data: bytes | None) -> bytes | None:
        return None if data is None else data[TIME_BYTES:]

    @override
    def _stamped(self, data: bytes) -> bytes:
        return min(end for end, _ in split_runs(data)) + data

    @override
    def _without_ended(self, data: bytes) -> tuple[bytes | None, int]:
        rest: list[bytes] = []
        removed = 0
        for end, items in split_runs(data[TIME_BYTES:]):
            if end <= self._now:
                removed += list_count(split_header(items)[1])
            else:
                rest.append(list_run(end, items))
        return (self._stamped(b"".join(rest)) if rest else None), removed


class ExpiringListState(LocalListState):
    """A list for each grouping key whose items end one by one, over `ExpiringItems`."""

    def __init__(self, name: str, prefix: bytes, codec: ValueCodec, access: StateAccess) -> None:
        super().__init__(name, prefix, codec, access)
        assert isinstance(access.store, ExpiringItems)  # noqa: S101 - the handle has made it so
        self._entries = access.store

    @override
    def exists(self) -> bool:
        return bool(self._entries.live(self._joined()))

    @override
    def _items_of(self, data: bytes | None) -> list[tuple[Any, ...]]:
        runs = self._entries.live(data)
        return [item for run in runs for item in self._codec.decode_list(run)]

    @override
    def _whole(self, items: list[bytes]) -> bytes:
        return self._entries.run(super()._whole(items))

    @override
    def _extended(self, data: bytes, items: list[bytes]) -> bytes:
        return data + self._whole(items)


def expiry_index(name: str) -> str:
    """Return the name in the registry of the index of a variable with a time to live."""
    return f"$ttl_{name}"


def with_values(data: bytes, change: Callable[[bytes], bytes], *, is_list: bool) -> bytes:
    """Return a stored entry, each of whose values or lists is changed, with the times as they are.

    Raises:
        CheckpointCorruptError: It has no time, or these are no runs.
    """
    rest = without_end(data)
    if not is_list:
        return data[:TIME_BYTES] + change(rest)
    changed = [(end, change(items)) for end, items in split_runs(rest)]
    return data[:TIME_BYTES] + b"".join(list_run(end, items) for end, items in changed)


def list_run(end: bytes, items: bytes) -> bytes:
    """Return a run of a list: the encoded time of its end, and an encoded list."""
    return end + len(items).to_bytes(_LENGTH_BYTES, "big") + items


def split_runs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the encoded time and the encoded list of each run.

    Raises:
        CheckpointCorruptError: These are no runs.
    """
    at = 0
    while at < len(data):
        start = at + _RUN_HEADER_BYTES
        end = start + int.from_bytes(data[at + TIME_BYTES : start], "big")
        if end > len(data) or end - start < LIST_HEADER_BYTES:
            raise CheckpointCorruptError("stored list with a time to live cannot be read")
        yield data[at : at + TIME_BYTES], data[start:end]
        at = end


def without_end(data: bytes) -> bytes:
    """Return what the variable has written of a stored entry, for readers.

    Raises:
        CheckpointCorruptError: It has no time.
    """
    if len(data) <= TIME_BYTES:
        raise CheckpointCorruptError("stored value with a time to live cannot be read")
    return data[TIME_BYTES:]

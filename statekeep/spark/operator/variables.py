"""Value, list and map state over a local store, with the semantics of Spark's.

In the store the key of an entry is the variable's id (2 bytes), the grouping key and, for a map,
the map's key; no encoded key begins another, so a prefix finds exactly one grouping key's map.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import get_ident
from typing import Any, ClassVar, NoReturn, Protocol, SupportsIndex

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import StringType
from typing_extensions import override

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.changes import WRITE_KEYS
from statekeep.spark.operator.codec import LIST_HEADER_BYTES, ValueCodec, list_count, list_header
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.scalars import MisfitError, as_sequence


class KeyCursor:
    """The grouping keys at hand and the one that is being processed.

    Attributes:
        key_columns: The values of the keys, column by column.
        key_bytes: The keys, encoded; empty while no key is processed.
        index: The index of the current key.
        thread: The thread that processes keys: the one that made the cursor.
    """

    __slots__ = ("_refusal", "index", "key_bytes", "key_columns", "thread")

    def __init__(
        self, refusal: str = "state is used while no grouping key is being processed"
    ) -> None:
        """Stand at no key; ``refusal`` is what `require_key` then says."""
        self._refusal = refusal
        self.thread = get_ident()
        self.leave()

    def enter(self, key_columns: list[list[Any]], key_bytes: list[bytes]) -> None:
        """Go to the first of some keys."""
        self.key_columns = key_columns
        self.key_bytes = key_bytes
        self.index = 0

    def leave(self) -> None:
        """Stand at no key."""
        self.enter([], [])

    @property
    def key(self) -> tuple[Any, ...]:
        """The current key, as given to the processor."""
        return tuple(column[self.index] for column in self.key_columns)

    def require_key(self) -> None:
        """Raise ConfigError unless a key is being processed, and by this thread.

        Another thread's use would fall to whatever key is being processed by then.
        """
        if not self.key_bytes:
            raise ConfigError(self._refusal)
        if get_ident() != self.thread:
            raise ConfigError("state is used by another thread than the processor's")


class EntryReader(Protocol):
    """What a variable reads from: the store, or a part of it."""

    def get(self, key: bytes) -> bytes | None:
        """As `KeyValueStore.get`."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As `KeyValueStore.get_many`."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `KeyValueStore.scan`."""
        ...


class EntryWriter(Protocol):
    """What a variable writes to."""

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """As `ChangeWriter.write`."""
        ...

    def failing_for_good(self) -> AbstractContextManager[None]:
        """As `ChangeWriter.failing_for_good`."""
        ...


@dataclass(frozen=True, slots=True)
class StateAccess:
    """What the variables of one run share."""

    store: EntryReader
    cursor: KeyCursor
    writer: EntryWriter
    is_refreshed: bool = False
    """Whether a value is written although it is the same: it gets a new time to live."""


class DeletedVariableError(ConfigError, PySparkRuntimeError):
    """Raised by a variable that ``deleteIfExists`` has deleted; of the class that Spark's error has."""


class LocalVariable(ABC):
    """What the runner does with every variable.

    Only the thread that runs the processor uses it, and only while a key is processed.
    """

    metric: ClassVar[str]
    """Spark's name for the number of variables of this kind."""
    operations: ClassVar[Mapping[str, str]]
    """``{method: what it does}``, in Spark's words."""

    def __init__(self, name: str, prefix: bytes, codec: ValueCodec, access: StateAccess) -> None:
        self._name = name
        self._prefix = prefix
        self._codec = codec
        self._store = access.store
        self._cursor = access.cursor
        self._writer = access.writer
        self._is_refreshed = access.is_refreshed

    @abstractmethod
    def flush(self) -> None:
        """Write what has changed for the keys at hand, and forget them."""

    def retire(self, reason: str) -> None:
        """Refuse all use from now on, with ``reason``: a processor may still have the object.

        What has not been flushed is dropped.
        """
        # At a cursor without keys nothing is loaded any more, so no call needs a check of its own.
        self._cursor = KeyCursor(f"{reason}: variable={self._name}")
        self._forget()

    def delete(self) -> None:
        """Refuse all use from now on, as Spark does after ``deleteIfExists``."""
        self.retire("state variable was deleted by deleteIfExists")
        for method, words in self.operations.items():
            vars(self)[method] = partial(self._refuse_deleted, words)

    def _refuse_deleted(self, words: str, *_: object) -> NoReturn:
        raise DeletedVariableError(
            f"Error {words}: state variable was deleted by deleteIfExists: variable={self._name}"
        )

    @abstractmethod
    def _forget(self) -> None:
        """Drop what is held of the keys at hand."""

    @override
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # A copy would keep the slots of keys that the variable has left.
        raise TypeError(f"a state variable is neither copied nor pickled: variable={self._name}")


class _Slots(LocalVariable):
    """Keeps the stored bytes of one variable, one slot for each key at hand.

    The slots are read together when the first of them is needed; a slot that is set to other
    bytes is written by `flush`.
    """

    def __init__(self, name: str, prefix: bytes, codec: ValueCodec, access: StateAccess) -> None:
        super().__init__(name, prefix, codec, access)
        self._encode = codec.encode
        self._decode = codec.decode
        self._thread = access.cursor.thread
        self._slots: list[bytes | None] | None = None
        self._store_keys: list[bytes] = []
        self._changed: set[int] = set()

    @override
    def flush(self) -> None:
        slots, self._slots = self._slots, None
        if slots is None or not self._changed:
            return
        keys = self._store_keys
        self._writer.write({keys[i]: slots[i] for i in sorted(self._changed)})
        self._changed.clear()

    @override
    def _forget(self) -> None:
        self._slots = None
        self._changed.clear()

    def _load(self) -> list[bytes | None]:
        """Read the slots. Called also to refuse a thread that may not use them."""
        self._cursor.require_key()
        prefix = self._prefix
        self._store_keys = [prefix + key for key in self._cursor.key_bytes]
        self._slots = self._store.get_many(self._store_keys)
        return self._slots

    def _set(self, data: bytes | None) -> None:
        slots = self._slots
        if slots is None or get_ident() != self._thread:
            slots = self._load()
        index = self._cursor.index
        if slots[index] != data or self._is_refreshed:
            slots[index] = data
            self._changed.add(index)

    def _misfit(self, misfit: MisfitError) -> StateSchemaError:
        return misfit_error(self._name, self._cursor, misfit)


def misfit_error(name: str, cursor: KeyCursor, misfit: MisfitError) -> StateSchemaError:
    """Return the error that says which value of which variable and key does not fit."""
    return StateSchemaError(
        f"value does not fit the state variable: variable={name} key={cursor.key!r} {misfit}"
    )


class LocalValueState(_Slots, ValueState):
    """One value for each grouping key."""

    metric = "numValueStateVars"
    operations: ClassVar[Mapping[str, str]] = {
        "exists": "checking value state exists",
        "get": "getting value state",
        "update": "updating value state",
        "clear": "clearing value state",
    }

    @override
    def exists(self) -> bool:
        slots = self._slots
        if slots is None or get_ident() != self._thread:
            slots = self._load()
        return slots[self._cursor.index] is not None

    @override
    def get(self) -> tuple[Any, ...] | None:
        slots = self._slots
        if slots is None or get_ident() != self._thread:
            slots = self._load()
        data = slots[self._cursor.index]
        return None if data is None else self._decode(data)

    @override
    def update(self, newValue: tuple[Any, ...]) -> None:
        try:
            data = self._encode(newValue)
        except MisfitError as exc:
            raise self._misfit(exc) from None
        self._set(data)

    @override
    def clear(self) -> None:
        self._set(None)


class LocalListState(_Slots, ListState):
    """A list for each grouping key, kept as one entry of the store.

    What is appended is joined to the entry when it is next read, or written.
    """

    metric = "numListStateVars"
    operations: ClassVar[Mapping[str, str]] = {
        "exists": "checking list state exists",
        "get": "getting list state",
        "put": "updating list state",
        "appendValue": "updating list state",
        "appendList": "updating list state",
        "clear": "clearing list state",
    }

    def __init__(self, name: str, prefix: bytes, codec: ValueCodec, access: StateAccess) -> None:
        super().__init__(name, prefix, codec, access)
        self._appended: dict[int, list[bytes]] = {}

    @override
    def flush(self) -> None:
        for index in list(self._appended):
            self._join(index)
        super().flush()

    @override
    def _forget(self) -> None:
        super()._forget()
        self._appended.clear()

    @override
    def exists(self) -> bool:
        return self._joined() is not None

    @override
    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._items_of(self._joined()))

    def peek(self) -> list[tuple[Any, ...]]:
        """Return what `get` would: what is written at the end does not depend on this call."""
        slots = self._slots
        if slots is None or get_ident() != self._thread:
            slots = self._load()
        index = self._cursor.index
        data, items = slots[index], self._appended.get(index)
        if items:
            data = self._whole(items) if data is None else self._extended(data, items)
        return self._items_of(data)

    def _items_of(self, data: bytes | None) -> list[tuple[Any, ...]]:
        """Return the elements of an entry as they are now."""
        return [] if data is None else self._codec.decode_list(data)

    @override
    def put(self, newState: list[tuple[Any, ...]]) -> None:
        self._set(self._whole(self._encode_all(newState)))
        self._appended.pop(self._cursor.index, None)

    @override
    def appendValue(self, newState: tuple[Any, ...]) -> None:
        self._append(self._encode_all([newState]))

    @override
    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        self._append(self._encode_all(newState))

    @override
    def clear(self) -> None:
        self._set(None)
        self._appended.pop(self._cursor.index, None)

    def _encode_all(self, values: list[tuple[Any, ...]]) -> list[bytes]:
        if as_sequence(values) is None:
            raise StateSchemaError(
                "list state takes a list of tuples: "
                f"variable={self._name} found={type(values).__name__}"
            )
        if not values:
            error = StateSchemaError(
                f"[ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] list state cannot hold no values: variable={self._name}"
            )
            error.add_note("hint: clear() makes a list empty")
            raise error
        try:
            return [self._codec.encode_item(value) for value in values]
        except MisfitError as exc:
            raise self._misfit(exc) from None

    def _append(self, items: list[bytes]) -> None:
        if self._slots is None or get_ident() != self._thread:
            self._load()
        self._appended.setdefault(self._cursor.index, []).extend(items)

    def _joined(self) -> bytes | None:
        slots = self._slots
        if slots is None or get_ident() != self._thread:
            slots = self._load()
        index = self._cursor.index
        if index in self._appended:
            self._join(index)
        return slots[index]

    def _join(self, index: int) -> None:
        assert self._slots is not None  # noqa: S101 - _append has loaded them
        items = self._appended[index]
        data = self._slots[index]
        self._slots[index] = self._whole(items) if data is None else self._extended(data, items)
        del self._appended[index]
        self._changed.add(index)

    def _whole(self, items: list[bytes]) -> bytes:
        """Return the entry of a list of encoded items."""
        return self._codec.header + list_header(len(items)) + b"".join(items)

    def _extended(self, data: bytes, items: list[bytes]) -> bytes:
        """Return an entry with encoded items appended to it."""
        before = self._codec.list_body(data)
        count = list_count(before) + len(items)
        parts = [self._codec.header, list_header(count), before[LIST_HEADER_BYTES:], *items]
        return b"".join(parts)


class LocalMapState(LocalVariable, MapState):
    """A map for each grouping key, one entry of the store for each of the map's keys.

    Entries are read when they are asked for. Changes of the current key lie over the store until
    the next key, or until there are many of them.
    """

    metric = "numMapStateVars"
    operations: ClassVar[Mapping[str, str]] = {
        "exists": "checking map state exists",
        "getValue": "getting value",
        "containsKey": "checking if map state contains key",
        "updateValue": "updating map state value",
        "iterator": "getting map state iterator",
        "keys": "getting map state keys",
        "values": "getting map state values",
        "removeKey": "removing key from map state",
        "clear": "clearing map state",
    }

    def __init__(
        self,
        name: str,
        prefix: bytes,
        key_codec: ValueCodec,
        codec: ValueCodec,
        access: StateAccess,
    ) -> None:
        super().__init__(name, prefix, codec, access)
        self._key_values = key_codec
        self._keys = KeyCodec(key_codec.schema)
        # Spark takes a text for the tuple of its characters: so one of one character is a key.
        kinds = [field.dataType for field in key_codec.schema.fields]
        self._is_text_key = len(kinds) == 1 and isinstance(kinds[0], StringType)
        self._group = b""
        self._read: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes | None] = {}
        self._pending: dict[bytes, bytes | None] = {}

    @override
    def flush(self) -> None:
        self._leave_group()
        self._group = b""
        pending, self._pending = self._pending, {}
        self._writer.write(pending)

    @override
    def _forget(self) -> None:
        self._group = b""
        self._read.clear()
        self._changed.clear()
        self._pending.clear()

    @override
    def exists(self) -> bool:
        return next(self._entries(), None) is not None

    @override
    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        data = self._get(self._map_key(key))
        return None if data is None else self._codec.make_row(self._codec.decode(data))

    def peek(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return what `getValue` would: what is written at the end does not depend on this call."""
        map_key = self._map_key(key)
        if map_key in self._changed:
            data = self._changed[map_key]
        else:
            data = self._store.get(self._group + map_key)
        return None if data is None else self._codec.make_row(self._codec.decode(data))

    @override
    def containsKey(self, key: tuple[Any, ...]) -> bool:
        return self._get(self._map_key(key)) is not None

    @override
    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        map_key = self._map_key(key)
        try:
            data = self._codec.encode(value)
        except MisfitError as exc:
            raise misfit_error(self._name, self._cursor, exc) from None
        if self._is_refreshed or self._read.get(map_key) != data:
            self._set(map_key, data)

    @override
    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        decode_key, decode = self._keys.decode, self._codec.decode
        return ((decode_key(key), decode(data)) for key, data in self._entries())

    @override
    def keys(self) -> Iterator[tuple[Any, ...]]:
        decode_key = self._keys.decode
        return (decode_key(key) for key, _ in self._entries())

    @override
    def values(self) -> Iterator[tuple[Any, ...]]:
        decode = self._codec.decode
        return (decode(data) for _, data in self._entries())

    @override
    def removeKey(self, key: tuple[Any, ...]) -> None:
        map_key = self._map_key(key)
        if self._get(map_key) is not None:
            self._set(map_key, None)

    @override
    def clear(self) -> None:
        group = self._enter_group()
        with self._writer.failing_for_good():
            self._changed.clear()
            self._read.clear()
            for key, _ in self._store.scan(group):
                self._set(key[len(group) :], None)

    def _enter_group(self) -> bytes:
        cursor = self._cursor
        cursor.require_key()
        group = self._prefix + cursor.key_bytes[cursor.index]
        if group != self._group:
            self._leave_group()
            self._group = group
        return group

    def _leave_group(self) -> None:
        self._read.clear()
        if not self._changed:
            return
        group = self._group
        self._pending.update((group + key, data) for key, data in self._changed.items())
        self._changed.clear()
        if len(self._pending) >= WRITE_KEYS:
            pending, self._pending = self._pending, {}
            self._writer.write(pending)

    def _map_key(self, key: object) -> bytes:
        self._enter_group()
        if self._is_text_key and isinstance(key, str):
            key = (key,)
        try:
            return self._keys.encode(self._key_values.decode(self._key_values.encode(key)))
        except MisfitError as exc:
            raise misfit_error(f"{self._name} (map key)", self._cursor, exc) from None

    def _get(self, map_key: bytes) -> bytes | None:
        read = self._read
        if map_key not in read:
            if len(read) >= WRITE_KEYS:
                read.clear()
                read.update(self._changed)
            read[map_key] = self._store.get(self._group + map_key)
        return read[map_key]

    def _set(self, map_key: bytes, data: bytes | None) -> None:
        self._read[map_key] = data
        self._changed[map_key] = data
        if len(self._changed) >= WRITE_KEYS:
            self._leave_group()

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the map's encoded entries as they are now, in order of key."""
        group = self._enter_group()
        stored = ((key[len(group) :], data) for key, data in self._store.scan(group))
        # The first entry is read now: from then on no write is seen by the scan.
        stored_now = chain([first] if (first := next(stored, None)) else [], stored)
        if not self._changed:
            return stored_now
        over = dict(self._changed)
        puts = sorted((key, data) for key, data in over.items() if data is not None)
        return heapq.merge((entry for entry in stored_now if entry[0] not in over), puts)

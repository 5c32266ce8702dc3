"""State from elsewhere as entries of a store: each value, end and timer exactly as it was there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql.types import StructType

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.clock import TimeMode, encode_time
from statekeep.spark.operator.codec import ValueCodec, list_header
from statekeep.spark.operator.expiry import expiry_index, list_run
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    RegisteredVariable,
    VariableKind,
    encode_registry,
    read_schema,
)
from statekeep.spark.operator.scalars import MisfitError
from statekeep.spark.operator.timers import MARK, TIMER_NAMES, timer_index

Entry: TypeAlias = tuple[bytes, bytes]
"""Key and value, as a store has them."""

_NO_SCHEMA = StructType().json()


class NewRegistry:
    """The variables of a store that is being made, numbered in the order in which they are added."""

    def __init__(self, key_schema: StructType) -> None:
        """Begin without a variable; ``key_schema`` is that of the grouping key."""
        self._key_schema = key_schema
        self._variables: dict[str, RegisteredVariable] = {}

    def add(
        self,
        name: str,
        kind: VariableKind,
        schema: StructType,
        map_key_schema: StructType | None = None,
        *,
        expires: bool = False,
    ) -> "Form":
        """Add a state variable; return what its entries are made by."""
        own = self._add(
            name,
            kind,
            schema.json(),
            None if map_key_schema is None else map_key_schema.json(),
            expires=expires,
        )
        index = self._add(expiry_index(name), "by_time", _NO_SCHEMA) if expires else None
        return Form(name, self._key_schema, own, index)

    def add_timers(self, mode: TimeMode) -> "Form":
        """Add the timers of a time mode; return what their entries are made by."""
        own = self._add(TIMER_NAMES[mode], "timers", _NO_SCHEMA)
        index = self._add(timer_index(mode), "by_time", _NO_SCHEMA)
        return Form(TIMER_NAMES[mode], self._key_schema, own, index)

    def encode(self) -> bytes:
        """Return what stands under `REGISTRY_KEY`."""
        return encode_registry(self._key_schema, self._variables)

    def _add(
        self,
        name: str,
        kind: VariableKind,
        schema: str,
        map_key_schema: str | None = None,
        *,
        expires: bool = False,
    ) -> RegisteredVariable:
        number = len(self._variables) + 1
        added = RegisteredVariable(number, kind, schema, map_key_schema, expires=expires)
        self._variables[name] = added
        return added


@dataclass(frozen=True, slots=True)
class Form:
    """What the entries of one variable, or of the timers, are made by. Can be sent to executors."""

    name: str
    key_schema: StructType
    variable: RegisteredVariable
    index: RegisteredVariable | None
    """Of timers, and of entries with a time to live: their index by time."""


class EntryMaker:
    """Makes the entries of one variable, or of the timers."""

    def __init__(self, form: Form) -> None:
        """Prepare for a form.

        Raises:
            StateSchemaError: A type in it cannot be kept in state.
        """
        self._form = form
        self._prefix = form.variable.prefix
        self._index = b"" if form.index is None else form.index.prefix
        self._keys = KeyCodec(form.key_schema)
        self._codec = ValueCodec(read_schema(form.variable.schema))
        map_keys = form.variable.map_key_schema
        self._map_values = ValueCodec(read_schema(map_keys or _NO_SCHEMA))
        self._map_keys = KeyCodec(self._map_values.schema)

    def key(self, key: Sequence[Any]) -> bytes:
        """Return a grouping key as the other methods take it."""
        return self._keys.encode(key)

    def value(self, key: bytes, value: object, end_ms: int | None) -> Iterator[Entry]:
        """Yield the entries of a value, with the time of its end if the variable has one."""
        return self._entries(key, self._encoded(key, value), end_ms)

    def map_entry(
        self, key: bytes, map_key: object, value: object, end_ms: int | None
    ) -> Iterator[Entry]:
        """Yield the entries of one key of a map."""
        # As a map's key is written by a processor: normalised.
        normal = self._map_values.decode(self._map_values.encode(map_key))
        return self._entries(key + self._map_keys.encode(normal), self._encoded(key, value), end_ms)

    def items(self, key: bytes, items: Iterable[tuple[object, int | None]]) -> Iterator[Entry]:
        """Yield the entries of a list, each of whose items may have a time of its end."""
        runs: list[tuple[int | None, list[bytes]]] = []
        for value, end_ms in items:
            if not runs or runs[-1][0] != end_ms:
                runs.append((end_ms, []))
            runs[-1][1].append(self._encoded(key, value))
        lists = [list_header(len(run)) + b"".join(run) for _, run in runs]
        ends = [end for end, _ in runs if end is not None]
        if not ends:
            return self._entries(key, b"".join(lists), None)
        timed = zip(map(encode_time, ends), lists, strict=True)
        return self._entries(key, b"".join(list_run(*run) for run in timed), min(ends))

    def timer(self, key: bytes, time_ms: int) -> Iterator[Entry]:
        """Yield the entries of a timer."""
        time = encode_time(time_ms)
        yield self._prefix + key + time, MARK
        yield self._index + time + key, MARK

    def _entries(self, key: bytes, data: bytes, end_ms: int | None) -> Iterator[Entry]:
        if end_ms is None:
            yield self._prefix + key, data
            return
        end = encode_time(end_ms)
        yield self._prefix + key, end + data
        yield self._index + end + key, MARK

    def _encoded(self, key: bytes, value: object) -> bytes:
        try:
            return self._codec.encode(value)
        except MisfitError as exc:
            raise StateSchemaError(
                "value cannot be kept: "
                f"variable={self._form.name} key={self._keys.decode(key)!r} {exc}"
            ) from None

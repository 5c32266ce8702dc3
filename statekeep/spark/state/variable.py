"""One state variable as a table: its columns, and how its stored entries become rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.clock import decode_time
from statekeep.spark.operator.expiry import split_runs, without_end
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.registry import (
    PROCESSOR_KINDS,
    RegisteredVariable,
    evolved,
    read_schema,
    simple_schema,
    stored_variables,
    value_codec,
)
from statekeep.spark.operator.timers import TIMER_NAMES
from statekeep.stores.base import KeyValueStore

KEY: Final = "key"
"""The column of the grouping key."""
PARTITION: Final = "partition_id"
"""The column of the number of the task."""

# Spark's statestore source has these names, but for the position, which it does not give.
_VALUE_COLUMNS: Final = {"value": "value", "list": "list_element", "map": "user_map_value"}
_POSITION: Final = StructField("list_position", IntegerType())
_TIME: Final = StructField("expiration_timestamp_ms", LongType())

Part = Literal["key", "within", "value", "time_ms"]
"""What of a `StateRow` a column shows."""
Shown = Part | Literal["partition", "task", "change"]
"""What a column shows: of a row, or where it is from, or what has happened to it."""


class StateRow(NamedTuple):
    """One value of a variable, one timer, or one entry of a store in plain Python, which is bytes."""

    key: tuple[Any, ...] | bytes
    within: Any = None
    """The key within a map as a tuple, or the position in a list."""
    value: tuple[Any, ...] | bytes | None = None
    """None for a timer, and where values are not asked for."""
    time_ms: int | None = None
    """When a value ends or a timer fires; None for a value without an end."""


@dataclass(frozen=True, slots=True)
class VariableTable:
    """A variable as it is read: in the form that it had last, whatever a task has of it."""

    name: str
    key_schema: str
    """JSON of the grouping key's schema."""
    declared: RegisteredVariable
    """As the task has it that changed last."""

    @classmethod
    def find(cls, store: KeyValueStore, variable: str | None) -> "VariableTable | None":
        """Return the table of a variable in a store; None if the store has no such variable.

        Args:
            store: The state of a task.
            variable: None: the timers.
        """
        key_schema, known = stored_variables(store)
        names = TIMER_NAMES.values() if variable is None else (variable,)
        for name in names:
            if name in known and (variable is None or known[name].kind in PROCESSOR_KINDS):
                return cls(name, key_schema.json(), known[name])
        return None

    @property
    def keys(self) -> StructType:
        """The schema of the grouping key."""
        return read_schema(self.key_schema)

    @property
    def columns(self) -> list[tuple[StructField, Part]]:
        """Every column but that of the task, with what it shows; all fields are nullable."""
        declared = self.declared
        columns: list[tuple[StructField, Part]] = [(StructField(KEY, _readable(self.keys)), "key")]
        if declared.kind == "list":
            columns.append((_POSITION, "within"))
        if declared.map_key_schema is not None:
            map_keys = _readable(read_schema(declared.map_key_schema))
            columns.append((StructField("user_map_key", map_keys), "within"))
        if declared.kind in _VALUE_COLUMNS:
            values = _readable(read_schema(declared.schema))
            columns.append((StructField(_VALUE_COLUMNS[declared.kind], values), "value"))
        if declared.expires or declared.kind == "timers":
            columns.append((_TIME, "time_ms"))
        return columns

    def open(self, store: KeyValueStore, *, has_values: bool) -> "StoredRows | None":
        """Return the rows of the variable in the store of a task; None if the task has none.

        Args:
            store: Only read.
            has_values: Whether values are asked for, and have to be decoded.

        Raises:
            StateSchemaError: The task has the variable in a form that cannot be read as this one.
            CheckpointCorruptError: The registry cannot be read.
        """
        found = stored_variables(store)[1].get(self.name)
        if found is None:
            return None
        one, other = _form(found), _form(self.declared)
        if one != other:
            error = StateSchemaError(
                "tasks have the state variable in different forms: "
                f"variable={self.name} task={one} newest={other}"
            )
            error.add_note(
                "hint: the program has dropped the variable and made it anew, and the task has had no"
                " batch since; leave such tasks out by a filter on partition_id"
            )
            raise error
        if found.kind in PROCESSOR_KINDS:
            found = evolved(self.name, found, read_schema(self.declared.schema))
        return StoredRows(store, KeyCodec(self.keys), found, has_values=has_values)


class StoredRows:
    """The rows of a variable in one store, in order of the encoded grouping key."""

    def __init__(
        self,
        store: KeyValueStore,
        keys: KeyCodec,
        variable: RegisteredVariable,
        *,
        has_values: bool,
    ) -> None:
        self._store = store
        self._keys = keys
        self._variable = variable
        self._has_values = has_values
        map_keys = variable.map_key_schema
        self._map_keys = None if map_keys is None else KeyCodec(read_schema(map_keys))
        self._codec = value_codec(variable)

    @property
    def schemas(self) -> dict[int, str]:
        """The schemas that entries may have, by number."""
        return self._variable.schemas

    def entries(self, front: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the stored entries whose key begins so, or all; keys without the id of the variable."""
        prefix = self._variable.prefix
        for key, data in self._store.scan(prefix + (front or b"")):
            yield key[len(prefix) :], data

    def rows(self, key: bytes, data: bytes) -> Iterator[StateRow]:
        """Yield the rows of one entry.

        Raises:
            CheckpointCorruptError: It cannot be read.
        """
        found, end = self._keys.decode_front(key)
        if self._variable.kind == "timers":
            yield StateRow(found, time_ms=decode_time(key[end:]))
        elif self._variable.kind == "list":
            yield from self._items(found, data)
        else:
            within = None if self._map_keys is None else self._map_keys.decode(key[end:])
            time_ms: int | None = None
            if self._variable.expires:
                time_ms, data = decode_time(data), without_end(data)
            value = self._codec.decode(data) if self._has_values else None
            yield StateRow(found, within, value, time_ms)

    def _items(self, key: tuple[Any, ...], data: bytes) -> Iterator[StateRow]:
        runs: Iterator[tuple[int | None, bytes]] = iter([(None, data)])
        if self._variable.expires:
            runs = ((decode_time(end), run) for end, run in split_runs(without_end(data)))
        position = 0
        for time_ms, run in runs:
            for item in self._codec.decode_list(run):
                yield StateRow(key, position, item, time_ms)
                position += 1


def _form(variable: RegisteredVariable) -> str:
    """Return what of a variable cannot be converted, for people."""
    map_key = variable.map_key_schema
    return (
        variable.kind
        + ("" if map_key is None else f" by {simple_schema(map_key)}")
        + (" with ttlDurationMs" if variable.expires else "")
    )


def _readable(schema: StructType) -> StructType:
    """Return a schema as what is read has it: all may be null, and text is text of any length.

    Fields may be null that a newer schema has added, or that are declared not null today.
    """
    return StructType([StructField(f.name, _readable_type(f.dataType)) for f in schema.fields])


def _readable_type(data_type: DataType) -> DataType:
    match data_type:
        case StructType():
            return _readable(data_type)
        case ArrayType():
            return ArrayType(_readable_type(data_type.elementType))
        case MapType():
            return MapType(_readable_type(data_type.keyType), _readable_type(data_type.valueType))
        case CharType() | VarcharType():
            return StringType()
        case _:
            return data_type

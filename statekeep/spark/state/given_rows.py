"""Rows that are given to be written: of an Arrow table, of a JSON file, or typed one by one."""

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    TimestampType,
)

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.inspection.nearest import nearest_hint
from statekeep.spark.operator.registry import read_schema
from statekeep.spark.operator.scalars import as_mapping, as_sequence
from statekeep.spark.state.key_text import from_json, in_utc, parse_fields
from statekeep.spark.state.plan import StatePlan
from statekeep.spark.state.variable import PARTITION, Part, StateRow

_POSITION: Final = "list_position"

GiveRows = Callable[[StatePlan], Iterator[StateRow]]
"""Gives the rows, once the schemas are known."""


def rows_of_table(table: pa.Table, *, is_deletion: bool) -> GiveRows:
    """Return what gives the rows of a table with the columns that `read_state` has.

    The number of the task may be there, and is not read. Where a key or a value has one field, its column
    may hold the field itself.
    """

    def give(plan: StatePlan) -> Iterator[StateRow]:
        parts = _parts(plan, table.column_names, is_deletion=is_deletion)
        for batch in table.select(list(parts)).to_batches():
            for given in batch.to_pylist():
                yield _row(plan, parts, given, _from_arrow)

    return give


def rows_of_json(text: str, *, is_deletion: bool) -> GiveRows:
    """Return what gives the rows of JSON as ``state read --json`` prints it.

    Raises:
        ConfigError: It is no array of objects.
    """
    try:
        rows = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"the file is not JSON: reason={exc}") from None
    found = as_sequence(rows)
    if found is None or not all(isinstance(row, dict) for row in found):
        raise ConfigError(
            "the file is not an array of rows", hint="write what state read --json prints"
        )

    def give(plan: StatePlan) -> Iterator[StateRow]:
        for row in found:
            parts = _parts(plan, row, is_deletion=is_deletion)
            yield _row(plan, parts, row, _from_json)

    return give


def rows_of_file(path: Path, *, is_deletion: bool) -> GiveRows:
    """Return what gives the rows of a file: ``.json``, ``.arrow`` (a stream) or ``.parquet``.

    Raises:
        ConfigError: It cannot be read as what its name says.
    """
    try:
        match path.suffix:
            case ".json":
                return rows_of_json(path.read_text(encoding="utf-8"), is_deletion=is_deletion)
            case ".parquet":
                return rows_of_table(pq.read_table(path), is_deletion=is_deletion)
            case ".arrow":
                table = pa.ipc.open_stream(path.read_bytes()).read_all()
                return rows_of_table(table, is_deletion=is_deletion)
            case _:
                raise ConfigError(
                    f"the file is of an unknown kind: file={path}",
                    hint="name it by its format: .json, .arrow or .parquet",
                )
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the file cannot be read: file={path} reason={exc}") from exc


def typed_rows(
    key: str, value: str | None, map_key: str | None = None, *, is_deletion: bool = False
) -> GiveRows:
    """Return what gives the rows that a user has typed, all as `parse_fields` takes them.

    The value of a list is a JSON array of its elements.
    """

    def give(plan: StatePlan) -> Iterator[StateRow]:
        declared = plan.variable.declared
        is_map = declared.map_key_schema is not None
        if (map_key is not None and not is_map) or (is_map and map_key is None and not is_deletion):
            raise ConfigError(
                "a map key is needed for a map, and only for a map: "
                f"variable={plan.variable.name} kind={declared.kind}",
                hint="give --map-key for a map, and leave it out otherwise",
            )
        found = parse_fields(key, plan.table.keys)
        within: Any = None
        if map_key is not None and declared.map_key_schema is not None:
            keys = read_schema(declared.map_key_schema)
            within = _fields(plan, "user_map_key", keys, parse_fields(map_key, keys, "map key"))
        schema = read_schema(declared.schema)
        if value is None:
            yield StateRow(found, within)
        elif declared.kind == "list":
            for number, item in enumerate(_items(value)):
                values = _from_json(item, _type_of(item, schema))
                yield StateRow(found, number, _fields(plan, "list_element", schema, values))
        else:
            values = parse_fields(value, schema, "value")
            yield StateRow(found, within, _fields(plan, "value", schema, values))

    return give


def _items(text: str) -> Sequence[Any]:
    try:
        items = as_sequence(json.loads(text))
    except ValueError:
        items = None
    if not items:
        raise ConfigError(
            f"the value of a list is a JSON array of its elements: value={text!r}",
            hint='such as [1, 2], or [[1, "a"], [2, "b"]] where an element has several fields; for an'
            " empty list, delete the key",
        )
    return items


def _parts(
    plan: StatePlan, names: Collection[str], *, is_deletion: bool
) -> Mapping[str, tuple[StructField, Part]]:
    """Return the columns to read of those that are given.

    Raises:
        ConfigError: One is missing, or unknown.
    """
    known: dict[str, tuple[StructField, Part]] = {
        column[0].name: column for column in plan.variable.columns
    }
    unknown = [name for name in names if name not in {*known, PARTITION}]
    if unknown:
        raise ConfigError(
            f"no such column: column={unknown[0]} columns={','.join(known)}",
            hint=nearest_hint(unknown[0], known, "name the columns as read_state does"),
        )
    if is_deletion and plan.variable.declared.kind == "list" and _POSITION in names:
        raise ConfigError(
            f"a deletion removes whole lists: variable={plan.variable.name} column={_POSITION}",
            hint="leave the column out; to delete elements, put the list without them",
        )
    optional = {"time_ms"} | ({"within"} if is_deletion else set())
    for name, (_, part) in known.items():
        is_read = not is_deletion or part == "key"
        if name not in names and is_read and part not in optional:
            raise ConfigError(
                f"a column is missing: column={name} columns={','.join(names)}",
                hint="name the columns as read_state does: " + ", ".join(known),
            )
    wanted = {"key", "within"} if is_deletion else {"key", "within", "value", "time_ms"}
    return {n: found for n, found in known.items() if n in names and found[1] in wanted}


def _row(
    plan: StatePlan,
    parts: Mapping[str, tuple[StructField, Part]],
    given: Mapping[str, Any],
    convert: Callable[[Any, DataType | None], Any],
) -> StateRow:
    values: dict[str, Any] = {}
    for name, (field, part) in parts.items():
        value = given.get(name)
        if isinstance(field.dataType, StructType):
            value = convert(value, _type_of(value, field.dataType))
            if part == "key":
                values[part] = (None,) if value is None else value
            elif value is None and part == "within":
                raise ConfigError(
                    f"a key within a map is null: variable={plan.variable.name} column={name}",
                    hint="name the entry; to delete whole maps, leave the column out",
                )
            elif value is not None or part == "value":
                values[part] = _fields(plan, name, field.dataType, value)
        else:
            values[part] = value
    return StateRow(**values)


def _fields(plan: StatePlan, what: str, schema: StructType, given: object) -> tuple[Any, ...]:
    """Return a key of a map or a value as the tuple of its fields.

    Raises:
        StateSchemaError: It has others.
    """
    names, by_name = schema.names, as_mapping(given)
    if by_name is None:
        values = as_sequence(given)
        return tuple(values) if values is not None and len(names) > 1 else _single(given)
    unknown = [name for name in by_name if name not in names]
    missing = [name for name in names if name not in by_name]
    if unknown or missing:
        error = StateSchemaError(
            f"{what} does not fit the state variable: variable={plan.variable.name} "
            f"field={(unknown or missing)[0]} expected={schema.simpleString()} "
            f"missing={','.join(missing)} unknown={','.join(unknown)}"
        )
        if unknown:
            error.add_note("hint: " + nearest_hint(unknown[0], names, "give each field once"))
        raise error
    return tuple(by_name[name] for name in names)


def _type_of(given: object, schema: StructType) -> DataType | None:
    """Return the type of what is given for some fields: all of them, or the value of the only one."""
    if as_mapping(given) is not None or len(schema.fields) != 1:
        return schema
    return schema.fields[0].dataType


def _single(given: object) -> tuple[Any, ...]:
    values = as_sequence(given)
    return tuple(values) if isinstance(given, tuple) and values is not None else (given,)


def _from_json(given: Any, data_type: DataType | None) -> Any:  # noqa: ANN401 - as the type says
    """As `from_json`, but what is no value of its type is a ConfigError."""
    try:
        return from_json(given, data_type)
    except (ValueError, ArithmeticError) as exc:
        expected = "" if data_type is None else data_type.simpleString()
        raise ConfigError(
            f"the value cannot be read: value={given!r} expected={expected} reason={exc}"
        ) from None


def _from_arrow(given: Any, data_type: DataType | None) -> Any:  # noqa: ANN401 - as the type says
    """Return a value of Arrow as state takes it: a map is a dictionary, a moment has a zone."""
    match data_type:
        case StructType() if as_mapping(given) is not None:
            known = {field.name: field.dataType for field in data_type.fields}
            return {name: _from_arrow(item, known.get(name)) for name, item in given.items()}
        case MapType() if as_sequence(given) is not None:
            kinds = (data_type.keyType, data_type.valueType)
            return {_from_arrow(k, kinds[0]): _from_arrow(v, kinds[1]) for k, v in given}
        case TimestampType() if isinstance(given, dt.datetime):
            return in_utc(given)
        case ArrayType() if as_sequence(given) is not None:
            return [_from_arrow(item, data_type.elementType) for item in given]
        case _:
            return given

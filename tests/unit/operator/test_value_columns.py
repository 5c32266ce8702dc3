"""Values that are encoded by the column have the bytes that they have one by one."""

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from statekeep.errors import CheckpointCorruptError
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.evolution import EvolvedCodec
from statekeep.spark.operator.scalars import MisfitError
from statekeep.spark.operator.value_columns import ValueColumns

_EDGES = [s * (1 << n) + d for n in (5, 7, 8, 15, 16, 31, 32, 62) for s in (1, -1) for d in (-1, 0)]


def _integers(bits: int) -> st.SearchStrategy[int]:
    last = (1 << (bits - 1)) - 1
    edges = [n for n in [*_EDGES, last, -last - 1] if -last - 1 <= n <= last]
    return st.sampled_from(edges) | st.integers(-last - 1, last)


_TEXT = (
    st.text(st.characters(codec="utf-8"), max_size=40)
    | st.sampled_from(["\x00", "a\x00b", "x" * 31, "x" * 32, "é" * 128, "x" * 255, "x" * 256])
    | st.just(65_536).map(lambda size: "y" * size)  # not in the strategy's repr, which may be shown
)
_FLOATS = st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.0])
_UTC = dt.UTC
_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "float": _FLOATS | st.floats(width=32),
    "double": _FLOATS | st.floats(),
    "string": _TEXT,
    "binary": _TEXT.map(str.encode) | st.binary(),
    "date": st.dates(),
    "timestamp": st.integers(-60_000_000_000, 250_000_000_000).map(
        lambda seconds: dt.datetime(1970, 1, 1, tzinfo=_UTC) + dt.timedelta(seconds=seconds)
    ),
    "timestamp_ntz": st.datetimes().map(lambda time: time.replace(fold=0)),
}
_VALUES = _PLAIN | {
    "decimal(10,2)": st.decimals(-99999999, 99999999, places=2),
    "array<int>": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "map<string,int>": st.dictionaries(_TEXT, st.none() | st.integers(0, 9), max_size=3),
    "struct<x: int, y: timestamp>": st.fixed_dictionaries(
        {"x": st.none() | st.integers(0, 9), "y": st.none() | _PLAIN["timestamp"]}
    ),
}


@st.composite
def _tables(
    draw: st.DrawFn, types: dict[str, st.SearchStrategy[Any]]
) -> tuple[StructType, list[tuple[Any, ...]]]:
    """Draw a schema of one to four fields, and rows of it."""
    names = draw(st.lists(st.sampled_from(sorted(types)), min_size=1, max_size=4))
    row = st.tuples(*[st.none() | types[name] for name in names])
    rows = draw(st.lists(row, min_size=1, max_size=8))
    schema = parse_schema(", ".join(f"f{i} {name}" for i, name in enumerate(names)))
    return schema, rows


def _columns(schema: StructType, rows: Sequence[Sequence[Any]]) -> list[pa.Array]:
    columns = list(zip(*rows, strict=True)) or [() for _ in schema.fields]
    return [
        pa.array(column, field.type)
        for column, field in zip(columns, arrow_schema(schema), strict=True)
    ]


@settings(deadline=None)
@given(_tables(_PLAIN) | _tables(_VALUES), st.sampled_from([0, 1, 255]), st.data())
def test_values_have_the_bytes_that_each_has_alone_and_read_back(
    table: tuple[StructType, list[tuple[Any, ...]]], number: int, data: st.DataObject
) -> None:
    schema, rows = table
    codec = EvolvedCodec(schema, number, {}) if number else ValueCodec(schema)
    columns = ValueColumns(codec)
    expected = [codec.encode(row) for row in rows]
    arrays = _columns(schema, rows)
    assert columns.encode(arrays) == expected

    absent = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    entries = [None if skip else entry for skip, entry in zip(absent, expected, strict=True)]
    found = columns.decode(entries)
    assert found.type == columns.arrow_type
    assert [value is None for value in found.to_pylist()] == absent
    kept = [entry for entry in entries if entry is not None]
    assert columns.encode(found.drop_null().flatten()) == kept
    for field, array in zip(schema.names, arrays, strict=True):
        given_values = [v for v, skip in zip(array.to_pylist(), absent, strict=True) if not skip]
        assert repr([v and v[field] for v in found.drop_null().to_pylist()]) == repr(given_values)


_OTHER_FORMS = {
    "an integer in a field of doubles": ("x double", b"\x91\x01", 1.0),
    "an integer in more bytes than it needs": ("x bigint", b"\x91\xd3" + bytes(8), 0),
    "a text in more bytes than it needs": ("x string", b"\x91\xd9\x01a", "a"),
    "fifteen fields": (", ".join(f"x{i} int" for i in range(15)), b"\x9f" + bytes(15), 0),
    "sixteen fields": (", ".join(f"x{i} int" for i in range(16)), b"\xdc\x00\x10" + bytes(16), 0),
}


@pytest.mark.parametrize("case", _OTHER_FORMS)
def test_values_of_forms_that_are_not_written_are_read(case: str) -> None:
    schema, entry, expected = _OTHER_FORMS[case]
    columns = ValueColumns(ValueCodec(parse_schema(schema)))
    usual = columns.encode(_columns(parse_schema(schema), [[expected] * schema.count("x")]))
    found = columns.decode([entry, None, *usual])
    first, last = found[0].as_py(), found[2].as_py()
    assert first == last
    assert set(first.values()) == {expected}


@settings(deadline=None)
@given(st.sampled_from(sorted(_PLAIN)), st.data())
@example("string", None)
def test_a_damaged_value_is_an_error_or_a_value_that_one_alone_reads_too(
    type_name: str, data: st.DataObject | None
) -> None:
    schema = parse_schema(f"a {type_name}, b int, c string")
    codec = ValueCodec(schema)
    if data is None:
        entry = codec.encode(("x" * 40, 1, "y"))[:-3]
    else:
        whole = codec.encode((data.draw(_PLAIN[type_name]), 1, "y"))
        at = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(1, len(whole)))
        entry = (whole[:at] + bytes([byte]) + whole[at + 1 :])[:cut]
    columns = ValueColumns(codec)
    beside = codec.encode((None, 2, "z"))
    try:
        alone = codec.decode(entry)
    except CheckpointCorruptError:
        with pytest.raises(CheckpointCorruptError):
            columns.decode([entry, beside])
    else:
        found = columns.decode([entry, beside]).to_pylist()
        assert (found[0]["b"], found[0]["c"]) == alone[1:]
        assert found[1] == {"a": None, "b": 2, "c": "z"}


@pytest.mark.parametrize(("type_name", "stored"), [("date", 1 << 30), ("timestamp", 1 << 60)])
def test_a_time_that_python_does_not_have_is_damage(type_name: str, stored: int) -> None:
    codec = ValueCodec(parse_schema(f"x {type_name}"))
    entries = codec.encode_stored([(stored,)])
    with pytest.raises(CheckpointCorruptError):
        ValueColumns(codec).decode(entries)


@pytest.mark.parametrize("type_name", ["date", "timestamp", "decimal(4,2)"])
def test_what_python_cannot_read_again_is_refused(type_name: str) -> None:
    columns = ValueColumns(ValueCodec(parse_schema(f"x {type_name}")))
    kind = columns.arrow_type.field(0).type
    array = {
        "date": lambda: pa.array([5_000_000], pa.int32()).cast(kind),
        "timestamp": lambda: pa.array([1 << 62], pa.int64()).cast(kind),
        "decimal(4,2)": lambda: pa.array([Decimal("99.99")], pa.decimal128(5, 2)),
    }[type_name]()
    if type_name.startswith("decimal"):
        assert columns.encode([array]) == [b"\x91\xa599.99"]
    else:
        with pytest.raises((MisfitError, ValueError, OverflowError)):
            columns.encode([array])


def test_no_rows_have_no_bytes_and_no_values() -> None:
    schema = parse_schema("a bigint, b string")
    columns = ValueColumns(ValueCodec(schema))
    empty = _columns(schema, [])
    assert columns.encode(empty) == []
    assert columns.decode([]).to_pylist() == []
    assert columns.decode([None, None]).to_pylist() == [None, None]

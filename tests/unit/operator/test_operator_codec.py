import datetime as dt
import math
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    CharType,
    StructField,
    StructType,
    VarcharType,
    VariantVal,
    YearMonthIntervalType,
)

from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.spark.operator.codec import ValueCodec, list_count, list_header
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.scalars import MisfitError
from statekeep.spark.releases import RELEASE

HAS_TIMES = pytest.mark.skipif(RELEASE < (4, 1), reason="Spark 4.0 has no times of day")


def codec(schema: str) -> ValueCodec:
    return ValueCodec(parse_schema(schema))


def round_trip(schema: str, value: Any) -> Any:
    one = codec(schema)
    return one.decode(one.encode(value))


_TEXT = st.text(st.characters(codec="utf-8"))
_CASES = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "string": _TEXT,
    "binary": st.binary(),
    "decimal(10,2)": st.decimals(-99999999, 99999999, places=2),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2100, 1, 1)),  # noqa: DTZ001 - without a zone
    "array<int>": st.lists(st.none() | st.integers(0, 9)),
    "map<string,int>": st.dictionaries(_TEXT, st.none() | st.integers(0, 9)),
    "interval day to second": st.timedeltas(dt.timedelta(-(10**8)), dt.timedelta(10**8)),
}


@pytest.mark.parametrize("type_name", _CASES)
def test_every_value_that_fits_reads_back_as_itself(type_name: str) -> None:
    one = codec(f"a {type_name}, b {type_name}")

    @settings(deadline=None)
    @given(st.tuples(st.none() | _CASES[type_name], _CASES[type_name]))
    def check(value: tuple[Any, Any]) -> None:
        assert one.decode(one.encode(value)) == value

    check()


def test_structs_come_back_as_rows() -> None:
    (value,) = round_trip("s struct<x: int, y: struct<z: string>>", ((1, ("q",)),))
    assert value == Row(x=1, y=Row(z="q"))
    assert value.y.z == "q"


def test_structs_are_taken_from_dicts_and_rows() -> None:
    assert round_trip("s struct<x: int, y: string>", ({"y": "q"},)) == ((None, "q"),)
    assert round_trip("s struct<x: int, y: string>", (Row(x=1, y="q"),)) == ((1, "q"),)


@pytest.mark.parametrize("value", [Row(n=1, s=2), [1, 2], (np.int64(1), np.int32(2))])
def test_rows_lists_and_numpy_scalars_are_taken(value: Any) -> None:
    result = round_trip("n long, s long", value)
    assert result == (1, 2)
    assert all(type(item) is int for item in result)


def test_integers_are_taken_for_doubles() -> None:
    (value,) = round_trip("x double", (3,))
    assert type(value) is float
    assert value == 3.0


def test_nan_and_infinity_are_kept() -> None:
    nan, infinity = round_trip("x double, y double", (math.nan, math.inf))
    assert math.isnan(nan)
    assert infinity == math.inf


def test_a_decimal_is_rounded_half_up_to_its_scale_as_in_spark() -> None:
    assert round_trip("d decimal(5,2)", (Decimal("1.255"),)) == (Decimal("1.26"),)
    assert str(round_trip("d decimal(5,2)", (1,))[0]) == "1.00"


def test_a_float_is_rounded_to_32_bits_as_in_spark() -> None:
    assert round_trip("g float", (0.1,)) == (0.10000000149011612,)


def test_an_aware_timestamp_comes_back_naive_in_local_time() -> None:
    instant = dt.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    (value,) = round_trip("t timestamp", (instant,))
    assert value.tzinfo is None
    assert value.astimezone(dt.UTC) == instant


def test_not_a_time_is_null() -> None:
    assert round_trip("t timestamp", (pd.NaT,)) == (None,)


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_berlin")
def test_times_of_the_hour_that_comes_twice_stay_apart() -> None:
    values, keys = codec("t timestamp"), KeyCodec(parse_schema("t timestamp"))
    first = dt.datetime(2020, 10, 25, 0, 30, tzinfo=dt.UTC)
    local: list[Any] = []
    for instant in (first, first + dt.timedelta(hours=1)):
        data = values.encode((instant,))
        read = values.decode(data)
        assert values.encode(read) == data
        assert keys.encode(read) == keys.encode((instant,))
        local.append(read)
    assert local == [(dt.datetime(2020, 10, 25, 2, 30),)] * 2  # noqa: DTZ001 - that hour


@pytest.mark.usefixtures("_berlin")
@pytest.mark.parametrize("year", [dt.MINYEAR, dt.MAXYEAR])
def test_a_time_that_has_no_local_time_is_refused(year: int) -> None:
    ahead = dt.timezone(dt.timedelta(hours=14 if year == dt.MINYEAR else -12))
    time = dt.datetime(year, 1 if year == dt.MINYEAR else 12, 1, tzinfo=ahead)
    codec("t timestamp").encode((time.replace(day=20),))
    with pytest.raises(MisfitError, match=r"field=t declared=timestamp found=.* out of range"):
        codec("t timestamp").encode((time.replace(day=1 if year == dt.MINYEAR else 31, hour=23),))


@pytest.mark.parametrize(
    ("schema", "value", "field", "found"),
    [
        ("a long, b string", ("str", "x"), "a", "str"),
        ("a long", (1.9,), "a", "float"),
        ("a long", (True,), "a", "bool"),
        ("a long", (2**63,), "a", "out of range"),
        ("a tinyint", (128,), "a", "out of range"),
        ("a boolean", (1,), "a", "int"),
        ("a string", (5,), "a", "int"),
        ("a string", (Decimal(1),), "a", "Decimal"),
        ("a string", (uuid.UUID(int=1),), "a", "UUID"),
        ("a string", (b"x",), "a", "bytes"),
        ("a binary", ("x",), "a", "str"),
        ("a date", (dt.datetime(2020, 1, 1, tzinfo=dt.UTC),), "a", "datetime"),
        ("a timestamp", (dt.date(2020, 1, 1),), "a", "date"),
        ("a double", ("1",), "a", "str"),
        ("a variant", ({"a": 1},), "a", "dict"),
        pytest.param("a time", (dt.time(1, tzinfo=dt.UTC),), "a", "time 01:00:00", marks=HAS_TIMES),
        pytest.param("a time", (dt.timedelta(1),), "a", "timedelta", marks=HAS_TIMES),
        ("a float", (1e300,), "a", "out of range"),
        ("a decimal(3,1)", (Decimal("99.99"),), "a", "out of range"),
        ("a decimal(3,1)", (1.5,), "a", "float"),
        ("a int not null", (None,), "a", "NoneType"),
        ("a double", (2**53 + 1,), "a", "too many digits"),
        ("a interval day to second", (dt.timedelta.max,), "a", "out of range"),
        ("a map<float,int>", ({0.1: 1, 0.10000000149011612: 2},), "a.key", "once rounded"),
        ("a array<int>", ([1, "x"],), "a[]", "str"),
        ("a array<int>", ({1},), "a", "set"),
        ("a map<string,int>", ({"k": "v"},), "a.value", "str"),
        ("a struct<x: int>", (("q",),), "a.x", "str"),
        ("a struct<x: int>", ({"y": 1},), "a", "dict"),
        ("a struct<x: int>", ((1, 2),), "a", "2 values for 1 fields"),
        ("a long, b long", (1,), "*", "1 values for 2 fields"),
        ("a long", (1, 2), "*", "2 values for 1 fields"),
        ("a long", 5, "*", "int"),
        ("a long", {"a": 1}, "*", "dict"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(
    schema: str, value: Any, field: str, found: str
) -> None:
    with pytest.raises(MisfitError) as caught:
        codec(schema).encode(value)
    assert (caught.value.field or "*") == field
    assert found in str(caught.value)


def test_foreign_bytes_are_corruption() -> None:
    with pytest.raises(CheckpointCorruptError):
        codec("a long").decode(codec("a string").encode(("x",)))
    with pytest.raises(CheckpointCorruptError):
        codec("a long").decode(b"")


def test_a_type_that_state_cannot_hold_is_named() -> None:
    months = YearMonthIntervalType()
    with pytest.raises(StateSchemaError, match=r"field=v type=interval year to month"):
        ValueCodec(StructType([StructField("v", months)]))
    with pytest.raises(StateSchemaError, match=r"field=v\[\] type=interval year to month"):
        ValueCodec(StructType([StructField("v", ArrayType(months))]))


@pytest.mark.parametrize("key", ["array<int>", "map<int,int>", "struct<x: int, y: array<int>>"])
def test_a_map_whose_key_python_cannot_hash_is_refused(key: str) -> None:
    with pytest.raises(StateSchemaError, match=r"field=m.key type="):
        codec(f"m map<{key},int>")


def test_texts_with_a_length_are_texts() -> None:
    one = ValueCodec(StructType([StructField("a", CharType(2)), StructField("b", VarcharType(2))]))
    assert one.decode(one.encode(("x", "long"))) == ("x", "long")
    with pytest.raises(MisfitError, match=r"field=b declared=varchar\(2\) found=int"):
        one.encode(("x", 1))


@settings(deadline=None)
@given(st.binary(), st.binary(min_size=1))
def test_a_variant_reads_back_as_itself(value: bytes, metadata: bytes) -> None:
    one = codec("v variant, many array<variant>")
    given = VariantVal(value, metadata)
    first, many = one.decode(one.encode((given, [given, None])))
    assert (first.value, first.metadata) == (value, metadata)
    assert [None if v is None else v.value for v in many] == [value, None]


@HAS_TIMES
@settings(deadline=None)
@given(st.times(), st.integers(0, 6))
def test_a_time_has_the_digits_of_its_type_or_is_refused(time: dt.time, digits: int) -> None:
    schema = f"t time({digits})"
    if time.microsecond % 10 ** (6 - digits):
        with pytest.raises(MisfitError, match=rf"field=t declared=time\({digits}\) found=time "):
            codec(schema).encode((time,))
    else:
        assert round_trip(schema, (time,)) == (time,)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.none() | _TEXT)))
def test_joined_values_under_a_header_are_a_list(values: list[tuple[int, str | None]]) -> None:
    one = codec("a int, b string")
    data = list_header(len(values)) + b"".join(map(one.encode, values))
    assert one.decode_list(data) == values
    assert list_count(data) == len(values)

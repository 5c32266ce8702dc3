import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructField, StructType

from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.releases import RELEASE

_TEXT = st.text(st.sampled_from("\x00\x01\xffa\U0001f600") | st.characters(codec="utf-8"))
_CASES = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False).map(lambda x: x + 0.0),
    "string": _TEXT,
    "binary": st.binary() | st.lists(st.sampled_from(b"\x00\xff\x01")).map(bytes),
    "decimal(38,4)": st.decimals(-(10**30), 10**30, places=4),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2100, 1, 1)),  # noqa: DTZ001 - without a zone
    "array<int>": st.lists(st.none() | st.integers(-9, 9), max_size=4),
    "array<array<string>>": st.lists(st.lists(st.none() | _TEXT, max_size=3), max_size=3),
    "struct<x: int, y: string>": st.tuples(st.none() | st.integers(0, 9), st.none() | _TEXT),
}
if RELEASE >= (4, 1):
    _CASES["time"] = st.times()


def _rank(value: Any) -> Any:
    """Order as Spark's: null before all, structs field by field, text as its UTF-8 bytes."""
    if value is None:
        return (0,)
    if isinstance(value, tuple | list):
        return (1, tuple(map(_rank, value)))
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("type_name", _CASES)
def test_keys_read_back_and_keep_their_order(type_name: str) -> None:
    codec = KeyCodec(parse_schema(f"a {type_name}, b {type_name}"))
    one = st.none() | _CASES[type_name]
    pairs = st.tuples(one, one)

    @settings(deadline=None)
    @given(pairs, pairs)
    def check(left: tuple[Any, Any], right: tuple[Any, Any]) -> None:
        left_bytes, right_bytes = codec.encode(left), codec.encode(right)
        assert codec.decode(left_bytes) == left
        assert (left_bytes == right_bytes) == (left == right)
        assert (left_bytes < right_bytes) == (_rank(left) < _rank(right))
        if left != right:
            assert not right_bytes.startswith(left_bytes)

    check()


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | _TEXT, st.none() | st.integers(0, 9))))
def test_columns_encode_as_single_keys_do(keys: list[tuple[str | None, int | None]]) -> None:
    codec = KeyCodec(parse_schema("a string, b int"))
    columns: list[list[Any]] = [[key[i] for key in keys] for i in range(2)]
    assert codec.encode_columns(columns) == [codec.encode(key) for key in keys]


def test_zero_has_one_sign_and_nan_one_form_that_comes_last() -> None:
    codec = KeyCodec(parse_schema("x double"))
    assert codec.encode((-0.0,)) == codec.encode((0.0,))
    assert codec.encode((math.nan,)) == codec.encode((-math.nan,))
    assert codec.encode((math.nan,)) > codec.encode((math.inf,))


def test_bytes_that_are_no_array_are_damage() -> None:
    codec = KeyCodec(parse_schema("a array<int>"))
    for data in (b"\x01\x02", b"\x01", b"\x01\x01\x00"):
        with pytest.raises(CheckpointCorruptError):
            codec.decode(data)


def test_a_struct_may_be_given_as_a_dict_as_arrow_does() -> None:
    codec = KeyCodec(parse_schema("s struct<x: int, y: string>"))
    assert codec.encode(({"x": 1, "y": "q"},)) == codec.encode(((1, "q"),))
    assert codec.decode(codec.encode(((1, "q"),))) == (Row(x=1, y="q"),)


def test_decimals_of_the_largest_precision_keep_all_digits() -> None:
    codec = KeyCodec(parse_schema("d decimal(38,0)"))
    value = Decimal("9" * 38)
    assert codec.decode(codec.encode((value,))) == (value,)
    assert codec.decode(codec.encode((-value,))) == (-value,)


@pytest.mark.parametrize("type_name", ["map<int,int>", "variant"])
def test_a_type_without_order_is_refused_by_name(type_name: str) -> None:
    with pytest.raises(StateSchemaError, match=f"field=a type={type_name}"):
        KeyCodec(parse_schema(f"a {type_name}"))


def test_a_collated_string_is_refused() -> None:
    with pytest.raises(StateSchemaError, match="field=a"):
        KeyCodec(StructType([StructField("a", StringType("UTF8_LCASE"))]))


@pytest.mark.parametrize(
    "data", [b"", b"\x02", b"\x01", b"\x01abc", b"\x01a\x00\x00x", b"\x01a\x00"]
)
def test_bytes_that_are_no_key_are_corruption(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        KeyCodec(parse_schema("a string")).decode(data)

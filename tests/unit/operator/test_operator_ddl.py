import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekeep.errors import StateSchemaError
from statekeep.spark.operator import ddl
from statekeep.spark.operator.ddl import parse_schema


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("n long, s bigint", "struct<n:bigint,s:bigint>"),
        ("struct<a: int, b: string>", "struct<a:int,b:string>"),
        ("`a b` DECIMAL(5,2), c dec, d numeric(3)", None),
        ("m map<string, array<struct<x: int>>>", "struct<m:map<string,array<struct<x:int>>>>"),
        ("t timestamp_ntz, u timestamp, d date", "struct<t:timestamp_ntz,u:timestamp,d:date>"),
        ("c varchar(10), i interval day to second", None),
        (
            "a interval hour to minute, b interval day",
            "struct<a:interval hour to minute,b:interval day>",
        ),
    ],
)
def test_spark_ddl_is_read(text: str, simple: str | None) -> None:
    parsed = parse_schema(text)
    assert simple is None or parsed.simpleString() == simple


def test_not_null_and_comment_are_read() -> None:
    assert parse_schema("a long NOT NULL COMMENT 'x, y', `b``c` string") == StructType(
        [StructField("a", LongType(), nullable=False), StructField("b`c", StringType())]
    )


def test_a_struct_is_returned_as_it_is() -> None:
    schema = StructType([StructField("a", LongType())])
    assert parse_schema(schema) is schema


@pytest.mark.parametrize(
    "text",
    [
        "n",
        "n lnog",
        "a int,",
        "a int b",
        "a int; b int",
        "a array<int",
        "a interval second to day",
        "a interval year",
    ],
)
def test_text_that_is_no_schema_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(StateSchemaError, match="schema cannot be read") as caught:
        parse_schema(text)
    assert repr(text) in str(caught.value)


def test_times_of_day_are_unknown_to_spark_4_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddl, "RELEASE", (4, 0))
    with pytest.raises(StateSchemaError, match=r"unknown type.*near='time'"):
        parse_schema("a time(3)")

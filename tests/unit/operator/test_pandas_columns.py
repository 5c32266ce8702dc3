"""Columns of frames as they are made before PySpark 4.2 are what Spark itself makes from 4.2 on."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from statekeep.spark.operator import pandas_columns
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.releases import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (4, 2), reason="nothing to compare with")

ZONE = "America/New_York"
NOON = dt.datetime(2026, 11, 1, 12, 0, 0, 7, tzinfo=dt.UTC)
TYPES: list[tuple[str, list[Any]]] = [
    ("bigint", [1, None, 2]),
    ("tinyint", [1, 2, 3]),
    ("double", [1.5, None, float("nan")]),
    ("boolean", [True, None, False]),
    ("string", ["a", None, ""]),
    ("binary", [b"a", None, b""]),
    ("date", [dt.date(2026, 1, 2), None, dt.date(1, 1, 1)]),
    ("timestamp", [NOON, None, NOON.replace(hour=5)]),
    ("timestamp_ntz", [NOON.replace(tzinfo=None), None, NOON.replace(year=1969, tzinfo=None)]),
    ("decimal(9,2)", [Decimal("1.25"), None, Decimal("-3.00")]),
    ("interval day to second", [dt.timedelta(1), None, dt.timedelta(microseconds=1)]),
    ("array<bigint>", [[1, None], None, []]),
    ("map<string,bigint>", [{"a": 1}.items(), None, {}.items()]),
    ("struct<a:bigint,t:timestamp>", [{"a": 1, "t": NOON}, None, {"a": None, "t": None}]),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[kind for kind, _ in TYPES])
def test_a_column_goes_to_a_frame_and_back_as_in_the_releases_that_follow(
    kind: str, values: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = parse_schema(f"v {kind}")
    types = arrow_schema(schema)
    if kind == "timestamp":  # Spark's workers get times in the zone of the session
        types = pa.schema([("v", pa.timestamp("us", ZONE))])
    rows = pa.record_batch([pa.array(map(_plain, values), types.field(0).type)], schema=types)

    def there_and_back() -> tuple[pd.Series, pa.Array]:
        (series,) = pandas_columns.to_pandas(rows, ZONE)
        back = pandas_columns.from_pandas(
            series, schema[0], types.field(0).type, ZONE, is_int_taken_for_decimal=False
        )
        return series, back

    expected, expected_back = there_and_back()
    monkeypatch.setattr(pandas_columns, "_HAS_CONVERSION", False)
    found, back = there_and_back()
    pd.testing.assert_series_equal(found, expected)
    assert back.equals(expected_back)
    assert back.type == expected_back.type


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, type({}.items())) else value


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_whole_number_is_taken_for_a_decimal_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, *, is_taken: bool
) -> None:
    schema = parse_schema("v decimal(9,2)")

    def convert() -> Any:
        try:
            return pandas_columns.from_pandas(
                pd.Series([1, 2]),
                schema[0],
                pa.decimal128(9, 2),
                ZONE,
                is_int_taken_for_decimal=is_taken,
            )
        except (pa.ArrowException, TypeError, ValueError):
            return "refused"

    expected = convert()
    monkeypatch.setattr(pandas_columns, "_HAS_CONVERSION", False)
    assert convert() == expected

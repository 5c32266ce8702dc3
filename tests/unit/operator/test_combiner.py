"""Rows that are combined before the shuffle: sums, digests and counts are those of the rows before."""

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import record_batch
from pyspark.sql.types import DoubleType, LongType, ShortType, StructType

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator import combiner as module
from statekeep.spark.operator.combiner import ROWS_COLUMN, Combiner
from statekeep.spark.operator.ddl import parse_schema

ROWS = parse_schema("key string, v int, w float, s smallint, t timestamp, x string")
DIGEST = "digest"
_ROW = st.tuples(
    st.none() | st.sampled_from("abc"),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


def batch(rows: list[tuple[Any, Any, int]]) -> pa.RecordBatch:
    return record_batch(rows, f"key string, v int, {DIGEST} long")


def combine(combined: dict[str, tuple[str, str]], *batches: pa.RecordBatch) -> list[Any]:
    combiner = Combiner.of(combined, parse_schema("key string, v int"), ("key",))
    found = list(combiner.combine(iter(batches), DIGEST))
    assert all(b.schema.names == [*combiner.schema.names, DIGEST, ROWS_COLUMN] for b in found)
    return [row for b in found for row in b.to_pylist()]


@settings(deadline=None)
@given(st.lists(st.lists(_ROW, max_size=8), max_size=4), st.sampled_from([1, 3, 1000]))
def test_combined_rows_say_what_the_rows_said(
    batches: list[list[tuple[Any, Any, int]]], most_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_ROWS", most_rows)
        found = combine(
            {"n": ("*", "count"), "some": ("v", "count"), "v": ("v", "sum"), "least": ("v", "min")},
            *map(batch, batches),
        )
    expected: dict[Any, list[Any]] = defaultdict(lambda: [0, 0, None, None, 0])
    for key, v, digest in (row for rows in batches for row in rows):
        of_key = expected[key]
        of_key[0] += 1
        of_key[4] = (of_key[4] + digest) % (1 << 64)
        if v is not None:
            of_key[1] += 1
            of_key[2] = v + (of_key[2] or 0)
            of_key[3] = v if of_key[3] is None else min(v, of_key[3])
    seen: dict[Any, list[Any]] = defaultdict(lambda: [0, 0, None, None, 0])
    for row in found:
        of_key = seen[row["key"]]
        assert row["n"] == row[ROWS_COLUMN]
        of_key[0] += row["n"]
        of_key[1] += row["some"]
        of_key[4] = (of_key[4] + row[DIGEST]) % (1 << 64)
        if row["v"] is not None:
            of_key[2] = row["v"] + (of_key[2] or 0)
            of_key[3] = row["least"] if of_key[3] is None else min(row["least"], of_key[3])
    assert seen == expected
    if most_rows == 1000:
        assert len(found) == len(expected)


def test_columns_have_the_types_of_sparks_aggregates() -> None:
    combined = {"a": ("v", "sum"), "b": ("w", "sum"), "c": ("s", "max"), "d": ("x", "count")}
    schema = Combiner.of(combined, ROWS, ("key",)).schema
    assert [type(field.dataType) for field in schema.fields[1:]] == [
        LongType,
        DoubleType,
        ShortType,
        LongType,
    ]


@pytest.mark.parametrize(
    ("combined", "words"),
    [
        ({"a": ("x", "sum")}, "combined=a column=x found=sum type=string"),
        ({"a": ("t", "sum")}, "type=timestamp"),
        ({"a": ("v", "mean")}, "found=mean"),
        ({"a": ("*", "sum")}, r"column=\* found=sum"),
        ({"a": ("y", "count")}, "not in the stream"),
        ({"key": ("v", "sum")}, "names of their own"),
        ({"a": ("v", "sum"), "A": ("v", "max")}, "names of their own: columns=key,a,A"),
        ({"Key": ("v", "sum")}, "names of their own"),
        ({"_statekeep_rows": ("v", "sum")}, "reserved"),
        ({"a": "v"}, r"a column and a fold: combined=a found='v'"),
        ({"a": ("v",)}, r"combined=a found=\('v',\)"),
        ({"a": None}, "combined=a found=None"),
    ],
)
def test_what_cannot_be_combined_is_refused_by_name(combined: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Combiner.of(combined, ROWS, ("key",))


def test_a_stream_with_a_column_of_a_reserved_name_is_refused() -> None:
    rows = StructType([*ROWS.fields]).add("_statekeep_digest", LongType())
    with pytest.raises(ConfigError, match="reserved: columns=_statekeep_digest"):
        Combiner.of({"a": ("v", "sum")}, rows, ("key",))


def test_a_sum_that_does_not_fit_is_an_error() -> None:
    combiner = Combiner.of({"s": ("v", "sum")}, parse_schema("key string, v long"), ("key",))
    last = np.iinfo(np.int64).max
    rows = record_batch([("a", last, 0), ("a", 1, 0)], f"key string, v long, {DIGEST} long")
    with pytest.raises(StateSchemaError, match="column=s found=sum out of range"):
        list(combiner.combine(iter([rows]), DIGEST))

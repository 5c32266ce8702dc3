"""Grouping keys of all types on our runtime, and beside Spark's own operator in the same session."""

import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import needs_structs_in_structs_on_spark
from processors import KeysSeen, KeysSeenOfFrames
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from test_rescale import KEY_TYPES, random_key

import statekeep as sk
from statekeep.spark.operator.columns import arrow_schema

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

OUTPUT = "what string, key string, n long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "America/New_York",
}
Rows = list[tuple[str, str, int]]
Compare = Callable[..., tuple[list[Rows], list[Rows]]]


@pytest.fixture
def compare(spark: SparkSession, tmp_path: Path) -> Iterator[Compare]:
    """Return a call that gives the rows of each batch, of ours and of Spark's."""
    before = {name: spark.conf.get(name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)

    def run(keys: StructType, batches: list[Any], *, is_ours: bool, is_pandas: bool) -> list[Rows]:
        root = tmp_path / ("ours" if is_ours else "spark")
        (root / "in").mkdir(parents=True)
        schema = StructType([*keys.fields, StructField("v", LongType())])
        seen: list[Rows] = []
        settings = {"job.name": "keys", "job.logged.store.base.dir": str(root / "local")}
        for number, rows in enumerate(batches):
            _write(root / "in" / f"{number}.parquet", rows, schema, number)
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            data: Any = reader.parquet(str(root / "in")).groupBy(*keys.names)
            if is_ours:
                data = sk.grouped(data, settings)
            mode = "transformWithStateInPandas" if is_pandas else "transformWithState"
            processor = KeysSeenOfFrames() if is_pandas else KeysSeen()
            frame = getattr(data, mode)(processor, OUTPUT, "Update", "ProcessingTime")
            writer = frame.writeStream.outputMode("update").foreachBatch(
                lambda frame, _: seen.append(sorted(map(tuple, frame.collect())))
            )
            writer = writer.option("checkpointLocation", str(root / "checkpoint"))
            writer.trigger(once=True).start().awaitTermination()
        return [rows for rows in seen if rows]

    yield lambda keys, batches, is_pandas=False: (
        run(keys, batches, is_ours=True, is_pandas=is_pandas),
        run(keys, batches, is_ours=False, is_pandas=is_pandas),
    )
    for name, old in before.items():
        spark.conf.set(name, str(old))


def _write(path: Path, rows: list[tuple[Any, ...]], schema: StructType, number: int) -> None:
    arrow = arrow_schema(schema)
    columns = zip(*[(*row, 0) for row in rows], strict=True)
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, arrow, strict=True)]
    partial = path.with_suffix(".partial")
    pq.write_table(pa.Table.from_arrays(arrays, schema=arrow), partial)
    os.utime(partial, (1_700_000_000 + number,) * 2)
    partial.rename(path)


# Spark's operator itself takes neither names with blanks nor intervals and arrays in a key.
_SPARKS = [
    (at, name.replace(" ", "_"))
    for at, name in enumerate(KEY_TYPES)
    if name not in ("interval", "numbers", "texts")
]


@needs_structs_in_structs_on_spark
@pytest.mark.parametrize("is_pandas", [False, True], ids=["rows", "frames"])
def test_keys_of_all_types_are_given_as_on_spark(compare: Compare, *, is_pandas: bool) -> None:
    rng = random.Random(5)
    kinds = list(KEY_TYPES.values())
    schema = StructType([StructField(name, kinds[at]) for at, name in _SPARKS])

    def value(at: int) -> Any:
        found = random_key(rng)[at]
        # Of frames, Spark's operator takes no null in a key for what it was.
        return value(at) if found is None and is_pandas else _one_zero(found)

    keys = [tuple(value(at) for at, _ in _SPARKS) for _ in range(20)]
    last = keys[:1] if is_pandas else [(None,) * len(_SPARKS)]
    ours, spark = compare(schema, [keys + keys[:5], keys[10:], last], is_pandas=is_pandas)
    if is_pandas:
        # There Spark takes the session's time of a timer's key for the worker's.
        ours, spark = (
            [[row for row in rows if row[0] == "rows"] for rows in of] for of in (ours, spark)
        )
    assert differences(ours, spark) == []
    assert [len(rows) for rows in ours] == ([20, 10, 1] if is_pandas else [40, 20, 2])


def differences(ours: list[Rows], spark: list[Rows]) -> list[Any]:
    """Return batch by batch what only one of the two has."""
    found = [(set(a) - set(b), set(b) - set(a)) for a, b in zip(ours, spark, strict=True)]
    return [pair for pair in found if pair != (set(), set())]


def _one_zero(value: Any) -> Any:
    """-0.0 and NaN have tests of their own."""
    if isinstance(value, tuple):
        return tuple(map(_one_zero, value))
    if isinstance(value, float):
        return 2.5 if math.isnan(value) else value + 0.0
    return value


@needs_structs_in_structs_on_spark
def test_zeros_and_nulls_are_one_key_each(compare: Compare) -> None:
    struct = StructType([StructField("x", FloatType()), StructField("t", StringType())])
    schema = StructType([StructField("x", DoubleType()), StructField("s", struct)])
    zeros: list[Any] = [(0.0, (0.0, "a")), (-0.0, (0.0, "a")), (0.0, (-0.0, "a"))]
    others: list[Any] = [(None, None), (None, (None, None)), (None, None), (math.inf, (None, "a"))]
    ours, spark = compare(schema, [[*zeros, *others], others])
    assert differences(ours, spark) == []
    assert [n for what, _, n in ours[0] if what == "timer"] == [3, 2, 1, 1]


def test_a_zero_of_any_sign_and_a_nan_are_one_key_where_spark_has_several(
    compare: Compare,
) -> None:
    schema = StructType([StructField("x", DoubleType())])
    batches: list[Any] = [[(0.0,), (math.nan,), (math.nan,)], [(-0.0,), (math.nan,)]]
    ours, spark = compare(schema, batches)
    given = [[row for row in rows if row[0] == "rows"] for rows in ours + spark]
    assert given == [
        [("rows", "(0.0,)", 1), ("rows", "(nan,)", 2)],
        [("rows", "(-0.0,)", 2), ("rows", "(nan,)", 3)],
        # Spark: a call for each NaN, and another state for the other zero.
        [("rows", "(0.0,)", 1), ("rows", "(nan,)", 1), ("rows", "(nan,)", 2)],
        [("rows", "(-0.0,)", 1), ("rows", "(nan,)", 3)],
    ]

"""Committed state as a DataFrame, read by the executors of a session."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cli_kit import commit_numbers, job_settings
from conftest import PARTITIONS, Stream
from processors import OfEveryKind
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import statekeep as sk

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

BATCHES = 3


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A job that has committed each of three batches, beside its checkpoint location."""
    sk.register(spark)
    stream = Stream(spark, tmp_path_factory.mktemp("job"))
    stream.add_batches(BATCHES)
    settings = {
        "job.name": "every kind",
        "job.logged.store.base.dir": str(stream.local_dir),
        "task.commit.every.batch": "true",
        "checkpoint.retain.commits": "10",
    }
    grouped = sk.grouped(stream.frame().groupBy("key"), settings)
    frame = grouped.transformWithState(
        OfEveryKind(), "key string, n long, s long", "Append", "ProcessingTime"
    )
    writer = frame.writeStream.foreachBatch(stream.sink).trigger(availableNow=True)
    writer.option("checkpointLocation", str(stream.location)).start().awaitTermination()
    return stream


def load(job: Stream, variable: str | None = None, **options: Any) -> DataFrame:
    reader = job.spark.read.format("statekeep").options(**options)
    if variable is not None:
        reader = reader.option("stateVarName", variable)
    return reader.load(str(job.location))


def settings_of(job: Stream) -> dict[str, str]:
    return {
        "job.name": "every kind",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{job.location}-statekeep",
    }


def values(job: Stream) -> dict[str, list[int]]:
    """Return what each key was given, in order."""
    found: dict[str, list[int]] = {}
    for path in sorted((job.root / "in").iterdir()):
        for row in pq.read_table(path).to_pylist():
            found.setdefault(row["key"], []).append(row["v"])
    return found


def totals(frame: DataFrame) -> dict[str, tuple[int, int]]:
    rows = frame.collect()
    found = {row.key.key: tuple(row.value) for row in rows}
    assert len(found) == len(rows)
    return found


def test_each_task_is_a_partition_and_sql_sees_the_rows(job: Stream) -> None:
    frame = load(job, "count")
    assert frame.rdd.getNumPartitions() == PARTITIONS
    expected = job.expected(BATCHES)
    assert totals(frame) == expected
    frame.createOrReplaceTempView("committed")
    (row,) = job.spark.sql("SELECT sum(value.s) AS s, count(*) AS n FROM committed").collect()
    assert (row.s, row.n) == (sum(s for _, s in expected.values()), len(expected))


def test_a_frame_that_was_filtered_has_all_its_rows_afterwards(job: Stream) -> None:
    # With filters pushed to the source, Spark reads the partitions of the last one ever after.
    frame = load(job, "count")
    expected = job.expected(BATCHES)
    one, other = sorted(expected)[:2]
    assert totals(frame.where(f"key.key = '{one}'")) == {one: expected[one]}
    both = frame.where(f"key.key = '{one}'").union(frame.where(f"key.key = '{other}'"))
    assert totals(both) == {key: expected[key] for key in (one, other)}
    assert frame.selectExpr("count(*) AS n").collect()[0].n == len(expected)


def test_one_key_is_read_from_one_task(job: Stream) -> None:
    for key in ("key-3", "key-17"):
        frame = load(job, "count", key=key)
        assert frame.rdd.getNumPartitions() == 1
        assert totals(frame) == {key: job.expected(BATCHES)[key]}


def test_lists_maps_timers_and_times_to_live_have_their_columns(job: Stream) -> None:
    given = values(job)
    seen: dict[str, dict[int, int]] = {}
    for row in load(job, "seen").collect():
        seen.setdefault(row.key.key, {})[row.list_position] = row.list_element.v
    assert {key: sorted(items.values()) for key, items in seen.items()} == {
        key: sorted(items) for key, items in given.items()
    }
    assert {tuple(items) for items in seen.values()} == {
        tuple(range(len(items))) for items in given.values()
    }

    parity = {
        (row.key.key, row.user_map_key.odd): row.user_map_value
        for row in load(job, "parity").collect()
    }
    for (key, odd), value in parity.items():
        last = int(value.d)
        assert last in given[key]
        assert (last % 2 == 1) is odd
        assert value.last.astimezone(UTC) == datetime.fromtimestamp(last, UTC)
        assert value.d == Decimal(last)

    brief = load(job, "brief").collect()
    assert {row.key.key for row in brief} == set(given)
    assert min(row.expiration_timestamp_ms for row in brief) > 1_700_000_000_000

    timers = load(job, readRegisteredTimers=True).collect()
    assert {row.key.key for row in timers} == set(given)
    assert min(row.expiration_timestamp_ms for row in timers) > 4_000_000_000_000


def test_only_the_columns_that_are_named_are_there(job: Stream) -> None:
    frame = load(job, "count", columns="partition_id, key")
    assert frame.columns == ["partition_id", "key"]
    assert {row.key.key for row in frame.collect()} == set(job.expected(BATCHES))


def test_an_older_batch_and_the_changes_since(job: Stream) -> None:
    assert totals(load(job, "count", batchId=0)) == job.expected(1)
    feed = load(job, "count", readChangeFeed=True, changeStartBatchId=1, changeEndBatchId=1)
    assert feed.columns[0] == "change_type"
    before, after = job.expected(1), job.expected(2)
    expected = {
        key: ("update" if key in before else "insert", value)
        for key, value in after.items()
        if before.get(key) != value
    }
    found = {row.key.key: (row.change_type, tuple(row.value)) for row in feed.collect()}
    assert found == expected


def test_the_frame_is_the_table_of_read_state(job: Stream) -> None:
    table = sk.read_state(settings_of(job), "parity")
    frame = load(job, "parity")
    order = ["partition_id", "key", "user_map_key"]
    expected = frame.orderBy(*order).toArrow()
    assert table.schema == expected.schema
    assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    counts: Any = load(job, "count").toPandas()
    # PySpark 4.1 makes rows of structs, later ones dictionaries.
    found = {row.key["key"]: (row.value["n"], row.value["s"]) for row in counts.itertuples()}
    assert found == job.expected(BATCHES)


def test_a_store_of_a_job_in_plain_python_is_a_frame_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    sk.register(spark)
    for task in ("Partition 0", "totals"):
        asyncio.run(commit_numbers(tmp_path, [1, 2, 3], name=task))
    reader = spark.read.format("statekeep").options(**job_settings(tmp_path))
    frame = reader.option("stateVarName", "counts").load()
    assert frame.schema.simpleString() == "struct<key:binary,value:binary,task:string>"
    assert frame.rdd.getNumPartitions() == 2
    expected = {
        (b"key-%d" % n, b"%d" % n, task) for n in (1, 2, 3) for task in ("Partition 0", "totals")
    }
    assert {(bytes(row.key), bytes(row.value), row.task) for row in frame.collect()} == expected
    one = reader.options(key=b"key-2".hex(), task="totals").load()
    assert [(bytes(row.value), row.task) for row in one.collect()] == [(b"2", "totals")]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stateVarName": "cuont"}, "did you mean 'count'"),
        ({"stateVarNam": "count"}, "did you mean 'stateVarName'"),
        ({"stateVarName": "count", "commit": "absent"}, "no such commit: commit=absent"),
        ({"stateVarName": "count", "batchId": "one"}, "batchId='one'"),
        ({"stateVarName": "count", "readChangeFeed": "true"}, "a change feed needs a start"),
        ({"stateVarName": "count", "changeEndBatchId": "1"}, "use batchId"),
        ({"stateVarName": "count", "job.nmae": "x"}, "job.nmae"),
    ],
)
def test_a_wrong_option_is_an_error_of_load(job: Stream, options: Any, told: str) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(job, **options)
    assert told in str(caught.value)


def test_a_schema_of_ones_own_is_refused(job: Stream) -> None:
    reader = job.spark.read.format("statekeep").option("stateVarName", "count")
    with pytest.raises(AnalysisException, match="the state has a schema of its own"):
        reader.schema("key string").load(str(job.location)).collect()


def test_no_plan_shows_a_secret(job: Stream, tmp_path: Path) -> None:
    options = {f"backends.spare.{key}": text for key, text in SPARE.items()}
    frame = load(job, "count", **options)
    text = frame._jdf.queryExecution().toString()
    assert "statekeep" in text
    assert "hunter2" not in text


SPARE = {"factory": "blob", "uri": "s3://user:hunter2@bucket/state"}


def test_any_session_can_be_taught_the_format(job: Stream) -> None:
    other = job.spark.newSession()
    sk.register(other)
    frame = other.read.format("statekeep").option("stateVarName", "count").load(str(job.location))
    assert totals(frame) == job.expected(BATCHES)

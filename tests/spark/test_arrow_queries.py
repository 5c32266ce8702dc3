"""Functions of record batches on Spark: state and output of rows, also when one goes on for the other."""

import datetime as dt
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Stream, events_of, lose_directory, state_of
from processors import OUTPUT, Count
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues
from spark_processes import executors_of
from typing_extensions import override

import statekeep as sk
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.driver.job import StatefulJob

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

STATE = {"count": "n long, s long"}
COMBINED = {"n": ("*", "count"), "s": ("v", "sum")}


def count(
    rows: pa.RecordBatch, state: Mapping[str, sk.ArrowValueState]
) -> Iterator[pa.RecordBatch]:
    ones = pa.array(np.ones(rows.num_rows, np.int64))
    yield state["count"].merge(rows, pa.record_batch({"n": ones, "s": rows["v"]}), "sum")


def add(rows: pa.RecordBatch, state: Mapping[str, sk.ArrowValueState]) -> Iterator[pa.RecordBatch]:
    yield state["count"].merge(rows, rows, "sum")


MODES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda grouped: grouped.transformWithState(Count(), OUTPUT, "Append", "None"),
    "arrow": lambda grouped: grouped.transformWithStateInArrow(count, OUTPUT, "Append", STATE),
    "combined": lambda grouped: grouped.transformWithStateInArrow(
        add, OUTPUT, "Append", STATE, COMBINED
    ),
}


def finish(stream: Stream, mode: str, **settings: Any) -> sk.StatefulStreamingQuery:
    """Run a query in one of `MODES` to the end of its input."""
    base = {"job.name": "counts", "job.logged.store.base.dir": str(stream.local_dir)}
    grouped = sk.grouped(stream.frame().groupBy("key"), base | settings)
    writer = MODES[mode](grouped).writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    query: sk.StatefulStreamingQuery = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


class StoppedError(Exception):
    """What a sink raises to break a query off."""


@pytest.mark.parametrize(
    ("first", "then"), [("rows", "combined"), ("combined", "arrow"), ("arrow", "rows")]
)
def test_what_one_mode_has_recorded_another_one_replays_and_goes_on_with(
    stream: Stream, first: str, then: str
) -> None:
    """A replay that gives another result than the first run ends the query."""
    stream.add_batches(2)
    finish(stream, first)
    stream.add_batches(3)

    def break_off(batch: int) -> None:
        if batch == 4:
            raise StoppedError(f"batch={batch}")

    stream.on_batch = break_off
    with pytest.raises(StreamingQueryException):
        finish(stream, first, **{"task.commit.ms": 3_600_000})
    lose_directory(stream.local_dir)
    stream.on_batch = lambda batch: None
    query = finish(stream, then)
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [2, 3]
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4]
    assert stream.received() == stream.expected(5)
    backup = {"blob.store.uri": f"{stream.location}-statekeep", "stores.backup.factories": "blob"}
    assert state_of(backup) == stream.expected(5)


def test_an_executor_is_killed_in_a_batch_of_combined_rows(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add_batches(4)
    killed: list[int] = []
    jobs: list[StatefulJob] = []
    open_before = StatefulJob.open

    def opened(job: StatefulJob, *given: Any) -> None:
        jobs.append(job)
        open_before(job, *given)

    monkeypatch.setattr(StatefulJob, "open", opened)

    def kill(batch: int) -> None:
        if batch == 2 and not killed:
            places = executors_of(jobs[0])
            killed.append(min(place["jvm_pid"] for place in places.values()))
            for task in [t for t, place in places.items() if place["jvm_pid"] in killed]:
                for directory in stream.local_dir.glob(f"*/main/Partition_{task}"):
                    shutil.rmtree(directory)
            os.kill(killed[0], signal.SIGKILL)

    stream.on_batch = kill
    query = finish(stream, "combined")
    assert killed
    assert events_of(query, "recovery")
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)


@pytest.mark.parametrize("mode", ["arrow", "combined"])
def test_rows_that_overrun_memory_are_sorted_by_spark(stream: Stream, mode: str) -> None:
    stream.add_batches(2)
    finish(stream, mode, **{"task.grouping.max.bytes": "1"})
    assert stream.received() == stream.expected(2)


@pytest.mark.parametrize("mode", ["arrow", "combined"])
def test_a_batch_frame_gives_what_a_stream_gives(spark: SparkSession, mode: str) -> None:
    rows = [(f"key-{i % 5}", i) for i in range(100)]
    frame = spark.createDataFrame(rows, "key string, v long").repartition(3)
    found = MODES[mode](sk.grouped(frame.groupBy("key"))).collect()
    expected = {f"key-{i}": (20, sum(range(i, 100, 5))) for i in range(5)}
    assert {row.key: (row.n, row.s) for row in found} == expected


def test_keys_of_other_types_are_combined_to_what_rows_give(spark: SparkSession) -> None:
    times = [dt.datetime(2026, 3, 29, hour, tzinfo=dt.UTC) for hour in (0, 1)]
    numbers = [0.0, -0.0, float("nan"), None]
    rows = [(times[i // 4 % 2], numbers[i % 4], None if i % 3 else "x", i) for i in range(96)]
    frame = spark.createDataFrame(rows, "t timestamp, d double, x string, v int").repartition(3)
    grouped = sk.grouped(frame.groupBy("t", "d", "x"))
    output, state = "t timestamp, d double, x string, s long", {"count": "s long"}
    found = grouped.transformWithStateInArrow(
        add, output, "Update", state, {"s": ("v", "sum")}
    ).collect()

    class Sums(Count):
        @override
        def init(self, handle: StatefulProcessorHandle) -> None:
            """Nothing is kept."""

        @override
        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
            yield (*key, sum(row.v for row in rows))

    expected = grouped.transformWithState(Sums(), output, "Update", "None").collect()
    assert len(found) == 2 * 3 * 2
    # A zero has the sign of the first row that comes.
    texts = [sorted(repr(row).replace("-0.0", "0.0") for row in rows) for rows in (found, expected)]
    assert texts[0] == texts[1]


def test_what_cannot_run_is_refused_before_a_query_starts(stream: Stream) -> None:
    stream.add_batches(1)
    grouped = sk.grouped(stream.frame().groupBy("key"), {"job.name": "counts"})
    with pytest.raises(StateSchemaError, match="count"):
        grouped.transformWithStateInArrow(count, OUTPUT, "Append", {"count": "n int not null"})
    with pytest.raises(ConfigError, match="found=mean"):
        grouped.transformWithStateInArrow(add, OUTPUT, "Append", STATE, {"n": ("v", "mean")})

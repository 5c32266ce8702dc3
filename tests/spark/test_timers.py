"""Timers and time to live on our runtime, and beside Spark's own operator in the same session."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import events_of, lose_directory
from processors import Alarms, AlarmsOnFrames, ForgetfulAlarms
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from typing_extensions import override

import statekeep as sk
from statekeep.checkpoint.records import BadMarkerRecord, BatchRecord
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.driver.recovery import Recovery

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

OUTPUT = "key string, what string, text string"
SHUFFLE = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
COUNTS = ("numRegisteredTimers", "numDeletedTimers", "numValuesRemovedDueToTTLExpiry")
NEVER = 4_000_000_000_000
"""A time in milliseconds that no test sees."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Rows = Sequence[tuple[str, int, int]]
"""(key, seconds of the event time, value)"""
Batches = list[tuple[int, list[tuple[str, str, str]]]]


@dataclass
class Timed:
    """A stream of files with event times, one a batch, for one of the two operators."""

    spark: SparkSession
    root: Path
    time_mode: str
    processor: StatefulProcessor
    is_ours: bool = True
    is_pandas: bool = False
    watermark: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    on_batch: Callable[[int], None] = lambda batch: None
    """Called by the sink before it takes a batch."""
    batches: Batches = field(default_factory=list)

    def add(self, rows: Rows) -> None:
        directory = self.root / "in"
        directory.mkdir(exist_ok=True, parents=True)
        number = len(list(directory.iterdir()))
        lines = [
            json.dumps({"key": key, "t": f"2024-01-01T00:{t // 60:02}:{t % 60:02}Z", "v": value})
            for key, t, value in rows
        ]
        path = directory / f"{number:03}.json"
        partial = self.root / "partial"
        partial.write_text("\n".join(lines))
        os.utime(partial, (1_700_000_000 + number,) * 2)
        partial.rename(path)

    def start(self, **trigger: Any) -> Any:
        frame: Any = self.spark.readStream.schema("key string, t timestamp, v long")
        frame = frame.option("maxFilesPerTrigger", 1).json(str(self.root / "in"))
        if self.watermark is not None:
            frame = frame.withWatermark("t", self.watermark)
        data = frame.groupBy("key")
        if self.is_ours:
            settings = {"job.name": "timed", "job.logged.store.base.dir": str(self.root / "local")}
            data = sk.grouped(data, settings | self.settings)
        mode = "transformWithStateInPandas" if self.is_pandas else "transformWithState"
        output = getattr(data, mode)(self.processor, OUTPUT, "Update", self.time_mode)
        writer = output.writeStream.foreachBatch(self._sink).outputMode("Update")
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        with self._few_partitions():
            return (writer.trigger(**trigger) if trigger else writer).start()

    @contextmanager
    def _few_partitions(self) -> Iterator[None]:
        """Spark starts a worker and a server for each partition and batch: one will do."""
        before = str(self.spark.conf.get(SHUFFLE))
        if not self.is_ours:
            self.spark.conf.set(SHUFFLE, "1")
        yield
        self.spark.conf.set(SHUFFLE, before)

    def run(self, *batches: Rows, **trigger: Any) -> Any:
        for rows in batches:
            self.add(rows)
        query = self.start(**(trigger or {"availableNow": True}))
        query.awaitTermination()
        return query

    def _sink(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        rows = sorted((row.key, row.what, row.text) for row in frame.collect())
        self.batches.append((batch, rows))

    def rows(self) -> list[tuple[str, str, str]]:
        return [row for _, rows in self.batches for row in rows]


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Timed]]:
    made: list[Timed] = []

    def make_one(*args: Any, **options: Any) -> Timed:
        made.append(Timed(spark, tmp_path / f"{len(made)}", *args, **options))
        return made[-1]

    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    yield make_one
    spark.conf.set(PROVIDER, str(before))
    for query in spark.streams.active:
        query.stop()


needs_rows_on_spark = pytest.mark.skipif(
    not hasattr(GroupedData, "transformWithState"),
    reason="PySpark 4.0 has the operator on frames alone",
)


@needs_rows_on_spark
def test_event_time_is_as_on_spark(make: Callable[..., Timed]) -> None:
    """Rows, late rows, timers, and a batch without rows once the watermark has moved."""
    batches = (
        [("b", 12, 12), ("a", 10, 12), ("c", 11, 10), ("a", 10, 11)],
        [("d", 40, 300), ("b", 40, 20), ("b", 40, 22)],
        [("late", 5, 1), ("late", 9, 2), ("e", 37, 30), ("e", 38, 31)],
    )
    ours, on_spark, frames = (
        make("EventTime", Alarms(), watermark="3 seconds"),
        make("EventTime", Alarms(), watermark="3 seconds", is_ours=False),
        make("EventTime", AlarmsOnFrames(), watermark="3 seconds", is_pandas=True),
    )
    for stream in (ours, frames, on_spark):
        stream.run(*batches)
    assert frames.batches == ours.batches
    assert ours.batches == on_spark.batches
    assert sum(what == "fired" for _, what, _ in on_spark.rows()) == 8


@pytest.mark.parametrize("time_mode", ["EventTime", "ProcessingTime"])
def test_timers_of_frames_are_as_on_spark(make: Callable[..., Timed], time_mode: str) -> None:
    """On each release of Spark: also those in the past, and those that timers register."""
    batches = ([("a", 10, 10), ("a", 10, 12), ("b", 10, 60)], [("b", 40, 20)], [("c", 70, 300)])
    watermark = "3 seconds" if time_mode == "EventTime" else None
    streams = [
        make(time_mode, AlarmsOnFrames(), is_ours, is_pandas=True, watermark=watermark)
        for is_ours in (True, False)
    ]
    for stream in streams:
        for rows in batches:
            stream.run(rows, once=True)
    assert streams[0].batches == streams[1].batches
    assert any(what == "fired" for _, what, _ in streams[0].rows())


@needs_rows_on_spark
def test_processing_time_is_as_on_spark(make: Callable[..., Timed]) -> None:
    """Also of timers that are registered in the past, or while timers fire: Spark 4.3's way.

    And of state with a time to live, which a batch later has ended or not.
    """
    batches = ([("a", 1, 10), ("a", 1, 12), ("b", 1, NEVER)], [("b", 2, 20), ("a", 2, NEVER)])
    streams = (
        make("ProcessingTime", ForgetfulAlarms(), is_ours=False),
        make("ProcessingTime", ForgetfulAlarms()),
    )
    counts: list[list[int]] = []
    for stream in streams:
        # Spark never ends such a query with availableNow.
        reports = [stream.run(rows, once=True).lastProgress for rows in batches]
        metrics = reports[1]["stateOperators"][0]["customMetrics"]
        counts.append([metrics[name] for name in COUNTS])
    assert streams[1].batches == streams[0].batches
    assert counts[1] == counts[0] == [4, 4, 6]
    fired = [[key for key, what, _ in rows if what == "fired"] for _, rows in streams[1].batches]
    assert fired == [["a", "a"], ["a", "a", "b"]]
    kept = [text for key, what, text in streams[1].batches[1][1] if (key, what) == ("b", "kept")]
    assert kept[0].startswith("(20,) [20] [20]; (20,) [4000000000000, 20]")  # as its timer fires
    assert kept[1].startswith("None [] []; (4000000000000,) [4000000000000]")


def test_late_rows_are_dropped_and_counted(make: Callable[..., Timed]) -> None:
    stream = make("EventTime", Alarms(), watermark="3 seconds")
    stream.run([("a", 10, 500)], [("a", 20, 500)])
    query = stream.run([("late", 17, 1), ("late", 3, 1), ("a", 18, 500)])
    (entry,) = query.lastProgress["stateOperators"]
    assert entry["numRowsDroppedByWatermark"] == 2
    assert [key for key, _, _ in stream.rows()] == ["a", "a", "a"]


def test_timers_fire_on_an_idle_stream_and_for_keys_without_rows(
    make: Callable[..., Timed],
) -> None:
    stream = make("ProcessingTime", Alarms())
    stream.add([("c", 1, NEVER)])
    query = stream.start()
    try:
        query.processAllAvailable()  # a first batch takes seconds
        soon = time.time_ns() // 1_000_000 + 3_000
        stream.add([("a", 1, soon), ("b", 1, soon + 500)])
        deadline = time.monotonic() + 60
        while sum(what == "fired" for _, what, _ in stream.rows()) < 2:
            assert time.monotonic() < deadline, stream.rows()
            assert query.exception() is None
            query.awaitTermination(1)
        assert [source["description"][:10] for source in query.lastProgress["sources"]] == [
            "FileStream"
        ]
    finally:
        query.stop()
    # On a slow machine one batch fires both.
    for entry in query.lastProgress["stateOperators"]:
        assert entry["customMetrics"]["numExpiredTimers"] in {1, 2}
    assert [(key, what) for key, what, _ in stream.rows()] == [
        ("c", "rows"),
        ("a", "rows"),
        ("b", "rows"),
        ("a", "fired"),
        ("b", "fired"),
    ]
    assert len(stream.batches) <= 6  # idle until a timer is due


def test_available_now_ends_although_timers_register_timers(make: Callable[..., Timed]) -> None:
    class Again(Alarms):
        @override
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs())
            yield self._row(key, "fired", [], timerValues)

    stream = make("ProcessingTime", Again())
    for count in (2, 3):
        stream.run(*([[("a", 1, 5)]] if count == 2 else []))
        assert sum(what == "fired" for _, what, _ in stream.rows()) == count - 1


def test_lost_state_fires_the_same_timers_in_a_replay(make: Callable[..., Timed]) -> None:
    batches = (
        [("a", 10, 12), ("b", 10, 11), ("c", 10, 60)],
        [("d", 40, 300), ("d", 40, 20)],
        [("late", 5, 1), ("e", 41, 50)],
    )
    stream = make("EventTime", Alarms(), watermark="3 seconds")
    stream.settings = {"task.commit.ms": 3_600_000, "task.replay.on.divergence": "error"}
    whole = make("EventTime", Alarms(), watermark="3 seconds")
    # Each task has rows in the last batch: what is lost of another is only found by the next start.
    last = [(f"key-{number}", 90, 400) for number in range(20)]
    whole.run(*batches, last)

    def lose(batch: int) -> None:
        if batch == 2 and not (stream.root / "lost").exists():
            (stream.root / "lost").touch()
            lose_directory(stream.root / "local")

    stream.on_batch = lose
    query = stream.run(*batches, last)
    assert stream.batches == whole.batches
    (recovery,) = events_of(query, "recovery")[-1:]
    assert recovery["replayed"]


def test_a_crash_in_a_replay_fires_each_timer_once_for_the_sink(
    make: Callable[..., Timed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By processing time: the replays come later, and end and fire what the recorded time says."""
    batches = ([("a", 1, 10), ("a", 1, 12), ("c", 1, NEVER)], [("a", 2, 20)], [("b", 3, 30)])
    stream, whole = (make("ProcessingTime", ForgetfulAlarms()) for _ in range(2))
    stream.settings = {"task.commit.ms": 3_600_000, "task.replay.on.divergence": "error"}
    whole.run(*batches, [("d", 4, 1), ("a", 4, NEVER)])
    crashed: list[int] = []
    append = Recovery._append

    def lose(batch: int) -> None:
        if batch == 2 and not crashed:
            lose_directory(stream.root / "local")

    def crash(recovery: Recovery, record: BatchRecord | BadMarkerRecord) -> None:
        if not crashed and isinstance(record, BatchRecord):
            crashed.append(record.batch)
            raise RuntimeError("crashed as armed")
        append(recovery, record)

    stream.on_batch = lose
    monkeypatch.setattr(Recovery, "_append", crash)
    with pytest.raises(StreamingQueryException):
        stream.run(*batches, [("d", 4, 1), ("a", 4, NEVER)])
    assert crashed == [0]
    assert [batch for batch, _ in stream.batches] == [0, 1, 2]
    query = stream.run()
    assert stream.batches == whole.batches
    assert events_of(query, "recovery")[0]["replayed"] == [0, 1, 2]


def test_another_time_mode_of_a_query_is_refused(make: Callable[..., Timed]) -> None:
    stream = make("ProcessingTime", Alarms())
    stream.run([("a", 1, 10)])
    stream.time_mode = "None"
    with pytest.raises(ConfigError, match="began with another time mode: timeMode=None"):
        stream.run()
    stream.time_mode, stream.watermark = "EventTime", "1 second"
    with pytest.raises(StateSchemaError, match="stored=ProcessingTime timeMode=EventTime"):
        stream.run([("a", 1, 10)])
    stream.time_mode, stream.watermark = "ProcessingTime", None
    stream.run()
    # Timers that timers have registered may be due before the end.
    assert [batch for batch, _ in stream.batches][:2] == [0, 1]


@pytest.mark.parametrize(
    ("time_mode", "words"),
    [("EventTime", "need a watermark"), ("SometimesTime", "STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE")],
)
def test_a_time_mode_that_cannot_work_is_refused(
    make: Callable[..., Timed], time_mode: str, words: str
) -> None:
    stream = make(time_mode, Alarms())
    stream.add([("a", 1, 10)])
    with pytest.raises(ConfigError, match=words):
        stream.start()

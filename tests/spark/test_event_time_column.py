"""``eventTimeColumnName`` on our runtime, and beside Spark's own operator in the same session."""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import lose_directory
from event_files import PLAIN_SETTINGS, EventFiles, Group
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.streaming import StatefulProcessor
from typing_extensions import override

import statekeep as sk
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

OUTPUT = "key string, at timestamp, n long"
SHUFFLE = "spark.sql.shuffle.partitions"
BATCHES = ([("a", 10), ("b", 20)], [("a", 30), ("c", 17)], [("a", 30), ("a", 40)])
"""The watermarks are 0, 17 and 27 seconds after the hour."""


class Shifted(StatefulProcessor):
    """Yields each row with its time moved back."""

    def __init__(self, seconds: int = 0) -> None:
        self._back = dt.timedelta(seconds=seconds)

    @override
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("n", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            (count,) = self._count.get() or (0,)
            self._count.update((count + 1,))
            yield Row(key=key[0], at=row.t - self._back, n=count + 1)

    @override
    def close(self) -> None:
        pass


def built(
    seconds: int = 0,
    time_mode: str = "None",
    column: str = "at",
    watermark: str | None = "3 seconds",
) -> Callable[[DataFrame, Group], Any]:
    def build(rows: DataFrame, group: Group) -> Any:
        frame = rows if watermark is None else rows.withWatermark("t", watermark)
        return group(frame.groupBy("key")).transformWithState(
            Shifted(seconds), OUTPUT, "Append", time_mode, eventTimeColumnName=column
        )

    return build


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., EventFiles]]:
    def make_one(build: Any, *, is_ours: bool = True) -> EventFiles:
        spark.conf.set("spark.sql.shuffle.partitions", "1" if not is_ours else before[SHUFFLE])
        name = "ours" if is_ours else "spark"
        return EventFiles(spark, tmp_path / name, build, is_ours)

    before = {name: str(spark.conf.get(name)) for name in PLAIN_SETTINGS}
    for name, value in PLAIN_SETTINGS.items():
        spark.conf.set(name, value)
    yield make_one
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize("time_mode", ["None", "EventTime"])
def test_rows_and_the_watermark_of_the_column_are_as_on_spark(
    make: Callable[..., EventFiles], time_mode: str
) -> None:
    both = [make(built(2, time_mode, "AT"), is_ours=is_ours) for is_ours in (True, False)]
    for stream in both:
        stream.run(*BATCHES)
    ours, on_spark = both
    assert ours.batches == on_spark.batches
    assert ours.metadata == on_spark.metadata == {"at": {"spark.watermarkDelayMs": 3000}}


def test_a_row_that_the_watermark_has_reached_is_an_error_as_on_spark(
    make: Callable[..., EventFiles],
) -> None:
    """The third batch yields a time of 17 seconds; that was the watermark of the batch before."""
    for is_ours in (True, False):
        stream = make(built(10), is_ours=is_ours)
        with pytest.raises(StreamingQueryException) as failure:
            stream.run(*BATCHES[:2], [("a", 28), ("a", 27)])
        assert "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED" in str(failure.value)
        assert "current_watermark_value=1704067217000" in str(failure.value)
        assert list(stream.batches) == [0, 1]


def test_batches_run_again_after_a_loss_by_the_same_watermarks(
    make: Callable[..., EventFiles],
) -> None:
    stream = make(built(10))
    stream.settings = {"task.commit.ms": 3_600_000}

    def crash(batch: int) -> None:
        if batch == 2 and not (stream.root / "crashed").exists():
            (stream.root / "crashed").touch()
            for state in (stream.root / "local").glob("*/main"):  # sidecars write beside it
                lose_directory(state)
            raise RuntimeError("crashed as planned")

    stream.on_batch = crash
    with pytest.raises(StreamingQueryException, match="crashed as planned"):
        stream.run(*BATCHES)
    query = stream.start()
    query.awaitTermination()
    (recovery,) = [event for event in query.events if event.kind == "recovery"]
    assert recovery.details["replayed"] == [0, 1]
    assert [n for rows in stream.batches.values() for *_, n in rows] == [1, 1, 2, 1, 3, 4]


def of_two_times(rows: DataFrame, group: Group) -> Any:
    both = rows.withWatermark("t", "3 seconds").withColumn("also", F.col("t"))
    return group(both.groupBy("key")).transformWithState(Shifted(), OUTPUT, "Append", "None")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (of_two_times, r"MULTIPLE_EVENT_TIME_COLUMNS.* columns=t,also"),
        (built(watermark=None), "CANNOT_ASSIGN_EVENT_TIME_COLUMN_WITHOUT_WATERMARK"),
        (built(column="nope"), "eventTimeColumnName=nope columns=key,at,n"),
        (built(column="n"), "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE"),
    ],
)
def test_a_column_that_cannot_be_the_event_time_is_refused(
    spark: SparkSession, build: Callable[[DataFrame, Group], Any], words: str
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("string(value) key", "timestamp t")
    with pytest.raises(ConfigError, match=words):
        build(rows, sk.grouped)

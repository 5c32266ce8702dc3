"""``applyInPandasWithState`` on our runtime, and beside Spark's own in the same session."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import lose_directory
from group_functions import obey
from pyspark.sql import DataFrame, SparkSession

import statekeep as sk
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

OUTPUT = "key string, what string, text string"
STATE = "n long, texts string"
"""No array: Spark 4.3 cannot read such a schema in its workers."""
SHUFFLE = "spark.sql.shuffle.partitions"
Orders = list[tuple[str, int, str]]
"""(key, seconds of the event time, what to do)"""
Batches = list[list[tuple[str, str, str]]]
Run = Callable[..., Batches]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    """Return a call that gives the rows of each batch of orders; every batch is a start."""
    before = str(spark.conf.get(SHUFFLE))

    def run_batches(
        batches: Sequence[Orders],
        timeout: str,
        *,
        is_ours: bool = True,
        loses_disk: bool = False,
        name: str = "",
    ) -> Batches:
        root = tmp_path / (name or ("ours" if is_ours else "spark"))
        spark.conf.set(SHUFFLE, before if is_ours else "1")
        seen: Batches = []

        def sink(frame: DataFrame, _: int) -> None:
            seen.append(sorted((row.key, row.what, row.text) for row in frame.collect()))

        for number, orders in enumerate(batches):
            _write(root / "in", orders)
            reader = spark.readStream.schema("key string, number int, t timestamp, op string")
            frame = reader.json(str(root / "in"))
            if timeout == "EventTimeTimeout":
                frame = frame.withWatermark("t", "0 seconds")
            data: Any = frame.groupBy("key", "number")
            if is_ours:
                given = {"job.name": "grouped", "job.logged.store.base.dir": str(root / "local")}
                data = sk.grouped(data, given)
            output = data.applyInPandasWithState(obey, OUTPUT, STATE, "Update", timeout)
            writer = output.writeStream.foreachBatch(sink).outputMode("update")
            writer = writer.option("checkpointLocation", str(root / "checkpoint"))
            writer.trigger(once=True).start().awaitTermination()
            if loses_disk and number == 0:
                lose_directory(root / "local")
        return [rows for rows in seen if rows]

    yield run_batches
    spark.conf.set(SHUFFLE, before)


def _write(directory: Path, orders: Orders) -> None:
    directory.mkdir(exist_ok=True, parents=True)
    number = len(list(directory.iterdir()))
    lines = [
        json.dumps({"key": key, "number": 7, "t": f"2024-01-01T00:00:{t:02}Z", "op": op})
        for key, t, op in orders
    ]
    partial = directory.parent / "partial"
    partial.write_text("\n".join(lines))
    os.utime(partial, (1_700_000_000 + number,) * 2)
    partial.rename(directory / f"{number:03}.json")


def at(seconds: int, **orders: str) -> Orders:
    """Orders by key, with semicolons between those of one key."""
    return [(key, seconds, order) for key, text in orders.items() for order in text.split("; ")]


PROCESSING = [
    at(1, a="add 1; add 2; soon", b="add 5; never", keeps="add 1; soon", again="add 1; soon")
    + at(1, x="add 3; soon", y="add 1; soon", left="add 1", gone="add 1; remove", empty="soon"),
    at(2, b="look", x="look", y="add 2", left="remove"),
    at(3, a="add 9", b="soon", gone="look", left="look"),
    at(4, other="look"),
    at(5, b="look", keeps="look", y="look", x="look"),
]
EVENT = [
    at(10, a="add 1; at 20", b="add 1; at 40", c="add 1; at 30", keeps="add 1; at 13"),
    at(20, b="look") + at(9, late="add 1"),
    at(30, d="add 1", b="at 31") + at(12, late="add 1"),
    at(32, c="look", d="at 50") + at(13, late="add 1"),
    at(50, d="look", a="look"),
    at(51, e="look"),
]


def differences(ours: Batches, spark: Batches) -> list[Any]:
    """Return batch by batch what only one of the two has.

    A timeout comes once. Spark lets it come again in each batch where the function does nothing.
    """
    again = [row for batch in ours for row in batch if row[:2] == ("keeps", "timed out")]
    assert len(again) == 1
    found = [
        (set(a) - set(b), set(b) - set(a) - set(again)) for a, b in zip(ours, spark, strict=True)
    ]
    return [pair for pair in found if pair != (set(), set())]


def test_processing_time_is_as_on_spark(run: Run) -> None:
    timeout = "ProcessingTimeTimeout"
    ours, spark = (run(PROCESSING, timeout, is_ours=is_ours) for is_ours in (True, False))
    assert differences(ours, spark) == []
    assert sum(what == "timed out" for rows in ours for _, what, _ in rows) > 5


def test_event_time_is_as_on_spark(run: Run) -> None:
    ours, spark = (run(EVENT, "EventTimeTimeout", is_ours=is_ours) for is_ours in (True, False))
    assert differences(ours, spark) == []
    assert sum(what == "timed out" for rows in ours for _, what, _ in rows) > 2


def test_state_that_is_lost_is_recovered_with_its_timeouts(run: Run) -> None:
    timeout = "ProcessingTimeTimeout"
    whole, recovered = (
        run(PROCESSING[:2], timeout),
        run(PROCESSING[:2], timeout, loses_disk=True, name="lost"),
    )
    assert recovered == whole
    assert any(what == "timed out" for _, what, _ in recovered[1])


@pytest.mark.parametrize(
    ("timeout", "words"),
    [("NoTimeout", "needs a stream"), ("SomeTimeout", "unknown timeout")],
)
def test_what_cannot_run_is_refused(spark: SparkSession, timeout: str, words: str) -> None:
    data = sk.grouped(spark.range(3).groupBy("id"))
    with pytest.raises(ConfigError, match=words):
        data.applyInPandasWithState(obey, OUTPUT, STATE, "Update", timeout)

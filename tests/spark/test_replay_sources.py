"""Recorded batches run again with their own boundaries, whatever kind of source they came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import partitioned_log
import pytest
from conftest import Rows, Stream, events_of, lose_directory
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

import statekeep as sk
from statekeep.errors import StateBackupError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


class StoppedError(Exception):
    """What a test's sink raises to break a query off."""


def start(stream: Stream, settings: Mapping[str, Any]) -> sk.StatefulStreamingQuery:
    writer = stream.stateful(settings=settings).writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    query: sk.StatefulStreamingQuery = writer.trigger(processingTime="0 seconds").start()
    return query


def break_off_at(stream: Stream, batch: int, settings: Mapping[str, Any] | None = None) -> None:
    """Run the stream without due commits until its sink fails at ``batch``; then lose all state."""

    def break_off(number: int) -> None:
        if number == batch:
            raise StoppedError(f"batch={number}")

    stream.on_batch = break_off
    with pytest.raises(StreamingQueryException):
        start(stream, {"task.commit.ms": 0} | dict(settings or {})).awaitTermination()
    stream.on_batch = lambda number: None
    lose_directory(stream.local_dir)


def go_on_until(stream: Stream, batch: int) -> sk.StatefulStreamingQuery:
    """Start the stream again and stop it once ``batch`` was delivered."""
    query = start(stream, {})
    while query.isActive and max(number for number, _ in stream.delivered) < batch:
        query.awaitTermination(1)
    query.stop()
    return query


def fold(numbers: range) -> Rows:
    state: Rows = {}
    for number in numbers:
        n, s = state.get(f"key-{number % 7}", (0, 0))
        state[f"key-{number % 7}"] = (n + 1, s + number)
    return state


@pytest.mark.parametrize(
    ("source", "rate", "replayed"),
    [
        # Its first batch has rows only if the start took a second; without, it changes nothing.
        ("rate", "rowsPerSecond", [[0, 1, 2], [1, 2]]),
        ("rate-micro-batch", "rowsPerBatch", [[0, 1, 2]]),
    ],
    ids=["rate", "rate-micro-batch"],
)
def test_a_counter_is_replayed_from_the_first_rows(
    stream: Stream, source: str, rate: str, replayed: list[list[int]]
) -> None:

    def counted() -> DataFrame:
        reader = stream.spark.readStream.format(source).option("numPartitions", 2)
        rows = reader.option(rate, 100).load()
        key = F.concat(F.lit("key-"), F.col("value") % 7)
        return rows.select(key.alias("key"), F.col("value").alias("v"))

    stream.frame = counted  # type: ignore[method-assign]
    break_off_at(stream, 3)
    query = go_on_until(stream, 4)
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] in replayed
    batches = [batch for batch, _ in stream.delivered]
    assert batches == list(range(len(batches)))
    count = sum(n for n, _ in stream.received().values())
    assert count > 0
    assert stream.received() == fold(range(count))


@pytest.fixture
def log(stream: Stream) -> Path:
    """A log with two partitions, which the stream reads; each delivery brings more of it."""
    root = stream.root / "log"
    partitioned_log.append(root, range(20))
    source = partitioned_log.source_in(root)
    stream.spark.dataSource.register(source)
    stream.frame = lambda: stream.spark.readStream.format(source.name()).load()  # type: ignore[method-assign]
    return root


def feed(stream: Stream, log: Path) -> None:
    """Let the log grow by 20 numbers with every batch, from now on."""
    before = stream.sink

    def sink(frame: DataFrame, batch: int) -> None:
        before(frame, batch)
        partitioned_log.append(log, range(20 * (batch + 1), 20 * (batch + 2)))

    stream.sink = sink  # type: ignore[method-assign]


def test_offsets_by_partition_are_replayed_from_batch_0(stream: Stream, log: Path) -> None:
    feed(stream, log)
    break_off_at(stream, 3)
    query = go_on_until(stream, 4)
    (recovery,) = events_of(query, "recovery")
    assert (recovery["replayed"], recovery["rows_replayed"]) == ([0, 1, 2], 60)
    batches = [batch for batch, _ in stream.delivered]
    assert batches == list(range(len(batches)))
    assert stream.received() == fold(range(20 * len(batches)))


def test_a_replay_of_purged_offsets_says_what_to_keep(stream: Stream, log: Path) -> None:
    feed(stream, log)
    break_off_at(stream, 3)
    partitioned_log.purge(log, 15)
    with pytest.raises(StateBackupError, match="replay of a batch failed: batch=1") as caught:
        start(stream, {})
    assert "retention.ms" in str(caught.value)
    assert "out of range: start=10 earliest=15" in str(caught.value.__cause__)


def test_a_source_may_purge_what_is_older_than_the_replay_limit(stream: Stream, log: Path) -> None:
    feed(stream, log)
    limit = 4
    break_off_at(stream, 7, {"task.replay.max.batches": limit})
    partitioned_log.purge(log, 10 * (7 - limit))
    query = go_on_until(stream, 8)
    (recovery,) = events_of(query, "recovery")
    assert len(recovery["replayed"]) <= limit
    batches = [batch for batch, _ in stream.delivered]
    assert batches == list(range(len(batches)))
    assert stream.received() == fold(range(20 * len(batches)))

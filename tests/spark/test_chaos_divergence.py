"""A processor that is not deterministic is caught in the replay, by task, batch and keys."""

import logging
from typing import Any

import pytest
from conftest import Stream, lose_directory
from processors import Unsteady
from pyspark.errors import StreamingQueryException

from statekeep.errors import ReplayDivergedError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def run_until_batch(stream: Stream, batch: int, settings: dict[str, Any]) -> None:
    def break_off(number: int) -> None:
        if number == batch:
            raise RuntimeError(f"batch={number}")

    stream.on_batch = break_off
    with pytest.raises(StreamingQueryException):
        stream.start(Unsteady(), settings).awaitTermination()
    stream.on_batch = lambda number: None


def test_the_error_names_task_batch_and_keys(stream: Stream) -> None:
    stream.add_batches(2, rows=40, keys=7)
    settings = {"task.commit.ms": 0}
    run_until_batch(stream, 1, settings)
    lose_directory(stream.local_dir)
    with pytest.raises(ReplayDivergedError) as caught:
        stream.start(Unsteady(), settings)
    assert caught.value.batch == 0
    assert "task.replay.on.divergence=warn" in str(caught.value)
    assert caught.value.task_name.startswith("Partition ")
    first, last = caught.value.keys.split("..")
    assert first.startswith("('key-")
    assert first <= last


def test_where_that_does_no_harm_the_query_goes_on_and_says_so_once(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.add_batches(3, rows=40, keys=7)
    settings = {"task.commit.ms": 3_600_000, "task.replay.on.divergence": "warn"}
    run_until_batch(stream, 2, settings)
    lose_directory(stream.local_dir)
    with caplog.at_level(logging.INFO, logger="statekeep"):
        stream.start(Unsteady(), settings).awaitTermination()
    told = [record.getMessage() for record in caplog.records]
    (differs,) = [line for line in told if "another result" in line]
    assert "task=Partition " in differs
    begin = [line for line in told if line.startswith("the job goes on: job=counts tasks=4")]
    assert len(begin) == 1
    assert "batches are replayed, without output: first=0 last=1 rows=80" in told


def test_with_a_commit_in_every_batch_such_a_processor_has_nothing_to_replay(
    stream: Stream,
) -> None:
    stream.add_batches(2, rows=40, keys=7)
    settings = {"task.commit.every.batch": True}
    run_until_batch(stream, 1, settings)
    lose_directory(stream.local_dir)
    query = stream.start(Unsteady(), settings)
    query.awaitTermination()
    assert [batch for batch, _ in stream.delivered] == [0, 1]

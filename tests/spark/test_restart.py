"""A query that fails is started again behind its handle, and goes on exactly where it was."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Stream, events_of, lose_directory
from processors import Overflowing
from pyspark.errors import StreamingQueryException
from spark_processes import take_over_beside

import statekeep as sk
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import RetriableError, TaskFencedError
from statekeep.inspection.job import open_job

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(180),
]

RESTARTS: dict[str, Any] = {
    "job.restart.strategy": "fixed-delay",
    "job.restart.attempts": "3",
    "job.restart.backoff.initial.ms": "50",
}


class UnavailableError(Exception):
    """What the client of a sink's database may raise, a class that is not known here."""


def failing(batch: int, times: int) -> Callable[[int], None]:
    """Return what a sink does that fails so often at one batch."""
    left = [times]

    def on_batch(number: int) -> None:
        if number == batch and left[0] > 0:
            left[0] -= 1
            raise UnavailableError(f"no connection: batch={number}")

    return on_batch


def written_restarts(stream: Stream) -> list[tuple[int, str]]:
    """Return (epoch, reason) of each restart, as the events beside the checkpoints have it."""
    settings = {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{stream.location}-statekeep",
    }

    async def read() -> list[tuple[int, str]]:
        async with open_job(load_dict(settings), SystemClock()) as job:
            events = await job.progress()
        return [(e.epoch, e.details["reason"]) for e in events if e.kind == "restart"]

    return asyncio.run(read())


def test_a_sink_that_fails_twice_gets_every_batch_once(stream: Stream) -> None:
    stream.add_batches(4)
    stream.on_batch = failing(2, times=2)
    query = stream.start(settings=RESTARTS)
    first_run, query_id = query.runId, query.id
    query.awaitTermination()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)
    assert query.id == query_id
    assert query.runId != first_run
    assert query.exception() is None
    reason = "UnavailableError: no connection: batch=2"
    assert (query.status["restarts"], query.status["restartReason"]) == (2, reason)
    (operator,) = query.lastProgress["stateOperators"]
    assert (operator["restarts"], operator["restartReason"]) == (2, reason)
    assert [event["number"] for event in events_of(query, "restart")] == [1, 2]
    assert written_restarts(stream) == [(2, reason), (3, reason)]


def test_a_backend_that_fails_twice_costs_neither_state_nor_output(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add_batches(4)
    read, left = BlobCheckpointStore.read, [2]

    async def refuse(store: BlobCheckpointStore, attempt: str, **options: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise RetriableError(f"no answer: attempt={attempt}")
        return await read(store, attempt, **options)

    monkeypatch.setattr(BlobCheckpointStore, "read", refuse)
    query = stream.start(settings=RESTARTS | {"task.commit.ms": 1})
    query.awaitTermination()
    assert len(events_of(query, "restart")) == 2
    assert all("no answer" in event["reason"] for event in events_of(query, "void"))
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 3


def test_attempts_that_are_used_up_leave_the_error_and_say_how_many_there_were(
    stream: Stream,
) -> None:
    stream.add_batches(2)
    stream.on_batch = failing(1, times=99)
    query = stream.start(settings=RESTARTS | {"job.restart.attempts": "2"})
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert isinstance(caught.value.__cause__, UnavailableError)
    assert "the query was started again before: restarts=2" in caught.value.__notes__
    assert query.exception() is not None
    assert not query.isActive
    assert [batch for batch, _ in stream.delivered] == [0]


def test_an_error_of_a_processor_is_not_tried_again(stream: Stream) -> None:
    stream.add_batches(1)
    query = stream.start(Overflowing(), RESTARTS)
    with pytest.raises(StreamingQueryException, match="count"):
        query.awaitTermination()
    assert events_of(query, "restart") == []


def test_a_fenced_query_is_not_started_again(stream: Stream) -> None:
    stream.add_batches(3)

    def take_over(batch: int) -> None:
        if batch == 1:
            take_over_beside(query._job, stream.frame())

    stream.on_batch = take_over
    query: sk.StatefulStreamingQuery = stream.start(settings=RESTARTS)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert isinstance(caught.value.__cause__, TaskFencedError)
    assert events_of(query, "restart") == []
    assert events_of(query, "fenced") == [{"own_epoch": 1, "newer_epoch": 2}]


def test_a_query_goes_on_after_an_older_driver_has_planned_the_files_of_its_next_batch(
    stream: Stream,
) -> None:
    stream.add_batches(3)

    def plan_next() -> None:
        written, entry = (stream.location / "sources" / "0" / "1").read_text().split("\n")
        following = json.loads(entry.replace("001.parquet", "002.parquet")) | {"batchId": 2}
        following["timestamp"] += 1000
        planned = stream.location / "sources" / "0" / "2"
        planned.write_text(f"{written}\n{json.dumps(following)}")

    stream.on_batch = lambda batch: plan_next() if batch == 1 else None
    query = stream.start()
    query.awaitTermination()
    (restart,) = events_of(query, "restart")
    assert "Multiple streaming jobs detected for 2" in restart["reason"]
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2]
    assert stream.received() == stream.expected(3)


def test_a_stop_during_the_back_off_ends_the_query(stream: Stream) -> None:
    stream.add_batches(2)
    stream.on_batch = failing(1, times=99)
    query = stream.start(settings=RESTARTS | {"job.restart.backoff.initial.ms": "1h"})
    while not events_of(query, "restart"):
        assert not query.awaitTermination(1)
    assert [query.isActive, query.exception()] == [True, None]
    query.stop()
    assert [query.isActive, query.exception()] == [False, None]
    assert query.awaitTermination(1) is True
    assert [batch for batch, _ in stream.delivered] == [0]


def test_a_restart_that_finds_lost_disks_restores_them(stream: Stream) -> None:
    stream.add_batches(3)
    is_lost: list[bool] = []

    def lose_disk_and_fail(batch: int) -> None:
        if batch == 2 and not is_lost:
            is_lost.append(True)
            for path in stream.local_dir.glob("*/main"):
                lose_directory(path)
            raise UnavailableError("no connection")

    stream.on_batch = lose_disk_and_fail
    query = stream.start(settings=RESTARTS | {"task.commit.every.batch": True})
    query.awaitTermination()
    assert stream.received() == stream.expected(3)
    (recovery,) = events_of(query, "recovery")
    assert set(recovery["restored"].values()) == {"blob"}

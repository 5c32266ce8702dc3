"""Local state that is deleted while its query runs: it comes back from a backend."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Stream, events_of, lose_directory
from spark_processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def _whole(stream: Stream) -> list[Path]:
    return [stream.local_dir]


def _sidecars(stream: Stream) -> list[Path]:
    return list(stream.local_dir.glob("*/container-*"))


def _outboxes(stream: Stream) -> list[Path]:
    return list(stream.local_dir.glob("*/container-*/outbox"))


@pytest.mark.parametrize("find", [_whole, _sidecars, _outboxes])
@pytest.mark.parametrize("is_every_batch", [False, True], ids=["async", "every batch"])
def test_a_directory_of_local_state_that_is_deleted_under_a_query_costs_nothing(
    stream: Stream,
    find: Callable[[Stream], list[Path]],
    is_every_batch: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    stream.add_batches(6)

    lost = stream.root / "lost"

    def lose(batch: int) -> None:
        if batch == 3 and not lost.exists():
            lost.touch()
            for directory in find(stream):
                lose_directory(directory)

    stream.on_batch = lose
    query = stream.run(task__commit__ms=1, task__commit__every__batch=is_every_batch)
    assert lost.exists()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4, 5]
    assert stream.received() == stream.expected(6)
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 5


@pytest.mark.parametrize("keys", [40, 1], ids=["every task", "one task"])
def test_state_that_is_lost_before_the_last_commit_is_healed_and_committed(
    stream: Stream, keys: int
) -> None:
    """Also of tasks that had no rows in the last batch."""
    stream.add_batches(2)
    stream.add_batches(1, keys=keys)

    def lose(batch: int) -> None:
        if batch == 2:
            lose_directory(stream.local_dir)

    stream.on_batch = lose
    query = stream.run(task__commit__ms=3_600_000)
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2]
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 2
    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [0, 1, 2]

    stream.on_batch = lambda _: None
    stream.add_batches(1)
    stream.run()
    assert stream.received() == stream.expected(4)


def test_state_that_is_lost_while_the_stream_is_idle_is_healed_and_committed(
    stream: Stream,
) -> None:
    stream.add_batches(2)

    def lose(batch: int) -> None:
        if batch == 1:
            lose_directory(stream.local_dir)

    stream.on_batch = lose
    writer = stream.stateful(settings={"task.commit.ms": 1_000}).writeStream
    writer = writer.foreachBatch(stream.sink).option("checkpointLocation", str(stream.location))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        assert wait_until(lambda: query.lastCommit is not None and query.lastCommit.batch == 1)
    finally:
        query.stop()
    assert [batch for batch, _ in stream.delivered] == [0, 1]

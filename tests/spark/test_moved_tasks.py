"""Tasks move to executors that join while a query runs, between two batches."""

from collections import Counter

import pytest
from conftest import PARTITIONS, Stream, events_of
from pyspark.sql import SparkSession
from spark_processes import (
    ask_for_executor,
    await_loss,
    executors_of,
    take_executor_away,
    wait_until,
)

from statekeep.spark.driver import task_moves
from statekeep.spark.placement import Placement, spread
from statekeep.spark.query import StatefulStreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

BATCHES = 12
TAKEN, JOINED, LAST = 1, 2, BATCHES - 1


def run_with_a_new_executor(
    stream: Stream, log: pytest.LogCaptureFixture
) -> tuple[StatefulStreamingQuery, dict[int, Counter[str]]]:
    """Take an executor away in the sink of a batch, and ask for another one in that of a later one.

    Returns:
        The query at its end, and ``{batch: {executor: tasks}}``.
    """
    log.set_level("INFO", logger="statekeep")
    stream.add_batches(BATCHES)
    stream.settings = {"task.commit.ms": 1}
    context = stream.spark.sparkContext
    queries: list[StatefulStreamingQuery] = []
    seen: dict[int, Counter[str]] = {}

    def is_ready() -> bool:
        """Whether the next batch may move tasks: a commit has ended, and new executors are ready."""
        job = queries[0]._job
        assert job._owned.rebalancer is not None
        warm_up, move = job._owned.rebalancer._warm_up, job._owned.rebalancer.move
        return (
            job._owned.commits.open_batch is None
            and (warm_up is None or warm_up.running.done())
            and (move is None or not move.is_asking)
        )

    def look(batch: int) -> None:
        assert wait_until(lambda: bool(queries))
        if batch > JOINED:
            assert wait_until(is_ready)
        if batch not in {TAKEN, JOINED, LAST}:
            return
        places = executors_of(queries[0]._job).values()
        is_repeated = batch in seen  # as its rows were on the executor that is gone
        seen[batch] = Counter(place["executor"] for place in places)
        if batch == TAKEN and not is_repeated:
            take_executor_away(context, min(seen[batch]))
            await_loss(context, min(seen[batch]))
        if batch == JOINED:
            ask_for_executor(context)
            assert wait_until(lambda: "executors added" in log.text)

    stream.on_batch = look
    queries.append(stream.start())
    queries[0].awaitTermination()
    return queries[0], seen


@pytest.mark.long
def test_an_executor_that_joins_gets_tasks_after_the_next_commit(
    stream: Stream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_moves, "_ASK_AGAIN_NS", 0)
    query, seen = run_with_a_new_executor(stream, caplog)
    assert len(seen[JOINED]) == 1  # the one that was left runs all of them
    assert sorted(seen[LAST].values()) == [PARTITIONS // 2, PARTITIONS // 2]
    assert [details["reason"] for details in events_of(query, "recovery")] == ["move"]
    assert events_of(query, "tasks-moved") == [{"tasks": PARTITIONS // 2, "slots": 2}]
    assert [batch for batch, _ in stream.delivered] == list(range(BATCHES))
    assert stream.received() == stream.expected(BATCHES)


def test_the_table_of_one_job_outlives_that_of_another(spark: SparkSession) -> None:
    """Spark caches equal plans once, and a table of another job with as many slots would be equal."""
    ended, running = (Placement(spark, spread(PARTITIONS, 2), tag) for tag in ("ended", "running"))
    try:
        ended.close()
        assert running._frame.storageLevel.useMemory
    finally:
        running.close()

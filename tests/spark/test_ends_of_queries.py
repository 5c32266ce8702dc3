"""How a query ends that has nothing to process: a commit that fails, a stop without an answer."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from conftest import Stream
from pyspark.errors import StreamingQueryException
from spark_processes import wait_until

import statekeep as sk
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.errors import CommitFailedError, RetriableError, StateBackupError
from statekeep.spark.driver.query_watch import StopDeadline
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.worker.job_spec import SubmitPlan

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def refuse(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the driver fail so often to find out what the tasks have uploaded."""
    read, left = BlobCheckpointStore.read, [times]

    async def refused(store: BlobCheckpointStore, attempt: str, **options: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise RetriableError(f"no answer: attempt={attempt}")
        return await read(store, attempt, **options)

    monkeypatch.setattr(BlobCheckpointStore, "read", refused)


def start_idle(stream: Stream, **settings: Any) -> sk.StatefulStreamingQuery:
    """Start a query that gets one batch and then waits for more."""
    stream.add_batches(1)
    given = {key.replace("__", "."): value for key, value in settings.items()}
    writer = stream.stateful(settings=given).writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    query: sk.StatefulStreamingQuery = writer.trigger(processingTime="100 milliseconds").start()
    return query


def test_a_commit_that_fails_while_the_stream_is_idle_ends_the_query(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, times=1000)
    query = start_idle(stream, task__commit__ms=200)
    assert wait_until(lambda: not query.isActive)
    assert wait_until(lambda: query._job._is_closed)  # without a wait for the end
    failure = query.exception()
    assert failure is not None
    assert isinstance(failure.__cause__, CommitFailedError)
    with pytest.raises(StreamingQueryException, match="no answer"):
        query.awaitTermination()
    assert query.lastCommit is None
    assert not list(stream.root.rglob(".dispensable"))  # what was not committed is nowhere else


def test_a_query_that_failed_while_idle_is_started_again_and_commits(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, times=1)
    query = start_idle(
        stream,
        task__commit__ms=200,
        job__restart__strategy="fixed-delay",
        job__restart__backoff__initial__ms=50,
    )
    assert wait_until(lambda: query.status["lastCommittedBatch"] == 0)
    assert query.status["restarts"] == 1
    assert "no answer" in query.status["restartReason"]
    query.stop()
    assert [batch for batch, _ in stream.delivered] == [0]
    assert list(stream.root.rglob(".dispensable"))


def sleep(tasks: tuple[int, ...]) -> Iterator[pa.RecordBatch]:
    """What a task does that will never run."""
    threading.Event().wait(3600)
    yield pa.RecordBatch.from_pydict({"answer": [str(tasks)]})


def test_a_stop_does_not_wait_for_executors_that_never_come(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(jobs: TaskJobs, _plan: SubmitPlan) -> Any:
        return jobs.placement.run(sleep)

    monkeypatch.setattr(TaskJobs, "submit_versions", never)
    query = start_idle(stream, task__commit__ms=0, task__shutdown__ms=1000)
    assert wait_until((stream.location / "commits" / "0").exists)  # else there is nothing to commit
    query.stop()
    with pytest.raises(StateBackupError, match="did not become durable"):
        query.awaitTermination()


def test_a_stop_lets_a_delivered_batch_be_committed_where_every_batch_is(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_delivered, has_begun = threading.Event(), threading.Event()
    really, begin = TaskJobs.submit_versions, StopDeadline.begin

    def wait_for_the_stop(jobs: TaskJobs, plan: SubmitPlan) -> Mapping[int, str]:
        is_delivered.set()
        assert has_begun.wait(60)
        return really(jobs, plan)

    def note_and_begin(deadline: StopDeadline) -> None:
        begin(deadline)
        has_begun.set()

    monkeypatch.setattr(TaskJobs, "submit_versions", wait_for_the_stop)
    monkeypatch.setattr(StopDeadline, "begin", note_and_begin)
    query = start_idle(stream, task__commit__every__batch=True, task__shutdown__ms=60_000)
    assert is_delivered.wait(60)
    query.stop()
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 0

    stream.run(task__commit__every__batch=True)
    assert [batch for batch, _ in stream.delivered] == [0]


def test_a_sink_that_stops_its_own_query_is_not_waited_for(stream: Stream) -> None:
    stream.on_batch = lambda _batch: query._job.prepare_stop()
    longer_than_the_test = 600_000
    query = start_idle(
        stream, task__commit__every__batch=True, task__shutdown__ms=longer_than_the_test
    )
    assert wait_until(lambda: query.lastCommit is not None)
    query.stop()
    assert [batch for batch, _ in stream.delivered] == [0]


def test_a_stop_after_the_end_returns_where_every_batch_is_committed(stream: Stream) -> None:
    longer_than_the_test = 600_000
    stream.add_batches(1)
    query = stream.run(task__commit__every__batch=True, task__shutdown__ms=longer_than_the_test)
    query.stop()
    query.stop()
    assert [batch for batch, _ in stream.delivered] == [0]

"""A driver that is lost, replaced, or misled by what it finds: what its successor makes of it."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dying_driver
import pytest
from conftest import PARTITIONS, Stream, events_of, lose_directory
from processors import Count
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from spark_processes import await_end_of_sidecars, take_over_beside, wait_until

import statekeep as sk
from statekeep.checkpoint.records import BatchRecord, decode_record
from statekeep.errors import (
    CheckpointLocationError,
    CommitFailedError,
    ConfigError,
    ReplayDivergedError,
    StateBackupError,
    TaskFencedError,
)
from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.spark.driver.job import StatefulJob
from statekeep.testing.faults import (
    HANDLER,
    PLAN_VARIABLE,
    Action,
    ArmedFault,
    ProcessKind,
    ProcessPlan,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


class StoppedError(Exception):
    """What a test's sink raises to break a query off."""


def run_until_broken_off(stream: Stream, batch: int, **settings: Any) -> None:
    """Run the stream until its sink fails at ``batch``, as if the driver had died there."""

    def break_off(number: int) -> None:
        if number == batch:
            raise StoppedError(f"batch={number}")

    stream.on_batch = break_off
    with pytest.raises(StreamingQueryException):
        stream.run(**settings)
    stream.on_batch = lambda number: None


def run_until_delivered(stream: Stream, last: int, **settings: Any) -> bytes:
    """Run the stream until its sink has taken batch ``last``, as if the driver had died then.

    Returns what Spark would have written to ``commits/<last>``.
    """
    deliver = stream.sink

    def sink(frame: DataFrame, batch: int) -> None:
        deliver(frame, batch)
        if batch == last:
            raise StoppedError(f"batch={batch}")

    stream.sink = sink  # type: ignore[method-assign]
    with pytest.raises(StreamingQueryException):
        stream.run(**settings)
    stream.sink = deliver  # type: ignore[method-assign]
    return (stream.location / "commits" / f"{last - 1}").read_bytes()


def damage_record_of(stream: Stream, batch: int) -> None:
    """Flip a bit of the newest log record of a batch."""
    directory = Path(f"{stream.location}-statekeep") / "counts" / "log"
    for path in sorted(directory.iterdir(), reverse=True):
        data = path.read_bytes()
        try:
            record = decode_record(data, where=path.name)
        except StateBackupError:
            continue
        if isinstance(record, BatchRecord) and record.batch == batch:
            path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
            return
    pytest.fail(f"no record of the batch: batch={batch}")


started_jobs: list[StatefulJob] = []


@pytest.fixture(autouse=True)
def _watch_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    started_jobs.clear()
    before = StatefulJob.open

    def opened(job: StatefulJob, *given: Any) -> None:
        started_jobs.append(job)
        before(job, *given)

    monkeypatch.setattr(StatefulJob, "open", opened)


@pytest.mark.long
def test_a_commit_is_completed_whose_driver_was_killed_after_the_last_upload(
    stream: Stream,
) -> None:
    stream.add_batches(3)
    with (stream.root / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, dying_driver.__file__, str(stream.root)],
            cwd=Path(__file__).parent,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = driver.wait(120)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert code == -signal.SIGKILL, (stream.root / "driver.log").read_text()[-4000:]
    for state in stream.local_dir.glob("*/main"):
        lose_directory(state)
    stream.add_batches(1)

    query = stream.run()

    rolled, last = events_of(query, "commit")
    assert (rolled["batch"], rolled["was_rolled_forward"]) == (2, True)
    assert (last["batch"], last["was_rolled_forward"]) == (3, False)
    (recovery,) = events_of(query, "recovery")
    assert (recovery["replayed"], recovery["rows_replayed"]) == ([], 0)
    assert len(recovery["restored"]) == PARTITIONS
    assert [batch for batch, _ in stream.delivered] == [3]
    assert stream.received() == stream.expected(4)


@pytest.mark.long
def test_a_commit_whose_sidecars_died_with_the_driver_is_not_waited_for(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.add_batches(3)
    kind, point = ProcessKind.SIDECAR, "entry.before_write"
    fault = ArmedFault("death", point, Action.CRASH, kind=kind, is_once=False)
    plan = ProcessPlan([fault], stream.root / "claims")
    plan.write(stream.root / "plan.json")
    armed = {HANDLER_VARIABLE: HANDLER, PLAN_VARIABLE: str(stream.root / "plan.json")}
    with (stream.root / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, dying_driver.__file__, str(stream.root)],
            cwd=Path(__file__).parent,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **armed},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert wait_until(lambda: len(plan.strikes()) > 0, 120)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    await_end_of_sidecars(stream.local_dir)

    query = stream.run()

    assert "no sidecar is left to finish a task's backup" in caplog.text
    assert all(not commit["was_rolled_forward"] for commit in events_of(query, "commit"))
    assert stream.delivered == []
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 2


def test_a_batch_whose_record_is_damaged_is_replayed_from_sparks_own_logs(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.add_batches(4)
    run_until_broken_off(stream, 3, task__commit__ms=0)
    damage_record_of(stream, 2)

    query = stream.run()

    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [0, 1, 2]
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)
    assert "batch record is damaged" in caplog.text


def test_a_damaged_record_in_the_middle_costs_only_tasks_that_must_replay_it(
    stream: Stream,
) -> None:
    stream.add_batches(4)
    run_until_broken_off(stream, 3, task__commit__ms=0)
    damage_record_of(stream, 1)
    (job_directory,) = stream.local_dir.iterdir()
    shutil.rmtree(job_directory / "main" / "Partition_1")

    query = stream.run()

    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [0, 1, 2]
    assert 0 < recovery["rows_replayed"] < 400
    assert stream.received() == stream.expected(4)

    lose_directory(stream.local_dir)
    stream.add_batches(1)
    stream.run()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3, 4]
    assert stream.received() == stream.expected(5)


def test_a_batch_that_a_fenced_driver_ended_late_is_replayed_by_the_next_driver(
    stream: Stream,
) -> None:
    stream.add_batches(4)
    text = run_until_delivered(stream, 2, task__commit__ms=0)
    ended = stream.location / "commits" / "2"
    take_over_beside(started_jobs[0], stream.frame())
    ended.write_bytes(text)

    query = stream.run()

    (recovery,) = events_of(query, "recovery")
    assert recovery["replayed"] == [2]
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)


def test_a_batch_that_a_fenced_driver_ends_after_the_take_over_is_replayed(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add_batches(4)
    text = run_until_delivered(stream, 2, task__commit__ms=0)
    ended = stream.location / "commits" / "2"
    before = StatefulJob.open

    def opened(job: StatefulJob, *given: Any) -> None:
        before(job, *given)
        ended.write_bytes(text)

    monkeypatch.setattr(StatefulJob, "open", opened)

    query = stream.run()

    assert [recovery["replayed"] for recovery in events_of(query, "recovery")] == [[], [2]]
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)


def test_an_idle_query_fails_soon_after_it_was_replaced(stream: Stream) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        take_over_beside(started_jobs[0], stream.frame())
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(60)
    finally:
        query.stop()
    assert isinstance(caught.value.__cause__, TaskFencedError)
    assert not query.isActive
    exception = query.exception()
    assert exception is not None
    assert "another driver has taken over" in str(exception)


def test_a_query_that_spark_stops_for_a_second_start_says_that_it_was_replaced(
    stream: Stream,
) -> None:
    """It has nothing left to commit, so no append of its own would tell it."""
    stream.add_batches(1)
    operator = stream.stateful(settings={"task.commit.every.batch": True})
    writer = operator.writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    first = writer.start()
    first.processAllAvailable()
    writer.start().stop()
    with pytest.raises(StreamingQueryException) as caught:
        first.awaitTermination(60)
    assert isinstance(caught.value.__cause__, TaskFencedError)


def test_a_checkpoint_location_that_was_set_back_is_refused(stream: Stream) -> None:
    stream.add_batches(3)
    stream.run()
    for batch in (1, 2):
        (stream.location / "commits" / str(batch)).unlink()
    with pytest.raises(CheckpointLocationError, match="are of different times: commits=0 logged=2"):
        stream.run()


def test_the_checkpoint_location_of_a_foreign_query_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    stream.settings = {"blob.store.uri": str(stream.root / "backup")}
    stream.run()
    shutil.rmtree(stream.location)
    plain = stream.frame().writeStream.format("noop")
    plain = plain.option("checkpointLocation", str(stream.location)).trigger(availableNow=True)
    plain.start().awaitTermination()
    with pytest.raises(CheckpointLocationError, match="is of another query: query_id="):
        stream.run()


def test_a_replay_whose_boundaries_were_purged_names_the_setting(stream: Stream) -> None:
    stream.add_batches(4)
    run_until_broken_off(stream, 3, task__commit__ms=0)
    damage_record_of(stream, 1)
    (stream.location / "offsets" / "1").unlink()
    lose_directory(stream.local_dir)
    with pytest.raises(CheckpointLocationError, match="offsets of a batch are gone") as caught:
        stream.run()
    assert "spark.sql.streaming.minBatchesToRetain" in "".join(caught.value.hints)


def test_a_replay_whose_input_is_gone_says_what_to_keep(stream: Stream) -> None:
    stream.add_batches(3)
    run_until_broken_off(stream, 2, task__commit__ms=0)
    lose_directory(stream.local_dir)
    (stream.root / "in" / "000.parquet").unlink()
    with pytest.raises(ReplayDivergedError, match=r"replayed_rows=0.* batch=0") as caught:
        stream.run()
    assert "raise its retention" in "".join(caught.value.hints)


def test_processing_waits_for_a_commit_before_a_replay_gets_too_long(stream: Stream) -> None:
    stream.add_batches(8)
    query = stream.run(task__commit__ms=0, task__replay__max__batches=4)
    committed = -1
    lags = []
    for event in query.events:
        if event.kind == "commit":
            committed = event.details["batch"]
        elif event.kind == "batch":
            lags.append(event.details["batch"] - committed)
    assert len(lags) == 8
    assert max(lags) <= 4
    assert stream.received() == stream.expected(8)


def test_tolerated_failures_end_where_a_replay_would_get_too_long(stream: Stream) -> None:
    broken = stream.root / "first"
    stream.settings = {
        "stores.state.backup.factories": "first,second",
        "backends.first.factory": "blob",
        "backends.first.uri": str(broken),
        "backends.second.factory": "blob",
        "backends.second.uri": str(stream.root / "second"),
        "job.log.backend": "second",
        "task.commit.ms": 1,
        "task.commit.skip.commit.during.failures.enabled": True,
        "task.commit.skip.commit.exception.max.limit": 6,
        "task.replay.max.batches": 3,
    }
    stream.add_batches(12)

    def break_backend(batch: int) -> None:
        if batch == 0:
            shutil.rmtree(broken, ignore_errors=True)
            broken.write_text("not a directory")

    stream.on_batch = break_backend
    with pytest.raises(StreamingQueryException) as caught:
        stream.run()
    cause = caught.value.__cause__
    assert isinstance(cause, CommitFailedError)
    assert "task.replay.max.batches" in "".join(cause.hints)
    assert max(batch for batch, _ in stream.delivered) <= 3


def test_a_source_that_removes_its_files_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    reader = stream.spark.readStream.schema("key string, v long").option("cleanSource", "delete")
    stream.frame = lambda: reader.parquet(str(stream.root / "in"))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="cleanSource=delete"):
        stream.run()
    stream.run(task__commit__every__batch=True)
    assert stream.received() == stream.expected(1)


def test_a_source_that_may_lose_data_is_warned_of(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    rate = stream.spark.readStream.format("rate").option("failOnDataLoss", "false").load()
    settings = {"job.name": "rate", "job.logged.store.base.dir": str(stream.local_dir)}
    grouped = sk.grouped(rate.selectExpr("'a' AS key", "value AS v").groupBy("key"), settings)
    writer = grouped.transformWithState(
        Count(), "key string, n long, s long", "Append", "None"
    ).writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    query.stop()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any("source=rate failOnDataLoss=false" in message for message in warned)


def test_asynchronous_progress_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    with pytest.raises(ConfigError, match="asyncProgressTrackingEnabled"):
        writer.option("asyncProgressTrackingEnabled", "true")

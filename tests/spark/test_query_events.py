"""What a query tells of itself outlives it, beside the checkpoints."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from conftest import PARTITIONS, Stream
from spark_processes import wait_until

from statekeep.backends.registry import BackendRegistry
from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.names import job_scope
from statekeep.checkpoint.records import AttemptRecord
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.load import load_dict
from statekeep.errors import RetriableError
from statekeep.inspection.job import open_job

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def settings_of(stream: Stream) -> dict[str, Any]:
    return {
        "job.name": "counts",
        "stores.backup.factories": "blob",
        "blob.store.uri": f"{stream.location}-statekeep",
    }


def written_events(stream: Stream) -> list[Event]:
    async def read() -> list[Event]:
        async with open_job(load_dict(settings_of(stream)), SystemClock()) as job:
            return list(await job.progress())

    return asyncio.run(read())


async def leave_an_attempt_open(stream: Stream) -> None:
    """Take the job over as a driver that dies between the attempt record and the uploads."""
    executor, clock = BoundedExecutor(2, "test"), SystemClock()
    factory = BackendRegistry(load_dict(settings_of(stream))).factory("blob")
    log = LogSession(factory.job_log(job_scope("counts"), executor, clock))
    await log.open()
    await log.take_over("a driver that dies")
    await log.append(AttemptRecord(attempt=1, batch=0, checkpoint_id="7-1", versions={}))
    await log.close()
    await executor.close()


def test_a_clean_up_that_fails_shows_in_the_status_until_one_ends_well(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> bool:
        raise RetriableError("nothing is deleted today")

    stream.add_batches(4)
    settings = {"task.commit.every.batch": "true", "checkpoint.clean.up.ms": "0"}
    writer = stream.stateful(settings=settings).writeStream.foreachBatch(stream.sink)
    with monkeypatch.context() as patched:
        patched.setattr(TaskStorageCommitManager, "clean_up", refuse)
        query = writer.option("checkpointLocation", str(stream.location)).start()
        assert wait_until(lambda: query.status["cleanUpFailing"] is not None)
        failing = query.status["cleanUpFailing"]
        assert failing == {"minutes": 0, "error": "RetriableError: nothing is deleted today"}
    stream.add_batches(1)
    assert wait_until(lambda: query.status["cleanUpFailing"] is None)
    query.stop()


def test_a_query_proves_its_commits_while_it_runs(stream: Stream) -> None:
    stream.add_batches(3)
    settings = {"job.verify.interval.ms": "300", "task.commit.every.batch": "true"}
    writer = stream.stateful(settings=settings).writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    assert wait_until(lambda: query.status["lastVerifiedCommit"] is not None)
    verified = query.status["lastVerifiedCommit"]
    assert verified["backends"] == ("blob",)
    assert verified["task"].startswith("Partition ")
    backups = f"{stream.location}-statekeep"
    for path in Path(backups).rglob("*"):
        if path.is_file() and "/blob/" in str(path):
            path.write_bytes(b"damaged")
    assert wait_until(lambda: query.status["verifyFailing"] is not None)
    (failed, *_) = [event for event in query.events if event.kind == "verify-failed"]
    assert (failed.details["backend"], failed.details["is_damaged"]) == ("blob", True)
    query.stop()


def test_an_attempt_that_a_dead_driver_left_open_is_reported_as_aborted(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run()
    asyncio.run(leave_an_attempt_open(stream))
    stream.run()
    (aborted,) = [event for event in written_events(stream) if event.kind == "void"]
    assert aborted.epoch == 3
    assert (aborted.details["attempt_epoch"], aborted.details["attempt"]) == (2, 1)
    assert aborted.details["reason"] == "its owner is gone"


def test_the_events_of_each_session_are_written_beside_the_checkpoints(stream: Stream) -> None:
    stream.add_batches(3)
    stream.run(task__commit__every__batch=True)
    stream.add_batches(1)
    stream.run()
    events = written_events(stream)
    assert {event.epoch for event in events} == {1, 2}
    first = [event for event in events if event.epoch == 1]
    assert [event.sequence for event in first] == list(range(len(first)))
    assert first[0].kind == "job-initialised"
    assert first[0].details["partitions"] == PARTITIONS
    assert first[0].details["backends"] == ["blob"]
    uploads = [event.details for event in first if event.kind == "task-uploaded"]
    assert len(uploads) == 3 * PARTITIONS
    assert all(upload["bytes"] > 0 and upload["elapsed_ms"] >= 0 for upload in uploads)
    kinds = [event.kind for event in first if event.kind in {"batch", "commit", "stopped"}]
    assert kinds.count("batch") == kinds.count("commit") == 3
    assert kinds[-1] == "stopped"
    second = [event for event in events if event.epoch == 2]
    assert (second[0].kind, second[0].details["committed"]) == ("job-initialised", 2)
    assert [event.kind for event in second].count("recovery") == 1
    assert second[-1].details == {"committed": 3, "head": 3, "error": None}

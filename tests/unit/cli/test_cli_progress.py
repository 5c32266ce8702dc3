"""``statekeep events --progress``: what a job did, where there is no job any more."""

import asyncio
import shutil
from pathlib import Path

import pytest
from cli_kit import CommandLine, job_settings
from secret_kit import SECRET, TEXTS

from statekeep.backends.registry import BackendRegistry
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.event_log import Event, EventWriter
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.names import MAIN_OPERATOR, task_scope
from statekeep.checkpoint.records import AbortRecord, BadMarkerRecord
from statekeep.cli.events import _progress, _row
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.load import load_dict
from statekeep.errors import RetriableError
from statekeep.testing.clock import FakeClock

TASK = "Partition 9"
LOG = f"--task '{TASK}'"


async def write_events(directory: Path, sessions: int) -> None:
    """Take over as often as asked; each session writes two segments of one event."""
    factory = BackendRegistry(load_dict(job_settings(directory))).factory("near")
    executor, clock = BoundedExecutor(2, "test"), FakeClock()
    scope = task_scope("orders", MAIN_OPERATOR, TASK)
    store = factory.checkpoint_store(scope, executor, clock)
    for _ in range(sessions):
        log = LogSession(factory.job_log(scope, executor, clock))
        await log.open()
        await log.take_over("test")
        writer = EventWriter(store, log.epoch, clock, flush_interval_ms=0, buffer_bytes=9999)
        writer.add("job-initialised", partitions=1, stores={"main": ["state"]})
        await writer.flush()
        writer.add("stopped", head=log.epoch, error=None)
        await writer.flush()
        await log.close()
    await damage(store)
    await store.close()
    await executor.close()


async def damage(store: CheckpointStore) -> None:
    """Cut the first segment of the second session off in the middle, as a crash may leave it."""
    found = await store.read("events-2")
    name = TaskName("000000")
    await store.write("events-2", name, found[name][: len(found[name]) // 2])


def test_progress_comes_from_every_segment_that_can_be_read(
    statekeep: CommandLine, job: Path
) -> None:
    asyncio.run(write_events(job, 3))
    rows = statekeep(f"events --progress --json {LOG}").json
    assert [(row["epoch"], row["sequence"], row["event"]) for row in rows] == [
        (1, 0, "job-initialised"),
        (1, 1, "stopped"),
        (2, 1, "stopped"),
        (3, 0, "job-initialised"),
        (3, 1, "stopped"),
    ]
    assert rows[0]["details"] == {"partitions": 1, "stores": {"main": ["state"]}}


def test_people_get_a_line_for_each_event(statekeep: CommandLine, job: Path) -> None:
    asyncio.run(write_events(job, 2))
    result = statekeep(f"events --progress --last 2 {LOG}")
    assert result.status == 0
    _, first, second = [line.split() for line in result.out.splitlines()]
    assert first[1:] == ["1", "stopped", "head=1"]
    assert second[1:] == ["2", "stopped", "head=2"]


def test_the_progress_of_a_task_in_plain_python_is_shown(statekeep: CommandLine) -> None:
    rows = statekeep("events --progress --json --task 'Partition 0'").json
    kinds = [row["event"] for row in rows]
    assert (kinds[0], kinds[-1]) == ("job-initialised", "stopped")
    assert kinds.count("commit") == kinds.count("task-uploaded") > 0


def test_a_job_whose_events_are_gone_shows_none(statekeep: CommandLine, job: Path) -> None:
    for segments in job.rglob("events-*"):
        shutil.rmtree(segments)
    assert statekeep("events --progress --json --task 'Partition 0'").json == []


def test_a_store_that_cannot_be_read_sets_the_exit_status(
    statekeep: CommandLine, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(write_events(job, 2))

    async def refuse(*_: object, **__: object) -> None:
        raise RetriableError("no answer")

    monkeypatch.setattr(BlobCheckpointStore, "read", refuse)
    result = statekeep(f"events --progress {LOG}")
    assert result.status == 4
    assert "no answer" in result.err


@pytest.mark.parametrize("text", TEXTS)
def test_secrets_that_older_releases_have_stored_are_not_printed(text: str) -> None:
    abort = AbortRecord(epoch=1, nonce="v", attempt_epoch=1, attempt=1, reason=text)
    bad = BadMarkerRecord(
        epoch=1, nonce="b", backend="far", task=TASK, store="s", marker="m", reason=text
    )
    events = [
        Event(epoch=1, sequence=0, time_ms=0, kind="stopped", details={"error": text}),
        Event(epoch=1, sequence=0, time_ms=0, kind="recovery", details={"failures": [text]}),
    ]
    shown = [*(_row(1, record) for record in (abort, bad)), *map(_progress, events)]
    assert all("***" in str(row) for row in shown)
    assert SECRET not in str(shown)

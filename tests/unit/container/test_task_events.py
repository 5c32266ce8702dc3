"""What a task in plain Python tells of itself: beside its log, batched, never in its way."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from container_kit import INPUT, Controls, config, controls

from statekeep.backends.memory import forget_place
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.event_log import Event
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import CommitFailedError, RetriableError, TaskFencedError
from statekeep.inspection.job import open_job
from statekeep.testing.clock import FakeClock

TASK = "Partition 0"


@pytest_asyncio.fixture(autouse=True)
async def leftovers(tmp_path: Path) -> AsyncIterator[None]:
    """After every test no asyncio task is left."""
    yield
    forget_place(str(tmp_path))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def held(tmp_path: Path) -> Controls:
    return controls(tmp_path)


async def commit(task: Task, offset: int) -> None:
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()


async def events_in(directory: Path) -> list[Event]:
    async with open_job(config(directory), SystemClock(), task=TASK) as job:
        return list(await job.progress())


async def details_of(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [event.details for event in await events_in(directory) if event.kind == kind]


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_task_reports_what_it_did_from_its_start_to_its_end(tmp_path: Path) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"v" * 1000)
        await commit(task, 1)
        await task.wait()
    events = await events_in(tmp_path)
    assert [(event.epoch, event.sequence) for event in events] == [(1, n) for n in range(5)]
    assert [event.kind for event in events] == [
        "job-initialised",
        "recovery",
        "task-uploaded",
        "commit",
        "stopped",
    ]
    began = events[0].details
    assert (began["partitions"], began["stores"]) == (1, {"main": ["s"]})
    assert (began["backends"], began["log_backend"]) == (["held"], "held")
    assert (began["commit_position"], began["committed"], began["head"]) == (1, -1, -1)
    upload, done = events[2].details, events[3].details
    assert (upload["task"], upload["attempt"], upload["batch"]) == (TASK, 1, 0)
    assert upload["bytes"] == done["bytes_uploaded"] > 1000
    assert upload["elapsed_ms"] >= upload["uploads"]["held"].pop("elapsed_ms") >= 0
    assert upload["uploads"] == {"held": {"bytes": upload["bytes"]}}
    assert upload["state_bytes"] > 1000
    assert upload["changed_bytes"] is None  # the first commit has no other to build on
    assert (done["batch"], done["tasks_uploaded"]) == (0, 1)
    phases = ("wait_ms", "upload_ms", "record_ms")
    assert sum(done[phase] for phase in phases) <= done["elapsed_ms"] + len(phases)
    assert 0 < done["pause_ms"] <= done["elapsed_ms"] + 1
    assert (done["skipped"], done["blocked_ms"]) == (0, 0)
    assert events[4].details == {"error": None, "committed": 0, "head": 0}


@pytest.mark.asyncio
async def test_the_next_session_reports_where_it_begins_and_what_it_restored(
    tmp_path: Path,
) -> None:
    for offset in (1, 2):
        async with Container(config(tmp_path)) as container:
            await commit(await container.start_task(TASK, ["s"]), offset)
    _, began = await details_of(tmp_path, "job-initialised")
    assert began["committed"] == 0
    _, recovery = await details_of(tmp_path, "recovery")
    assert (recovery["head"], recovery["restored"]) == (0, {"s": "local"})
    assert recovery["bytes_fetched"] == 0


@pytest.mark.asyncio
async def test_an_attempt_that_fails_is_reported_as_aborted(tmp_path: Path, held: Controls) -> None:
    held.upload_error = lambda: RetriableError("down")
    async with Container(config(tmp_path)) as container:
        with pytest.raises(CommitFailedError):
            await commit(await container.start_task(TASK, ["s"]), 1)
    (aborted,) = await details_of(tmp_path, "void")
    assert "backend=held" in aborted.pop("reason")
    assert aborted == {"attempt_epoch": 1, "attempt": 1, "batch": 0}
    (stopped,) = await details_of(tmp_path, "stopped")
    assert stopped["error"].startswith("CommitFailedError: the commit failed")


@pytest.mark.asyncio
async def test_an_attempt_that_a_new_owner_finds_open_is_reported_as_aborted_by_him(
    tmp_path: Path, held: Controls
) -> None:
    held.gate.clear()
    async with Container(config(tmp_path)) as first:
        held_up = await (await first.start_task(TASK, ["s"])).commit({INPUT: "1"})
        await settle()
        async with Container(config(tmp_path)) as second:
            await second.start_task(TASK, ["s"])
        held.gate.set()
        with pytest.raises(TaskFencedError):
            await held_up.wait()
    aborted = [event for event in await events_in(tmp_path) if event.kind == "void"]
    assert [event.epoch for event in aborted] == [2]
    assert aborted[0].details == {
        "attempt_epoch": 1,
        "attempt": 1,
        "batch": 0,
        "reason": "its owner is gone",
    }
    (fenced,) = await details_of(tmp_path, "fenced")
    assert fenced == {"own_epoch": 1, "newer_epoch": 2}


@pytest.mark.asyncio
async def test_a_commit_record_that_landed_without_an_answer_is_reported_as_a_commit(
    tmp_path: Path, held: Controls
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        held.lose_answer = (CommitRecord, "after")
        await commit(task, 1)
    kinds = [event.kind for event in await events_in(tmp_path)]
    assert kinds.count("commit") == 1
    assert "void" not in kinds


@pytest.mark.asyncio
async def test_events_wait_for_the_flush_interval(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = config(tmp_path, job__event__store__write__buffer__flush__interval__ms="5s")
    async with Container(settings, clock=clock) as container:
        task = await container.start_task(TASK, ["s"])
        task.is_commit_due()
        await settle()
        assert await events_in(tmp_path) == []
        clock.advance(5)
        task.is_commit_due()
        await settle()
        kinds = [event.kind for event in await events_in(tmp_path)]
    assert kinds == ["job-initialised", "recovery"]


@pytest.mark.asyncio
async def test_a_full_buffer_does_not_wait(tmp_path: Path) -> None:
    settings = config(tmp_path, job__event__store__write__buffer__size="1KiB")
    async with Container(settings, clock=FakeClock()) as container:
        task = await container.start_task(TASK, ["s"])
        for offset in range(3):
            await commit(task, offset)
        await settle()
        assert len(await events_in(tmp_path)) > 4


@pytest.mark.asyncio
async def test_a_backend_that_takes_no_events_costs_warnings_and_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        raise RetriableError("the place is full")

    monkeypatch.setattr(BlobCheckpointStore, "write", refuse)
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, 1)
    assert "events could not be written: epoch=1" in caplog.text
    async with Container(config(tmp_path)) as container:
        assert (await container.start_task(TASK, ["s"])).input_offsets == {INPUT: "1"}


@pytest.mark.asyncio
async def test_a_job_whose_state_ends_with_the_process_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with Container(config(tmp_path)) as container:
            await container.start_task(TASK, ["s"])
    assert "state does not outlive the process: backends=held log_backend=held" in caplog.text
    (began,) = await details_of(tmp_path, "job-initialised")
    assert began["limits"][0].startswith("state does not outlive the process")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("backends", "is_limited"),
    [("near", False), ("near,held", False), ("held,near", True)],
    ids=["durable", "log in the durable one", "log in the other one"],
)
async def test_one_durable_backend_that_holds_the_log_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, backends: str, *, is_limited: bool
) -> None:
    values = dict(config(tmp_path).as_dict())
    values |= {
        "stores.backup.factories": backends,
        "backends.near.factory": "blob",
        "backends.near.uri": (tmp_path / "near").as_uri(),
    }
    if "held" not in backends:
        values = {k: v for k, v in values.items() if not k.startswith("backends.held")}
    async with Container(load_dict(values)) as container:
        await container.start_task(TASK, ["s"])
    assert ("does not outlive the process" in caplog.text) == is_limited

"""Commits of the plain-Python container that fail: told, aborted, healed by the next one."""

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from container_kit import INPUT, Controls, config, controls
from typing_extensions import override

from statekeep.backends.memory import forget_place
from statekeep.checkpoint.checkpoints import TaskName, VersionId
from statekeep.checkpoint.records import (
    AbortRecord,
    AttemptRecord,
    CommitRecord,
    Record,
    ReleaseRecord,
)
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.container.task_stores import TaskStores
from statekeep.errors import (
    CommitFailedError,
    RetriableError,
)
from statekeep.events import CommitFailed, Event, EventSource, Listener
from statekeep.stores.version import SealedVersion

TASK = "Partition 0"


@pytest_asyncio.fixture(autouse=True)
async def leftovers(tmp_path: Path) -> AsyncIterator[None]:
    """After every test: no thread, no asyncio task, no work directory is left."""
    before = set(threading.enumerate())
    yield
    forget_place(str(tmp_path))
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert {t for t in threading.enumerate() if t.name.startswith("statekeep")} <= before
    assert list(tmp_path.rglob("work-*")) == []


@pytest.fixture
def held(tmp_path: Path) -> Controls:
    return controls(tmp_path)


async def commit(task: Task, offset: int) -> None:
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()


@pytest.mark.asyncio
async def test_a_failed_upload_is_reported_at_once_and_raised_by_the_next_commit(
    tmp_path: Path, held: Controls
) -> None:
    told: list[tuple[TaskName, Exception]] = []
    held.upload_error = lambda: RetriableError("the store is down")
    async with Container(
        config(tmp_path), on_commit_failure=lambda name, error: told.append((name, error))
    ) as container:
        task = await container.start_task(TASK, ["s"])
        failed = await task.commit({INPUT: "1"})
        with pytest.raises(CommitFailedError, match="step=upload"):
            await failed.wait()
        assert [name for name, _ in told] == [TASK]
        assert task.last_error is told[0][1]
        assert task.is_commit_due()
        with pytest.raises(CommitFailedError, match="step=upload"):
            await task.commit({INPUT: "2"})


class Failures(Listener):
    def __init__(self) -> None:
        self.found: list[CommitFailed] = []

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        if isinstance(event, CommitFailed):
            self.found.append(event)

    @override
    def close(self) -> None:
        pass


@pytest.mark.asyncio
async def test_a_failure_is_an_event_though_the_program_ends_while_the_log_is_away(
    tmp_path: Path, held: Controls
) -> None:
    failures = Failures()
    held.upload_error = lambda: RetriableError("the store is down")
    held.log_error = lambda r: (
        RetriableError("the log is away") if isinstance(r, AbortRecord) else None
    )
    async with Container(config(tmp_path), listeners=[failures]) as container:
        task = await container.start_task(TASK, ["s"])
        with pytest.raises(CommitFailedError, match="step=upload"):
            await commit(task, 1)
        assert failures.found == []
    (failure,) = failures.found
    assert (failure.step, "the store is down" in failure.error) == ("upload", True)


@pytest.mark.asyncio
async def test_a_failed_seal_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def seal(stores: TaskStores, base: VersionId | None) -> tuple[int, SealedVersion]:
        raise OSError(errno.ENOSPC, "No space left on device")

    failures = Failures()
    async with Container(config(tmp_path), listeners=[failures]) as container:
        task = await container.start_task(TASK, ["s"])
        monkeypatch.setattr(TaskStores, "seal", seal)
        with pytest.raises(CommitFailedError, match="could not be sealed") as caught:
            await commit(task, 1)
        assert task.metrics.counters["commit-exceptions"] == 1
    (failure,) = failures.found
    assert (failure.checkpoint_id, failure.step) == (caught.value.checkpoint_id, "snapshot")
    assert "No space left on device" in failure.error


@pytest.mark.asyncio
async def test_a_tolerated_failure_heals_with_the_next_commit(
    tmp_path: Path, held: Controls
) -> None:
    settings = config(tmp_path, task__commit__skip__commit__during__failures__enabled="true")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, 1)
        held.upload_error = lambda: RetriableError("the store is down")
        task.store("s").put(b"k", b"v")
        with pytest.raises(CommitFailedError):
            await commit(task, 2)
        held.upload_error = None
        await commit(task, 3)
        assert task.last_error is None
    shutil.rmtree(tmp_path / "local")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"v", "3")


@pytest.mark.asyncio
async def test_a_commit_that_times_out_is_aborted_before_the_next_one_starts(
    tmp_path: Path, held: Controls
) -> None:
    settings = config(
        tmp_path,
        task__commit__skip__commit__during__failures__enabled="true",
        task__commit__max__delay__ms="0",
        task__commit__timeout__ms="1",
    )
    held.gate.clear()
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        stuck = await task.commit({INPUT: "1"})
        while not held.uploading:
            await asyncio.sleep(0)
        following = asyncio.create_task(task.commit({INPUT: "2"}))
        with pytest.raises(CommitFailedError, match="step=timeout"):
            await stuck.wait()
        held.gate.set()
        await (await following).wait()
        assert held.most_uploading == 1
        assert task.metrics.snapshot()["commits-timed-out"] == 1
        await task.wait()
    async with Container(settings) as container:
        assert (await container.start_task(TASK, ["s"])).input_offsets == {INPUT: "2"}


@pytest.mark.asyncio
@pytest.mark.parametrize("record", [AttemptRecord, CommitRecord])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_lost_answer_of_the_log_ends_as_what_really_happened(
    tmp_path: Path, held: Controls, record: type[Record], moment: str
) -> None:
    settings = config(tmp_path, task__commit__skip__commit__during__failures__enabled="true")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, 1)
        held.lose_answer = record, moment
        unclear = await task.commit({INPUT: "2"}, force=True)
        if record is CommitRecord and moment == "after":
            await unclear.wait()
        else:
            with pytest.raises(CommitFailedError, match="step=record"):
                await unclear.wait()
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        has_landed = record is CommitRecord and moment == "after"
        assert task.input_offsets == {INPUT: "2" if has_landed else "1"}
        await commit(task, 3)
        await task.wait()


class ForeignError(Exception):
    """What the library under a plug-in raises, unmapped."""


@pytest.mark.asyncio
async def test_a_commit_fails_whatever_its_log_raises(
    tmp_path: Path, held: Controls, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(tmp_path, task__commit__skip__commit__during__failures__enabled="true")
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, 1)
        held.log_error = lambda record: ForeignError()
        async with asyncio.timeout(5):
            with pytest.raises(CommitFailedError, match="step=record"):
                await commit(task, 2)
        assert "unexpected error of the job log" in caplog.text
        held.log_error = lambda record: None
        await commit(task, 3)


@pytest.mark.asyncio
async def test_a_release_that_fails_by_a_foreign_error_is_reported_and_repeated(
    tmp_path: Path, held: Controls, caplog: pytest.LogCaptureFixture
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        held.log_error = lambda r: ForeignError() if isinstance(r, ReleaseRecord) else None
        for number in range(3):
            await commit(task, number)
            await task.wait()
        assert "clean-up failed and will be repeated" in caplog.text
        assert "ForeignError" in caplog.text
        held.log_error = lambda r: None
        held.cleaned.clear()
        await commit(task, 3)
        await task.wait()
        assert any(held.cleaned)


@pytest.mark.asyncio
async def test_a_clean_up_that_fails_is_a_warning_with_all_that_its_backends_say(
    tmp_path: Path, held: Controls, caplog: pytest.LogCaptureFixture
) -> None:
    lost = RetriableError("the place is away")
    lost.add_note("backend=held store=s")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        held.log_error = lambda r: (
            ExceptionGroup("two", [lost, RetriableError("so is this")])
            if isinstance(r, ReleaseRecord)
            else None
        )
        for number in range(3):
            await commit(task, number)
            await task.wait()
    told = [(r.levelname, r.getMessage()) for r in caplog.records if "clean-up" in r.getMessage()]
    assert told[:2] == [
        ("WARNING", f"clean-up failed and will be repeated: task={TASK} error={error}")
        for error in ("the place is away; backend=held store=s", "so is this")
    ]


@pytest.mark.asyncio
async def test_a_commit_that_another_task_cancelled_is_aborted_and_the_next_one_goes_on(
    tmp_path: Path, held: Controls
) -> None:
    settings = config(tmp_path, task__commit__skip__commit__during__failures__enabled="true")
    held.gate.clear()
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        begun = await task.commit({INPUT: "1"})
        while not held.uploading:
            await asyncio.sleep(0)
        (running,) = (t for t in asyncio.all_tasks() if t.get_name().startswith("commit "))
        running.cancel()
        held.gate.set()
        await commit(task, 2)
        with pytest.raises(CommitFailedError):
            await begun.wait()


@pytest.mark.asyncio
async def test_the_end_of_the_container_lets_an_open_commit_finish(
    tmp_path: Path, held: Controls
) -> None:
    held.gate.clear()
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        begun = await task.commit({INPUT: "1"})
        asyncio.get_running_loop().call_later(0, held.gate.set)
    assert begun.done()
    async with Container(config(tmp_path)) as container:
        assert (await container.start_task(TASK, ["s"])).input_offsets == {INPUT: "1"}


@pytest.mark.asyncio
async def test_the_end_of_the_container_gives_a_stuck_commit_up_after_the_shutdown_time(
    tmp_path: Path, held: Controls
) -> None:
    held.gate.clear()
    async with Container(config(tmp_path, task__shutdown__ms="1")) as container:
        task = await container.start_task(TASK, ["s"])
        begun = await task.commit({INPUT: "1"})
    with pytest.raises(CommitFailedError, match="step=timeout"):
        await begun.wait()
    held.gate.set()
    async with Container(config(tmp_path)) as container:
        assert (await container.start_task(TASK, ["s"])).input_offsets == {}

"""A clean-up that is paused and wakes after its successor went on: no retained backup is touched."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from container_kit import INPUT, Controls, config, controls

from statekeep.backends.memory import forget_place, memory_place
from statekeep.checkpoint.checkpoints import BackendName, Marker, TaskName
from statekeep.clock import SystemClock
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import TaskFencedError
from statekeep.inspection.job import open_job

TASK = "Partition 0"
HELD = BackendName("held")


@pytest_asyncio.fixture(autouse=True)
async def leftovers(tmp_path: Path) -> AsyncIterator[None]:
    """After every test no asyncio task is left."""
    yield
    forget_place(str(tmp_path))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def held(tmp_path: Path) -> Controls:
    return controls(tmp_path)


async def commit(task: Task, number: int) -> None:
    task.store("s").put(b"number", b"%d" % number)
    await (await task.commit({INPUT: str(number)}, force=True)).wait()


async def retained_markers(directory: Path) -> list[Marker]:
    async with open_job(config(directory), SystemClock(), task=TASK) as job:
        commits = (await job.read_commits(job.view.commits)).values()
        found = [job.view.usable_checkpoint(c, TaskName(TASK)) for c in commits]
    return [marker for held in found if held for marker in held.markers_of(HELD).values()]


async def commit_once(task: Task) -> None:
    await commit(task, 10)


async def collect(task: Task) -> None:
    for number in range(10, 14):
        await commit(task, number)
        await task.wait()


async def nothing(_: Task) -> None:
    pass


async def lose_the_newest_backup(directory: Path) -> None:
    """Leave the commit before the newest one as the only one that can be restored."""
    memory_place(str(directory)).images.pop((await retained_markers(directory))[-1])
    for version in (directory / "local" / "job" / "main" / "Partition_0").glob("[0-9]*_*"):
        shutil.rmtree(version)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_fallback", [False, True], ids=["goes on", "falls back"])
@pytest.mark.parametrize(
    ("succeed", "newest"),
    [(nothing, None), (commit_once, b"10"), (collect, b"13")],
    ids=["takes over", "commits", "collects"],
)
async def test_a_clean_up_that_wakes_after_its_successor_harms_no_retained_commit(
    tmp_path: Path,
    held: Controls,
    succeed: Callable[[Task], Awaitable[None]],
    newest: bytes | None,
    *,
    is_fallback: bool,
) -> None:
    async with Container(config(tmp_path)) as first:
        old = await first.start_task(TASK, ["s"])
        for number in range(3):
            await commit(old, number)
            await old.wait()
        held.clean_up_gate = asleep = asyncio.Event()
        await commit(old, 3)
        rounds = len(held.cleaned)
        while len(held.cleaned) == rounds:
            await asyncio.sleep(0)
        held.clean_up_gate = asyncio.Event()
        held.clean_up_gate.set()
        if is_fallback:
            await lose_the_newest_backup(tmp_path)
        async with Container(config(tmp_path)) as second:
            new = await second.start_task(TASK, ["s"])
            restored = new.store("s").get(b"number")
            assert restored == (b"2" if is_fallback else b"3")
            await succeed(new)
            await new.wait()

        asleep.set()
        await old._clean_up.wait()

        images = memory_place(str(tmp_path)).images
        retained = await retained_markers(tmp_path)
        assert retained
        assert set(retained) <= images.keys()
        with pytest.raises(TaskFencedError):
            await commit(old, 99)
    shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as third:
        again = await third.start_task(TASK, ["s"])
        assert again.store("s").get(b"number") == (newest or restored)

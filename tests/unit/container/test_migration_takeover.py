"""The steps of a migration, each by a container that takes the task from one still at work."""

import asyncio
import shutil
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import CommitFailedError, TaskFencedError

T = TypeVar("T")
INPUT = SystemStreamPartition("gen", "numbers", 0)
KINDS = {"old": "blob", "new": "hdfs"}
STEPS = [
    ("old", "old"),
    ("old,new", "old,new"),
    ("old,new", "new,old"),
    ("new", "new"),
    ("old,new", "new,old"),
    ("old,new", "old,new"),
    ("old", "old"),
]
"""Lists of backup and restore: to the new backend, and all the way back."""


def config(directory: Path, step: int) -> Config:
    """The settings of a step on a host of its own; the log stays where it is."""
    backup, restore = STEPS[step]
    places = {
        f"backends.{name}.{key}": value
        for name in {"old", *backup.split(",")}
        for key, value in {
            "factory": KINDS[name],
            "uri": (directory / name).as_uri(),
        }.items()
    }
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": str(directory / f"host-{step}"),
            "job.log.backend": "old",
            "stores.backup.factories": backup,
            "stores.restore.factories": restore,
            **places,
        }
    )


async def start(stack: AsyncExitStack, job: Config) -> Task:
    container = await stack.enter_async_context(Container(job))
    return await container.start_task("Partition 0", ["counts"])


async def after(turns: int, call: Awaitable[T]) -> T:
    """Await a call some turns of the event loop later."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return await call


async def commit(task: Task, number: int) -> bool:
    """Commit a number as state and as offset; return whether the commit counts."""
    try:
        task.store("counts").put(b"k", b"%d" % number)
        await (await task.commit({INPUT: str(number)}, force=True)).wait()
    except (CommitFailedError, TaskFencedError):
        return False
    return True


def number_in(task: Task) -> int:
    """Return the number that a task has started with, as state and as offset."""
    number = int(task.store("counts").get(b"k") or 0)
    assert task.input_offsets == {INPUT: str(number)}
    return number


@pytest.mark.asyncio
@pytest.mark.parametrize("head_start", [-300, -30, 0, 1, 30])
async def test_no_commit_is_lost_where_a_step_takes_over_from_a_living_container(
    tmp_path: Path, head_start: int
) -> None:
    async with AsyncExitStack() as stack:
        owner = await start(stack, config(tmp_path, 0))
        assert await commit(owner, 1)
        last = 1
        for step in range(1, len(STEPS)):
            late = asyncio.ensure_future(after(-head_start, commit(owner, last + 1)))
            successor = await after(head_start, start(stack, config(tmp_path, step)))
            last += await late
            assert number_in(successor) == last
            assert not await commit(owner, 999)
            owner, last = successor, last + 1
            assert await commit(owner, last)
    shutil.rmtree(tmp_path / "new")
    shutil.rmtree(tmp_path / f"host-{len(STEPS) - 1}")
    async with AsyncExitStack() as stack:
        assert number_in(await start(stack, config(tmp_path, len(STEPS) - 1))) == last

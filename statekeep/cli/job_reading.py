"""A job to look at, with a sign of life for as long as its log is read."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.records import CommitRecord
from statekeep.cli.waiting import waiting
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.inspection.job import InspectedJob, open_job


@asynccontextmanager
async def read_job(
    config: Config, clock: Clock, *, task: str | None = None
) -> AsyncGenerator[InspectedJob]:
    """Open a job as `open_job` does: every record of its log is read, which may take long."""
    async with AsyncExitStack() as stack:
        async with waiting("reading the job log", clock):
            job = await stack.enter_async_context(open_job(config, clock, task=task))
        yield job


def tasks_of(commit: CommitRecord) -> list[TaskName]:
    """Return the tasks of a commit, ``Partition 10`` after ``Partition 9``."""
    return sorted(map(TaskName, {*commit.versions, *commit.checkpoints}), key=_by_number)


def _by_number(name: str) -> tuple[str, int, str]:
    stem, _, number = name.rpartition(" ")
    return (stem, int(number), name) if number.isdecimal() else (name, -1, name)

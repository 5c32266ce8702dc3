"""A job to look at, with a sign of life for as long as its log is read."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

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

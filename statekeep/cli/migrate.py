"""``statekeep migrate``: the state of a stopped job, in one more backend."""

import asyncio
from typing import Annotated

import typer

from statekeep.backends.registry import BackendRegistry
from statekeep.cli.copying import copy_newest_commits, print_copies
from statekeep.cli.options import (
    AsJson,
    ConfigFiles,
    IsSure,
    LogsOfTasks,
    Settings,
    owner_name,
    read_config,
)
from statekeep.cli.output import print_line
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_job
from statekeep.inspection.log_move import move_log


def migrate_log(
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="BACKEND", help="The backend that is to hold the log.")
    ],
    is_sure: IsSure = False,
    config: ConfigFiles = None,
    setting: Settings = None,
    task: LogsOfTasks = None,
) -> None:
    """Move the log of a stopped job to another backend: then job.log.backend names that one.

    If the job runs, it is fenced. A start with the old settings is refused from then on.
    """
    settings = read_config(config, setting)
    if not is_sure:
        typer.confirm(f"Take over job {settings.job.name} and move its log?", abort=True)

    async def run() -> int:
        factory, clock, count = BackendRegistry(settings).factory(target), SystemClock(), 0
        for name in task or (None,):
            async with (
                waiting("copying the job log", clock),
                open_job(settings, clock, task=name) as job,
            ):
                if job.place.log_backend == target:
                    raise ConfigError(f"the log is there already: backend={target}")
                log = factory.job_log(job.place.scope, job.executor, clock)
                try:
                    count += await move_log(job, log, target, owner=owner_name())
                finally:
                    await log.close()
        return count

    print_line(f"{asyncio.run(run())} records are copied; set job.log.backend={target} now")


def migrate(
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="BACKEND", help="The backend that gets the state.")
    ],
    is_sure: IsSure = False,
    config: ConfigFiles = None,
    setting: Settings = None,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Copy the state of a stopped job to another backend: its next start finds markers of both.

    Makes a new commit, equal to the newest one but for the markers that are added. If the job
    runs, it is fenced. docs/migration.md has the way for a job that must not stop.
    """
    settings = read_config(config, setting)
    if not is_sure:
        typer.confirm(
            f"Take over job {settings.job.name} and copy its state to {target}?", abort=True
        )
    print_copies(copy_newest_commits(settings, task, [target]), is_json=as_json)

"""``statekeep migrate``: the state of a stopped job, in one more backend."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from statekeep.backends.registry import BackendRegistry
from statekeep.backends.seals import open_job_log
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import JobLog
from statekeep.cli.all_tasks import require_all_tasks
from statekeep.cli.copying import copy_newest_commits, print_copies
from statekeep.cli.options import (
    AsJson,
    IsSure,
    JobOptions,
    LogsOfTasks,
    owner_name,
    shared_options,
)
from statekeep.cli.output import print_json, print_line
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError, StateBackupError
from statekeep.inspection.job import open_log_storage
from statekeep.inspection.log_move import check_move, move_log


@shared_options
def migrate_log(
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="BACKEND", help="The backend that is to hold the log.")
    ],
    is_sure: IsSure = False,
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Move the log of a stopped job to another backend.

    Then job.log.backend names that one. If the job runs, it is fenced. A start with the old settings is refused from then on. May be
    repeated: a log that has moved there already counts as done.
    """
    settings = options.settings()
    if not is_sure:
        typer.confirm(f"Take over job {settings.job.name} and move its log?", abort=True)

    count = asyncio.run(_move_all(settings, target, task or (None,), is_sure=is_sure))
    if as_json:
        print_json({"backend": target, "records": count})
    else:
        print_line(f"{count} records are copied; set job.log.backend={target} now")


async def _move_all(
    settings: Config, target: str, logs: Sequence[str | None], *, is_sure: bool
) -> int:
    clock = SystemClock()
    # No log is moved before all were found to let themselves be.
    async with waiting("reading the job log", clock):
        for name in logs:
            async with _both_logs(settings, target, name) as (source, log):
                await check_move(source, log, target)
    if named := [name for name in logs if name is not None]:
        await require_all_tasks(settings, named, is_sure=is_sure)
    count = 0
    for done, name in enumerate(logs):
        async with waiting("copying the job log", clock):
            try:
                async with _both_logs(settings, target, name) as (source, log):
                    count += await move_log(source, log, target, owner=owner_name())
            except StateBackupError as exc:
                left = ", ".join(str(other) for other in logs[done:] if other is not None)
                exc.add_note(
                    "hint: do not change job.log.backend yet; run the same command again"
                    + (f", as these logs have not moved: {left}" if left else "")
                )
                raise
    return count


@asynccontextmanager
async def _both_logs(
    settings: Config, target: str, task: str | None
) -> AsyncGenerator[tuple[JobLog, JobLog]]:
    """Open the log where it is, and the log where it goes."""
    clock = SystemClock()
    async with open_log_storage(settings, clock, task=task) as storage:
        if storage.log_backend == target:
            raise ConfigError(f"the log is there already: backend={target}")
        name = BackendName(target)
        factories = {**storage.factories, name: BackendRegistry(settings).factory(target)}
        log = open_job_log(factories, name, storage.scope, storage.executor, clock)
        try:
            yield storage.log, log
        finally:
            await log.close()


@shared_options
def migrate(
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="BACKEND", help="The backend that gets the state.")
    ],
    is_sure: IsSure = False,
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Copy the state of a stopped job to another backend.

    Makes a new commit, equal to the newest one but for the markers that are added: the next start
    finds those of both. If the job runs, it is fenced. docs/how-to/move-state.md has the way for a job that must not stop.
    """
    settings = options.settings()
    if not is_sure:
        typer.confirm(
            f"Take over job {settings.job.name} and copy its state to {target}?", abort=True
        )
    print_copies(copy_newest_commits(settings, task, [target]), is_json=as_json)
    if not as_json:
        print_line(
            f"next: list {target} in stores.<store>.backup.factories and .restore.factories, then "
            "start the job; `statekeep verify --backend "
            f"{target}` checks the copy"
        )

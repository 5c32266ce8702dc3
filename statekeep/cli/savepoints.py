"""``statekeep savepoint``: commits that are kept under a name, whole, to go back to or to start from."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from statekeep.backends.registry import BackendRegistry
from statekeep.cli import new_jobs
from statekeep.cli.copying import copy_newest_commits, print_copies
from statekeep.cli.job_reading import read_job
from statekeep.cli.options import (
    AsJson,
    IsSure,
    JobOptions,
    LogsOfTasks,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_line, print_table
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob, check_pin_name
from statekeep.inspection.live_savepoint import KeptCommit, keep_newest_commits

app = typer.Typer(
    name="savepoint", help="Whole commits that are kept under a name.", no_args_is_help=True
)

app.command("restore")(new_jobs.restore_savepoint)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the savepoint.")]


@app.command()
@shared_options
def create(
    name: Name,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--to",
            metavar="BACKEND",
            help="Where it goes; by default every backend of the job that keeps old commits.",
        ),
    ] = None,
    is_live: Annotated[
        bool,
        typer.Option("--live", help="Of a job that runs: keep its newest commit, without a copy."),
    ] = False,
    is_sure: IsSure = False,
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Back up a job's whole state, and keep it under a name.

    The copy shares nothing with other commits. A running job is fenced. With --live the job keeps running,
    and its newest commit is kept as it is: it shares what did not change with other commits.
    """
    check_pin_name(name)
    settings = options.settings()
    if is_live:
        if target:
            raise ConfigError("--live keeps the newest commit where it is: leave --to out")
        _keep_newest(settings, task or (None,), name, as_json=as_json)
        return
    backends = _require_lasting(settings, target) if target else _lasting_backends(settings)
    if not is_sure:
        typer.confirm(f"Take over job {settings.job.name} and back up its state?", abort=True)
    print_copies(copy_newest_commits(settings, task, backends, pin=name), is_json=as_json)


@app.command("list")
@shared_options
def list_savepoints(
    *,
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """List the names under which commits are kept."""

    async def run() -> list[dict[str, JsonValue]]:
        rows: list[dict[str, JsonValue]] = []
        for name in task or (None,):
            async with read_job(options.settings(), SystemClock(), task=name) as job:
                rows.extend(_row(job, name, pin) for pin in sorted(job.view.pins))
        return rows

    rows = asyncio.run(run())
    if as_json:
        print_json(rows)
    else:
        columns = ["savepoint", "log", "commit", "batch", "records since then"]
        print_table(columns, [list(row.values()) for row in rows], if_empty="no savepoints")


@app.command()
@shared_options
def drop(
    name: Name,
    *,
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Drop a savepoint.

    Retention applies to its commit again. The job may keep running.
    """
    settings, logs = options.settings(), task or (None,)

    async def find(log: str | None) -> dict[str, JsonValue] | None:
        async with read_job(settings, SystemClock(), task=log) as job:
            return _row(job, log, name) if name in job.view.pins else None

    async def run() -> list[dict[str, JsonValue]]:
        # An earlier try may have dropped some; if no log has it, the first one says so.
        found = {log: row for log in logs if (row := await find(log))}
        for log in found or logs:
            async with read_job(settings, SystemClock(), task=log) as job:
                await job.pin_writer.unpin(name)
        return list(found.values())

    dropped = asyncio.run(run())
    if as_json:
        print_json(dropped)
    else:
        print_line(f"savepoint {name} is dropped")


def _keep_newest(settings: Config, logs: Sequence[str | None], name: str, *, as_json: bool) -> None:
    async def run() -> Sequence[KeptCommit]:
        clock = SystemClock()
        async with waiting("reading the job log", clock):
            return await keep_newest_commits(settings, clock, logs, name)

    kept = asyncio.run(run())
    rows: list[dict[str, JsonValue]] = [
        {"log": made.log or settings.job.name, "commit": made.position, "batch": made.batch}
        for made in kept
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print_line(
            f"savepoint {name} is commit {row['commit']} of {row['log']}, batch {row['batch']}, as "
            "it is: no copy was made"
        )


def _row(job: InspectedJob, log: str | None, pin: str) -> dict[str, JsonValue]:
    position = job.view.pins[pin]
    return {
        "savepoint": pin,
        "log": log or job.config.job.name,
        "commit": position,
        "batch": job.view.commits[position].batch,
        "records": job.view.next_position - job.view.kept_at.get(position, position),
    }


def _require_lasting(config: Config, target: Sequence[str]) -> Sequence[str]:
    """Return the backends that were named, if a savepoint in each outlasts later commits."""
    registry = BackendRegistry(config)
    for name in target:
        if not registry.factory(name).properties.keeps_every_commit:
            raise ConfigError(
                f"the backend keeps no old commits, later ones overwrite them: backend={name}",
                hint="name another one with --to, such as blob",
            )
    return target


def _lasting_backends(config: Config) -> list[str]:
    factories = BackendRegistry(config).factories()
    lasting = [name for name, found in factories.items() if found.properties.keeps_every_commit]
    if not lasting:
        raise ConfigError(
            f"no backend of the job keeps old commits: backends={','.join(factories)}",
            key="stores.backup.factories",
            hint="name one with --to; its settings are those of backends.<name>",
        )
    return [str(name) for name in lasting]

"""``statekeep gc`` and ``statekeep reset``: what nothing reaches any more, and all of it."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from statekeep.cli.options import (
    AsJson,
    IsSure,
    JobOptions,
    LogsOfTasks,
    owner_name,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_line, print_table
from statekeep.cli.waiting import waiting
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.config.values import milliseconds
from statekeep.errors import ConfigError
from statekeep.inspection.clean_up import Leftovers, Sweep, delete_leftovers, find_leftovers
from statekeep.inspection.job import open_job, open_log_storage
from statekeep.inspection.removal import (
    find_what_a_reset_deletes,
    require_resettable,
    reset_job,
)

IsDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")
]

Grace = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Keep what was begun less than this time ago, such as 24h.",
    ),
]
_DURATION: Final = milliseconds(0)


@shared_options
def collect_garbage(
    *,
    is_dry_run: IsDryRun = False,
    grace: Grace = "0",
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Delete the backups that no retained commit reaches.

    The job may go on meanwhile. It does so itself, now and then: this is for one that was stopped, or was in trouble.
    """
    settings = options.settings()
    grace_ms = _milliseconds(grace)

    async def run() -> list[Leftovers]:
        found: list[Leftovers] = []
        clock = SystemClock()
        for log in task or (None,):
            async with (
                waiting("looking for unreachable backups", clock),
                open_job(settings, clock, task=log) as job,
            ):
                _, commit = job.find_commit()
                time_ms = job.clock.time_ns() // 1_000_000 - grace_ms
                sweep = await Sweep.of(job.view, commit.identity, job.read_commits)
                sweep = sweep.begun_before(job.records, time_ms)
                look = find_leftovers if is_dry_run else delete_leftovers
                found += await look(job.storage, settings, sweep)
        return found

    _show(asyncio.run(run()), is_dry_run=is_dry_run, is_json=as_json)


@shared_options
def reset(
    *,
    is_dry_run: IsDryRun = False,
    is_dropping_savepoints: Annotated[
        bool,
        typer.Option("--with-savepoints", help="Reset it also if commits are kept under names."),
    ] = False,
    is_sure: IsSure = False,
    options: JobOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Make a stopped job start anew, without its state.

    Its commits, savepoints and backups are deleted. A driver that still runs the job is fenced. On Spark the next start needs a new checkpoint location as
    well. Changelogs in Kafka stay; the next commit overwrites them.
    """
    settings = options.settings()
    logs = task or (None,)
    found, commits, pins = asyncio.run(_find(settings, logs))
    if not as_json:
        kept = f" ({', '.join(dict.fromkeys(pins))})" if pins else ""
        print_line(f"job {settings.job.name}: {commits} commits, {len(pins)} savepoints{kept}")
    if not is_dry_run:
        if not is_sure:
            count = sum(len(part.names or ()) for part in found)
            typer.confirm(f"Delete them, with {count} files of backups?", abort=True)
        asyncio.run(_reset(settings, logs, is_dropping_savepoints=is_dropping_savepoints))
    _show(found, is_dry_run=is_dry_run, is_json=as_json)


async def _find(
    settings: Config, logs: Sequence[str | None]
) -> tuple[list[Leftovers], int, list[str]]:
    """Return what a reset deletes, how many commits it drops, and their names."""
    found: list[Leftovers] = []
    commits, pins, clock = 0, list[str](), SystemClock()
    for log in logs:
        async with (
            waiting("looking at the backups", clock),
            open_log_storage(settings, clock, task=log) as storage,
        ):
            remains, leftovers = await find_what_a_reset_deletes(storage, settings)
        found += leftovers
        commits += remains.commits
        pins += sorted(remains.pins)
    return found, commits, pins


async def _reset(
    settings: Config, logs: Sequence[str | None], *, is_dropping_savepoints: bool
) -> None:
    clock = SystemClock()
    # No log is reset before all were found to let themselves be.
    for log in logs:
        async with (
            waiting("reading the job log", clock),
            open_log_storage(settings, clock, task=log) as storage,
        ):
            await require_resettable(storage, is_dropping_savepoints=is_dropping_savepoints)
    for log in logs:
        async with (
            waiting("deleting", clock),
            open_log_storage(settings, clock, task=log) as storage,
        ):
            await reset_job(
                storage,
                settings,
                owner=owner_name(),
                is_dropping_savepoints=is_dropping_savepoints,
            )


def _show(found: Sequence[Leftovers], *, is_dry_run: bool, is_json: bool) -> None:
    if is_json:
        rows: list[dict[str, JsonValue]] = [
            {
                "task": part.task,
                "backend": part.backend,
                "names": None if part.names is None else list(part.names),
            }
            for part in found
        ]
        print_json({"is-dry-run": is_dry_run, "leftovers": rows})
        return
    what = "would be deleted" if is_dry_run else "deleted"
    print_table(
        ["task", "backend", what],
        [
            [part.task or "all", part.backend, "unknown" if part.names is None else len(part.names)]
            for part in found
        ],
    )
    if is_dry_run:
        for part in found:
            for name in part.names or ():
                print_line(name)


def _milliseconds(text: str) -> int:
    try:
        return _DURATION.parse(text)
    except ValueError as exc:
        raise ConfigError(f"--grace must be {_DURATION.requirement}: value={text}") from exc

"""``statekeep clone``: a job on the state of another one's commit, without a copy of it."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.new_jobs import FromLocation, Locations, NewName, ToLocation
from statekeep.cli.options import AsJson, IsSure, JobOptions, owner_name, shared_options
from statekeep.cli.output import print_json, print_line, size_of
from statekeep.cli.waiting import waiting, waiting_for_progress
from statekeep.clock import SystemClock
from statekeep.inspection.clone_ends import (
    Promoted,
    drop_clone,
    drop_pins_of_lost,
    promote_clone,
    require_droppable,
)
from statekeep.inspection.cloning import Clone, Cloning, make_clone, settings_of
from statekeep.inspection.job import open_log_storage
from statekeep.restore.progress_bar import RestoreProgressBar
from statekeep.stores.temporary_directory import temporary_directory

_CREATE = "create"


class _CloneGroup(TyperGroup):
    """Takes ``clone JOB`` for ``clone create JOB``."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = [_CREATE, *args]
        return super().parse_args(ctx, args)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else [_CREATE, *args])


app = typer.Typer(
    name="clone",
    cls=_CloneGroup,
    help="Jobs on the state of another one's commit, without a copy.",
    no_args_is_help=True,
)

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Also if no event says that the clone has stopped: its driver is fenced.",
    ),
]
CloneName = Annotated[str, typer.Argument(metavar="CLONE", help="The name of the clone.")]


@app.command(_CREATE)
@shared_options
def create(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of the job to clone.")],
    *,
    new_name: NewName,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="COMMIT",
            help="Position, checkpoint id or pin of a commit; left out: the current one.",
        ),
    ] = None,
    from_location: FromLocation = None,
    to_location: ToLocation = None,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Make a clone of a job; `statekeep clone JOB` is short for it.

    In seconds, whatever the size of the state: the clone shares the backups of the commit, and writes what
    changes to a place of its own. A pin keeps the commit until the clone is promoted or dropped.
    """
    settings = settings_of(options.settings(), job)
    # The location that finds the job is that of its query.
    is_found = options.location is not None and to_location is not None
    locations = Locations.of(from_location or (options.location if is_found else None), to_location)
    cloning = Cloning(
        settings_of(settings, new_name),
        SystemClock(),
        owner_name(),
        None if locations is None else (locations.old, locations.new),
    )

    async def run() -> Clone:
        async with (
            read_job(settings, cloning.clock) as origin,
            waiting("making the clone", cloning.clock),
        ):
            return await make_clone(origin, at, cloning)

    made = asyncio.run(run())
    if as_json:
        print_json(
            {
                "job": made.job,
                "commit": made.position,
                "batch": made.batch,
                "origin": made.origin,
                "origin-commit": made.origin_position,
            }
        )
        return
    print_line(
        f"job {made.job} is a clone of {made.origin} at commit {made.origin_position}, batch {made.batch}"
    )
    print_line(
        f"start it with job.name={made.job}, the backends of {made.origin}, and a sink of its own"
    )


@app.command()
@shared_options
def promote(
    clone: CloneName,
    *,
    is_taking_over: TakeOver = False,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Give a stopped clone backups of its own.

    Copies the state of the tasks that have not changed since the clone was made. Then it uses nothing of
    another job any more, and the pin there goes.
    """
    settings, clock = settings_of(options.settings(), clone), SystemClock()

    async def run(directory: Path, uploaded: CountingBar) -> Promoted:
        progress = RestoreProgressBar(clock.monotonic_ns).update
        async with (
            read_job(settings, clock) as job,
            waiting_for_progress("promoting the clone", clock, progress) as on_progress,
        ):
            return await promote_clone(
                job,
                directory,
                owner=owner_name(),
                is_taking_over=is_taking_over,
                on_progress=on_progress,
                uploads=uploaded,
            )

    with (
        explained_temporary_files(),
        temporary_directory("statekeep-promote-") as directory,
        CountingBar("uploaded", clock.monotonic_ns) as uploaded,
    ):
        done = asyncio.run(run(directory, uploaded))
    if as_json:
        print_json({"commit": done.position, "tasks": done.tasks, "bytes": done.bytes_uploaded})
    else:
        print_line(
            f"job {clone} has backups of its own: {done.tasks} tasks were copied, "
            f"{size_of(done.bytes_uploaded)}"
        )


@app.command()
@shared_options
def drop(
    clone: CloneName,
    *,
    is_dropping_savepoints: Annotated[
        bool, typer.Option("--with-savepoints", help="Also if commits are kept under names.")
    ] = False,
    is_lost: Annotated[
        bool,
        typer.Option(
            "--lost",
            help="The log of the clone is lost: drop its pins in the job of the settings, its origin.",
        ),
    ] = False,
    is_sure: IsSure = False,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Delete a clone, with its backups.

    A driver that still runs it is fenced. The pin in the job that it was made of goes, and that job stays as it is.
    """
    settings, clock = options.settings(), SystemClock()

    async def drop_lost() -> list[str]:
        async with read_job(settings, clock) as origin:
            return await drop_pins_of_lost(origin, clone)

    async def run(*, is_dropping: bool) -> None:
        own = settings_of(settings, clone)
        async with (
            waiting("deleting the clone" if is_dropping else "reading the job log", clock),
            open_log_storage(own, clock) as storage,
        ):
            if not is_dropping:
                await require_droppable(storage, own)
                return
            await drop_clone(
                storage, own, owner=owner_name(), is_dropping_savepoints=is_dropping_savepoints
            )

    if is_lost:
        if not is_sure:
            typer.confirm(
                f"Is there no job {clone} any more? If there is, it loses its state.", abort=True
            )
        names = asyncio.run(drop_lost())
        if as_json:
            print_json({"clone": clone, "unpinned": [*names]})
            return
        for name in names:
            print_line(f"{name} is no pin of {settings.job.name} any more")
        return
    asyncio.run(run(is_dropping=False))
    if not is_sure:
        typer.confirm(f"Delete clone {clone}, with its state?", abort=True)
    asyncio.run(run(is_dropping=True))
    if as_json:
        print_json({"dropped": clone})
    else:
        print_line(f"clone {clone} is dropped")

"""``statekeep guard``: queries that keep their state in Spark's own state stores."""

import asyncio
import json
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.exit_status import ExitStatus
from statekeep.cli.guard_output import (
    copy_document,
    copy_line,
    damage_document,
    location_document,
    show_avoided,
    show_location,
    show_verified,
    verified_document,
)
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    IsFull,
    IsSure,
    SettingOptions,
    SparkSettings,
    owner_name,
    shared_options,
    spark_settings,
)
from statekeep.cli.output import print_json, print_line
from statekeep.cli.report import interrupted
from statekeep.cli.waiting import waiting
from statekeep.clock import Clock, SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.model import Config
from statekeep.config.values import milliseconds
from statekeep.errors import ConfigError
from statekeep.guarding.continuous_copies import keep_copying
from statekeep.guarding.copying import Copied, open_copies
from statekeep.guarding.inspection import InspectedLocation, inspect_location
from statekeep.guarding.repairing import Repair, plan_repair, repair_location
from statekeep.guarding.restoring import restore_location
from statekeep.guarding.settings import settings_of_copies
from statekeep.guarding.verifying import LoadedStore, VerifiedCopy, verify_copy
from statekeep.stores.temporary_directory import temporary_directory

app = typer.Typer(
    name="guard",
    help="Back up queries on Spark's own state store.",
    no_args_is_help=True,
)

_THREADS = 16
_EVERY: Final = milliseconds(1)
_SINK_SKIPS: Final = (
    "the sink may know the numbers of later batches already: a sink of files, by its "
    "_spark_metadata,\n"
    "and a Delta table skip these batches, even if their rows differ now"
)

IsDryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show which files would be moved, and change nothing.")
]
QueryLocation: TypeAlias = Annotated[
    str, typer.Argument(help="The checkpoint location of the query, which may run meanwhile.")
]
Copy: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="COPY",
        help="Position, checkpoint id or pin of a copy; by default the newest one.",
        show_default=False,
    ),
]
Source: TypeAlias = Annotated[
    str, typer.Option("--from", metavar="URI", help="Where the copies are.")
]
JobName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="JOB", help="The job of the copies; by default named after the location."
    ),
]


@app.command()
def inspect(
    location: QueryLocation,
    *,
    is_deep: Annotated[
        bool, typer.Option("--deep", help="Read the files too, and compare their checksums.")
    ] = False,
    looks_at_all: Annotated[
        bool, typer.Option("--all", help="Look at every batch, not down to the first sound one.")
    ] = False,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show what a location holds and what is damaged.

    And up to which batch it is sound: after that batch Spark could go on. Nothing in it is changed.
    """
    clock = SystemClock()

    async def run() -> InspectedLocation:
        executor = BoundedExecutor(_THREADS, "statekeep-guard")
        try:
            async with waiting("looking at the checkpoint location", clock):
                with CountingBar("read", clock.monotonic_ns) as read:
                    return await inspect_location(
                        location,
                        executor,
                        is_deep=is_deep,
                        looks_at_all=looks_at_all,
                        on_bytes=read.add,
                    )
        finally:
            await executor.close()

    found = asyncio.run(run())
    if as_json:
        print_json(location_document(found))
    else:
        show_location(found, clock.time_ns() // 1_000_000, is_deep=is_deep, is_full=is_full)
    if not found.is_sound:
        raise typer.Exit(ExitStatus.DAMAGED)


@app.command()
@shared_options
def run(
    location: QueryLocation,
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="URI", help="Where the copies go, as blob.store.uri.")
    ],
    is_once: Annotated[
        bool, typer.Option("--once", help="Make one copy and end; by default copy until Ctrl-C.")
    ] = False,
    every: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Without --once: how long to wait after each look at the location.",
        ),
    ] = "1m",
    job_name: JobName = None,
    options: SettingOptions,
    as_json: AsJson = False,
) -> None:
    """Copy a location after each batch of its query, until Ctrl-C.

    Each copy is the newest sound batch. Only files that the copy before does not have are copied. Needs local disk for these.
    What can be mended, such as an outage, is tried again.
    """
    settings = settings_of_copies(location, target, job_name, options.settings())
    clock = SystemClock()
    if not is_once:
        _copy_until_interrupted(settings, location, clock, _seconds(every), as_json=as_json)
        return

    async def copy(directory: Path, uploaded: CountingBar) -> Copied:
        async with waiting("copying the checkpoint location", clock):
            opened = open_copies(settings, location, clock, owner=owner_name(), uploads=uploaded)
            async with opened as copies:
                return await copies.copy(directory)

    with (
        explained_temporary_files(),
        temporary_directory("statekeep-guard-") as directory,
        CountingBar("uploaded", clock.monotonic_ns) as uploaded,
    ):
        copied = asyncio.run(copy(Path(directory), uploaded))
    if as_json:
        print_json(copy_document(settings, copied))
    else:
        print_line(copy_line(settings, copied))


@app.command()
@shared_options
def restore(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location that was copied; it may be gone.")
    ],
    which: Copy = None,
    *,
    source: Source,
    target: Annotated[
        str, typer.Option("--to", metavar="URI", help="The new location, as Spark names it.")
    ],
    job_name: JobName = None,
    options: SettingOptions,
    as_json: AsJson = False,
) -> None:
    """Make a location of a copy, from which the query goes on.

    Every byte is verified. Needs local disk for all files of the copy.
    """
    settings = settings_of_copies(location, source, job_name, options.settings())
    clock = SystemClock()

    async def put_back(directory: Path, restored: CountingBar) -> int:
        async with waiting("restoring the checkpoint location", clock):
            return await restore_location(
                settings,
                read_job,
                clock,
                which=which,
                target=target,
                directory=directory,
                on_bytes=restored.add,
            )

    with (
        explained_temporary_files(),
        temporary_directory("statekeep-guard-") as directory,
        CountingBar("restored", clock.monotonic_ns) as restored,
    ):
        batch = asyncio.run(put_back(Path(directory), restored))
    if as_json:
        print_json({"batch": batch})
    else:
        print_line(f"batch {batch} is restored: start the query with the new location")
        print_line(_SINK_SKIPS)


@app.command()
@shared_options
def verify(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location that was copied; it may be gone.")
    ],
    which: Copy = None,
    *,
    source: Source,
    is_loaded: Annotated[
        bool,
        typer.Option("--load", help="Let Spark open all state of the copy, and count its rows."),
    ] = False,
    spark_setting: SparkSettings = None,
    job_name: JobName = None,
    options: SettingOptions,
    as_json: AsJson = False,
) -> None:
    """Check every byte of a copy, in each backend.

    And that all is there which Spark needs to go on after its batch. Needs local disk for all files of the copy.
    """
    settings = settings_of_copies(location, source, job_name, options.settings())
    clock = SystemClock()

    async def look(directory: Path, fetched: CountingBar) -> VerifiedCopy:
        async with waiting("verifying the copy", clock):
            return await verify_copy(
                settings, read_job, clock, which=which, directory=directory, on_bytes=fetched.add
            )

    session_settings = spark_settings(spark_setting)
    loader: Any = import_module("statekeep.spark.loaded_stores") if is_loaded else None
    loaded: list[LoadedStore] = []
    with explained_temporary_files(), temporary_directory("statekeep-guard-") as directory:
        with CountingBar("fetched", clock.monotonic_ns) as fetched:
            found = asyncio.run(look(Path(directory), fetched))
        if is_loaded and found.location is not None:
            loaded = loader.load_by_command(str(found.location), found.batch, session_settings)
    if as_json:
        print_json(verified_document(found, loaded if is_loaded else None))
    else:
        show_verified(found, loaded if is_loaded else None)
    if not found.is_sound:
        raise typer.Exit(ExitStatus.DAMAGED)


@app.command()
def repair(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location of the query, which must be stopped.")
    ],
    *,
    is_dry_run: IsDryRun = False,
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Take a location back to its newest sound batch, in place.

    Every file is read first. What later batches have is moved to a directory beside the location.
    """
    clock = SystemClock()

    async def plan(executor: BoundedExecutor) -> Repair:
        async with waiting("reading the checkpoint location", clock):
            with CountingBar("read", clock.monotonic_ns) as read:
                return await plan_repair(location, executor, read.add)

    async def run() -> tuple[Repair, str]:
        executor = BoundedExecutor(_THREADS, "statekeep-guard")
        try:
            planned = await plan(executor)
            kept_in = ""
            if planned.removed and not is_dry_run:
                if not is_sure:
                    typer.confirm(_question(planned), abort=True)
                stamp = clock.time_ns() // 1_000_000
                kept_in = f"{location.rstrip('/')}-removed-{stamp}"
                await repair_location(planned, kept_in, executor)
            return planned, kept_in
        finally:
            await executor.close()

    planned, kept_in = asyncio.run(run())
    if as_json:
        print_json(
            {
                "batch": planned.batch,
                "removed": planned.removed,
                "kept-in": kept_in,
                "avoided": [damage_document(damage) for damage in planned.avoided],
            }
        )
        return
    if is_dry_run:
        for file in planned.removed:
            print_line(file)
    if not planned.removed:
        print_line(f"batch {planned.batch} is sound: there is nothing to repair")
    elif is_dry_run:
        print_line(f"these {len(planned.removed)} files are after batch {planned.batch}")
    else:
        count = len(planned.removed)
        print_line(f"the query goes on after batch {planned.batch}; {count} files are in {kept_in}")
        print_line(_SINK_SKIPS)
    show_avoided(planned.avoided)


def _question(repair: Repair) -> str:
    return (
        f"Is the query stopped, and is it to go on after batch {repair.batch} of {repair.newest}? "
        f"{len(repair.removed)} files are moved out of the location"
    )


def _copy_until_interrupted(
    settings: Config, location: str, clock: Clock, every_s: float, *, as_json: bool
) -> None:
    """Copy a location whenever its query has committed a batch; print a line for each copy."""

    def show(copied: Copied) -> None:
        if as_json:  # a document a line, as there is no last one
            sys.stdout.write(f"{json.dumps(copy_document(settings, copied))}\n")
        else:
            print_line(copy_line(settings, copied))
        sys.stdout.flush()

    async def keep(directory: Path) -> None:
        opened = open_copies(settings, location, clock, owner=owner_name(), may_wait=True)
        async with opened as copies:
            await keep_copying(copies, directory, pause=lambda: clock.sleep(every_s), on_copy=show)

    async def keep_until_interrupted(directory: Path) -> None:
        work, end = asyncio.create_task(keep(directory)), asyncio.create_task(interrupted())
        await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if not work.done():
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
        else:
            work.result()

    with explained_temporary_files(), temporary_directory("statekeep-guard-") as directory:
        asyncio.run(keep_until_interrupted(Path(directory)))


def _seconds(every: str) -> float:
    try:
        return _EVERY.parse(every) / 1000
    except ValueError as exc:
        raise ConfigError(f"--every must be {_EVERY.requirement}: value={every}") from exc

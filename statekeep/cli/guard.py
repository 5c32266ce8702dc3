"""``statekeep guard``: queries that keep their state in Spark's own state stores."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer
from rich.text import Text

from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.exit_status import ExitStatus
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    IsFull,
    IsSure,
    SettingOptions,
    owner_name,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_line, print_table, size_of
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
from statekeep.stores.temporary_directory import temporary_directory

app = typer.Typer(
    name="guard",
    help="Look after queries on Spark's own state store.",
    no_args_is_help=True,
)

_THREADS = 16
_EVERY: Final = milliseconds(1)
_SINK_SKIPS: Final = (
    "later batches have numbers that the sink may know already: a sink of files, by its\n"
    "_spark_metadata, and a Delta table skip these, even if the rows are others now"
)

IsDryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Show which files would be moved, and change nothing.")
]
QueryLocation: TypeAlias = Annotated[
    str, typer.Argument(help="The checkpoint location of the query, which may run meanwhile.")
]
JobName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="JOB", help="The job of the copies; left out: named after the location."
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
        print_json(_document(found))
    else:
        _show(found, is_deep=is_deep, is_full=is_full)
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
        bool, typer.Option("--once", help="Make one copy and end; left out: copy until Ctrl-C.")
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
        print_json(_copy_document(settings, copied))
    else:
        print_line(_copy_line(settings, copied))


@app.command()
@shared_options
def restore(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location that was copied; it may be gone.")
    ],
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="COPY",
            help="Position, checkpoint id or pin of a copy; left out: the newest one.",
            show_default=False,
        ),
    ] = None,
    *,
    source: Annotated[str, typer.Option("--from", metavar="URI", help="Where the copies are.")],
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
        print_json({"batch": planned.batch, "removed": planned.removed, "kept-in": kept_in})
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
            sys.stdout.write(f"{json.dumps(_copy_document(settings, copied))}\n")
        else:
            print_line(_copy_line(settings, copied))
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


def _copy_document(settings: Config, copied: Copied) -> dict[str, JsonValue]:
    return {
        "job": settings.job.name,
        "commit": copied.position,
        "batch": copied.batch,
        "is-new": copied.is_new,
        "new-files": copied.new_files,
        "new-bytes": copied.new_bytes,
    }


def _copy_line(settings: Config, copied: Copied) -> str:
    commit = f"commit {copied.position} of job {settings.job.name}"
    if not copied.is_new:
        return f"batch {copied.batch} was copied before: {commit}"
    new = f"{copied.new_files} new files, {size_of(copied.new_bytes)}"
    return f"batch {copied.batch} is copied: {commit}, {new}"


def _document(found: InspectedLocation) -> dict[str, JsonValue]:
    return {
        "location": found.location,
        "files": found.files,
        "bytes": found.bytes,
        "batches": list(found.batches),
        "open-batch": found.open_batch,
        "provider": found.provider,
        "checkpoint-format": found.checkpoint_format,
        "stores": [
            {
                "operator": store.operator,
                "name": store.operator_name,
                "store": store.store,
                "partitions": store.partitions,
                "files": store.files,
                "bytes": store.bytes,
                "files-per-batch": store.files_per_batch,
            }
            for store in found.stores
        ],
        "looked-at": list(found.looked_at),
        "sound": list(found.sound),
        "newest-sound": found.newest_sound,
        "damage": [
            {"batch": batch, "file": damage.file, "what": damage.what}
            for batch, damage in found.damage
        ],
        "avoided": [{"file": damage.file, "what": damage.what} for damage in found.avoided],
    }


def _show(found: InspectedLocation, *, is_deep: bool, is_full: bool) -> None:
    print_line(f"{found.files} files, {size_of(found.bytes)}; {_batches(found)}")
    if found.stores:
        form = found.checkpoint_format
        print_line(f"state of {found.provider}, checkpoint format {form}")
        print_table(
            ["operator", "name", "store", "partitions", "files", "size", "files a batch"],
            [
                [
                    store.operator,
                    store.operator_name,
                    store.store,
                    store.partitions,
                    store.files,
                    size_of(store.bytes),
                    store.files_per_batch,
                ]
                for store in found.stores
            ],
            is_full=is_full,
        )
    else:
        print_line("no state: no operator of the query is stateful, or its directory is gone")
    rows: list[Sequence[object]] = [
        [batch, damage.file, Text(damage.what, style="red")] for batch, damage in found.damage
    ]
    rows += [
        [None, d.file, Text(f"{d.what}; an older one serves", "yellow")] for d in found.avoided
    ]
    if rows:
        print_table(["batch", "file", "damage"], rows, prose={"damage"}, is_full=is_full)
    if found.avoided:
        print_line("only Spark 4.1 or later goes on from an older snapshot where one is damaged")
    if not found.batches:
        print_line("the query has committed no batch yet")
    elif found.newest_sound is None:
        print_line("Spark can go on after none of these batches")
    else:
        print_line(f"sound up to batch {found.newest_sound}")
    if not is_deep:
        print_line("looked at names, sizes and small files; --deep compares checksums")


def _batches(found: InspectedLocation) -> str:
    if not found.batches:
        return "no batch is committed"
    text = f"batches {found.batches[0]} to {found.batches[-1]} are committed"
    return text if found.open_batch is None else f"{text}, {found.open_batch} has begun"

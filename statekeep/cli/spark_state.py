"""``statekeep spark-state``: from the state store that Spark brings along, and back to it."""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    LogsOfTasks,
    SettingOptions,
    Which,
    owner_name,
    shared_options,
)
from statekeep.cli.output import JsonValue, print_json, print_table
from statekeep.cli.waiting import waiting, waiting_for_progress
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.inspection.job_copy import Making
from statekeep.inspection.spark_export import export_spark_state
from statekeep.inspection.spark_import import Imported, import_spark_state
from statekeep.inspection.spark_state import DEFAULT_STORE, SparkState
from statekeep.restore.progress_bar import RestoreProgressBar
from statekeep.stores.temporary_directory import temporary_directory

app = typer.Typer(
    name="spark-state",
    help="Exchange state with Spark's own state store.",
    no_args_is_help=True,
)

_NUMBERED: Final = re.compile(r"Partition ([0-9]+)")

Store = Annotated[str, typer.Option(metavar="NAME", help="The store of the job.")]


@app.command("import")
@shared_options
def import_state(
    location: Annotated[
        str, typer.Argument(help="The checkpoint location of the query, which must not run.")
    ],
    *,
    store: Store,
    operator: Annotated[int, typer.Option(min=0, help="Number of the stateful operator.")] = 0,
    spark_store: Annotated[
        str, typer.Option(metavar="NAME", help="Its store, if it has several, as a join does.")
    ] = DEFAULT_STORE,
    options: SettingOptions,
    as_json: AsJson = False,
) -> None:
    """Begin a new job in plain Python with the state of a query.

    Keys and values are bytes as Spark has encoded them. The location is only read.
    """
    settings, clock = options.settings(), SystemClock()

    open_state = partial(SparkState.open, location, operator=operator, store=spark_store)

    async def run(making: Making) -> Imported:
        async with waiting("beginning the new job", clock):
            return await import_spark_state(making, open_state, StoreName(store))

    with (
        explained_temporary_files(),
        temporary_directory("statekeep-import-") as directory,
        CountingBar("records read", clock.monotonic_ns, is_bytes=False) as read,
        CountingBar("uploaded", clock.monotonic_ns) as uploaded,
    ):
        making = Making(
            config=settings,
            clock=clock,
            directory=Path(directory),
            owner=owner_name(),
            uploads=uploaded,
            on_entries=read.add,
        )
        made = asyncio.run(run(making))
    rows: list[dict[str, JsonValue]] = [
        {"task": f"Partition {number}", "version": made.version, "entries": count}
        for number, count in enumerate(made.entries)
    ]
    _print(rows, as_json=as_json)


@app.command("export")
@shared_options
def export_state(
    directory: Annotated[
        Path, typer.Argument(help="Gets <partition>/<version>.snapshot; made if missing.")
    ],
    which: Which = None,
    *,
    store: Store,
    version: Annotated[
        int, typer.Option(min=1, help="The number of batches that the query has committed.")
    ],
    options: SettingOptions,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Write the state of tasks as the files that a query goes on from.

    Such a directory is <checkpoint location>/state/<operator>. The job may keep running.
    """
    settings, clock = options.settings(), SystemClock()
    if not task:
        raise ConfigError("no task is named", hint="name every task of the job with --task, once")

    async def export(name: str, scratch: Path) -> dict[str, JsonValue]:
        target = directory / _number_of(name)
        bar = RestoreProgressBar(clock.monotonic_ns)
        async with read_job(settings, clock, task=name) as job:
            position, commit = job.find_commit(which)
            async with (
                job.held(position),
                waiting_for_progress("writing the state", clock, bar.update) as on_progress,
            ):
                entries = await export_spark_state(
                    job,
                    commit,
                    TaskName(name),
                    StoreName(store),
                    target,
                    version=version,
                    scratch=scratch,
                    on_progress=on_progress,
                )
        return {"task": name, "version": version, "entries": entries}

    async def run(scratch: Path) -> list[dict[str, JsonValue]]:
        return [await export(name, scratch) for name in task]

    with explained_temporary_files(), temporary_directory("statekeep-export-") as scratch:
        rows = asyncio.run(run(Path(scratch)))
    _print(rows, as_json=as_json)


def _number_of(task: str) -> str:
    numbered = _NUMBERED.fullmatch(task)
    if numbered is None:
        raise ConfigError(f"the task has no number: task={task}", hint="such as 'Partition 0'")
    return numbered[1]


def _print(rows: list[dict[str, JsonValue]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(["task", "version", "entries"], [list(row.values()) for row in rows])

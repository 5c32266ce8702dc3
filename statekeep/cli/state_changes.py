"""``statekeep state put``, ``delete``, ``edit``, ``undo`` and ``erase``: the state of a stopped job, changed."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from statekeep.cli.counting_bar import CountingBar
from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    IsSure,
    JobOptions,
    owner_name,
    shared_options,
)
from statekeep.cli.output import print_json, print_line, print_table
from statekeep.cli.state import Operator
from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.inspection.state_change import Changed, Changing, undo_change
from statekeep.restore.progress_bar import RestoreProgressBar
from statekeep.stores.temporary_directory import temporary_directory

Variable = Annotated[str, typer.Argument(help="The state variable.")]
Key = Annotated[
    str,
    typer.Argument(
        help="The grouping key: the text or the number, or a JSON array with a value for each field."
    ),
]
MapKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="Of a map: the key within it, written likewise.")
]
TtlMs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Of a variable with ttlDurationMs, the same number: how long a value lives from the time of"
        " the newest batch.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """How the state of a stopped job is changed."""

    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why; it is kept in the job log with your name.")
    ]
    is_taking_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Change it also if no event says that the job has stopped: its driver is fenced.",
        ),
    ] = False
    is_sure: IsSure = False
    as_json: AsJson = False


@shared_options
def put(
    variable: Variable,
    key: Key,
    value: Annotated[
        str,
        typer.Argument(
            help="The value, written like a key; of a list, a JSON array of all its elements."
        ),
    ],
    *,
    change: ChangeOptions,
    map_key: MapKey = None,
    ttl_ms: TtlMs = None,
    operator: Operator = None,
    options: JobOptions,
) -> None:
    """Put one value into the state of a stopped job.

    As a new commit, with which the next start goes on. In place of the value of the key, of its whole list, or of one entry
    of its map.
    """
    rows = import_module("statekeep.spark.state.given_rows").typed_rows(key, value, map_key)
    _write(
        options.settings(),
        change,
        variable=variable,
        rows=rows,
        operator=operator,
        ttl_ms=ttl_ms,
    )


@shared_options
def delete(
    variable: Variable,
    key: Key,
    *,
    change: ChangeOptions,
    map_key: MapKey = None,
    operator: Operator = None,
    options: JobOptions,
) -> None:
    """Delete what one key has in a variable of a stopped job.

    As a new commit, with which the next start goes on. Older commits keep it: `state erase` reaches these too.
    """
    given = import_module("statekeep.spark.state.given_rows")
    rows = given.typed_rows(key, None, map_key, is_deletion=True)
    _write(
        options.settings(),
        change,
        variable=variable,
        rows=rows,
        kind="delete",
        operator=operator,
    )


@shared_options
def edit(
    variable: Variable,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Rows as `state read` writes them: name.json, name.arrow or name.parquet.",
        ),
    ],
    *,
    change: ChangeOptions,
    is_deletion: Annotated[
        bool, typer.Option("--delete", help="Delete the keys of the rows instead.")
    ] = False,
    ttl_ms: TtlMs = None,
    operator: Operator = None,
    options: JobOptions,
) -> None:
    """Put the rows of a file into the state of a stopped job.

    All of them or none, as a new commit, with which the next start goes on. Keys that the file does not have stay as they are.
    """
    rows = import_module("statekeep.spark.state.given_rows").rows_of_file(
        file, is_deletion=is_deletion
    )
    _write(
        options.settings(),
        change,
        variable=variable,
        rows=rows,
        kind="delete" if is_deletion else "put",
        operator=operator,
        ttl_ms=ttl_ms,
    )


@shared_options
def undo(
    *,
    change: ChangeOptions,
    options: JobOptions,
) -> None:
    """Take the newest change of the state back.

    As a new commit with the state of the commit before it. Only until the job is started again.
    """
    settings = options.settings()
    _confirm(settings, "take the change of its state back", change)

    async def run(changing: Changing) -> Changed:
        async with read_job(settings, SystemClock()) as job:
            return await undo_change(job, change.reason, changing)

    with _changing(change) as changing:
        changed = asyncio.run(run(changing))
    _print_changed(changed, as_json=change.as_json)


@shared_options
def erase(
    *,
    key: Annotated[
        list[str],
        typer.Option(
            metavar="KEY", help="The grouping key, written as for `state get`; may be repeated."
        ),
    ],
    change: ChangeOptions,
    is_dropping_savepoints: Annotated[
        bool,
        typer.Option(
            "--drop-savepoints", help="Drop the pins and savepoints that may hold a key, too."
        ),
    ] = False,
    is_forced: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Go on also if the newest state does not have a key: older commits may hold it.",
        ),
    ] = False,
    operator: Operator = None,
    options: JobOptions,
) -> None:
    """Erase keys from the state of a stopped job and from its backups.

    From every variable, list, map and timer. All older commits are released and deleted: there is no way back. Says what is left where.
    """
    settings = options.settings()
    erasing = import_module("statekeep.spark.state.erasing")
    _confirm(settings, "erase the keys, and delete all older commits", change)
    request = erasing.EraseRequest(
        settings,
        key,
        change.reason,
        operator,
        is_dropping_savepoints=is_dropping_savepoints,
        is_forced=is_forced,
    )
    with _changing(change) as changing:
        erased = asyncio.run(erasing.erase_keys(request, changing, read_job))
    remains = erasing.remains_of(settings, erased.unreached)
    if change.as_json:
        print_json(
            {
                "commit": erased.position,
                "entries": erased.entries,
                "released": list(erased.released),
                "dropped": list(erased.dropped),
                "remains": dict(remains),
            }
        )
        return
    print_line(f"commit {erased.position} is without the keys: {erased.entries} entries are gone")
    print_line(f"older commits that were deleted: {len(erased.released)}")
    if erased.dropped:
        print_line(f"savepoints that were dropped: {', '.join(erased.dropped)}")
    what = "what may still hold the keys"
    print_table(["where", what], list(remains.items()), prose={what})


def _write(settings: Config, change: ChangeOptions, **parts: object) -> None:
    writing = import_module("statekeep.spark.state.writing")
    request = writing.WriteRequest(settings, reason=change.reason, **parts)
    _confirm(settings, "change its state", change)
    with _changing(change) as changing:
        changed, keys = asyncio.run(writing.write_rows(request, changing, read_job))
    _print_changed(changed, keys, as_json=change.as_json)


def _confirm(settings: Config, what: str, change: ChangeOptions) -> None:
    if not change.is_sure:
        typer.confirm(f"Take over job {settings.job.name} and {what}?", abort=True)


@contextmanager
def _changing(change: ChangeOptions) -> Generator[Changing]:
    clock = SystemClock()
    with (
        explained_temporary_files(),
        temporary_directory("statekeep-write-") as directory,
        CountingBar("uploaded", clock.monotonic_ns) as uploaded,
        RestoreProgressBar(clock.monotonic_ns, is_lasting=True) as bar,
    ):
        yield Changing(
            directory,
            owner_name(),
            is_taking_over=change.is_taking_over,
            on_progress=bar.update,
            uploads=uploaded,
        )


def _print_changed(changed: Changed, keys: int | None = None, *, as_json: bool) -> None:
    if as_json:
        counted = {} if keys is None else {"keys": keys}
        print_json({"commit": changed.position, "tasks": changed.tasks, **counted})
    elif not changed.tasks:
        print_line(f"nothing differs: commit {changed.position} stays the newest one")
    else:
        print_line(f"commit {changed.position} has the changed state: {changed.tasks} tasks")

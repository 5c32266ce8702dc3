"""``statekeep state``: the committed state of a job, as rows."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from statekeep.cli.job_reading import read_job
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    shared_options,
)
from statekeep.cli.output import print_line, print_table
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError, StateBackupError
from statekeep.inspection.commit_choice import CommitChoice, parse_time
from statekeep.restore.progress_bar import RestoreProgressBar

app = typer.Typer(name="state", help="The committed state of a job, as rows.", no_args_is_help=True)

_SHOWN_ROWS: Final = 100
"""Rows that people see; files have all of them."""


class Format(StrEnum):
    """What rows are written as."""

    TABLE = "table"
    ARROW = "arrow"
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


Commit = Annotated[
    str | None,
    typer.Option(
        metavar="COMMIT",
        help="Position, checkpoint id, pin or savepoint of a commit; by default the newest one.",
    ),
]
Batch = Annotated[
    int | None, typer.Option(metavar="N", help="The commit of this batch, instead of --commit.")
]
AsOf = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="The newest commit that began before this time, such as 2026-01-31T12:00:00Z; in UTC "
        "unless it has a zone.",
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Read only from this backend, not from the first that can."),
]
Operator = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The stateful operator: main, operator-2, ...; needed if there are several.",
    ),
]

Task = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Only this task, such as 'Partition 0'. In plain Python each has commits of its own.",
    ),
]


@app.command()
@shared_options
def read(
    variable: Annotated[
        str | None,
        typer.Argument(
            help="The state variable, as init() of the processor names it; in plain Python the store.",
            show_default=False,
        ),
    ] = None,
    *,
    is_timers: Annotated[
        bool, typer.Option("--timers", help="Read the timers instead of a variable.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only this grouping key, written as for `state get`."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Only these columns."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="Only what has changed since this commit."),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="What to write; a table has the first 100 rows.")
    ] = Format.TABLE,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where it goes; by default to stdout. Not overwritten."),
    ] = None,
    commit: Commit = None,
    batch: Batch = None,
    as_of: AsOf = None,
    backend: Backend = None,
    operator: Operator = None,
    task: Task = None,
    options: JobOptions,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Read a state variable, the timers, or a store.

    In plain Python, the entries of a store. Nothing is written where the job keeps its state, and the job may keep running.
    """
    form = Format.JSON if as_json else form
    request = _request(
        options.settings(),
        variable,
        is_timers=is_timers,
        commit=CommitChoice(commit, batch, None if as_of is None else parse_time(as_of)),
        since=None if since is None else CommitChoice(since),
        backend=backend,
        operator=operator,
        task=task,
        columns=None if columns is None else tuple(columns.split(",")),
    )
    _show(request, form, output, key=key, is_full=is_full)


@app.command()
@shared_options
def get(
    variable: Annotated[str, typer.Argument(help="The state variable; in plain Python the store.")],
    key: Annotated[
        str,
        typer.Argument(
            help="The grouping key: the text or the number, or a JSON array with a value for each "
            "field; in plain Python the bytes in hexadecimal.",
        ),
    ],
    *,
    commit: Commit = None,
    batch: Batch = None,
    as_of: AsOf = None,
    backend: Backend = None,
    operator: Operator = None,
    task: Task = None,
    options: JobOptions,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show what one key has in a variable or store.

    On Spark the task of the key is restored, and at most one other; in plain Python all tasks, or that of --task.
    """
    request = _request(
        options.settings(),
        variable,
        is_timers=False,
        commit=CommitChoice(commit, batch, None if as_of is None else parse_time(as_of)),
        since=None,
        backend=backend,
        operator=operator,
        task=task,
        columns=None,
    )
    _show(request, Format.JSON if as_json else Format.TABLE, None, key=key, is_full=is_full)


def _request(config: object, variable: str | None, *, is_timers: bool, **parts: object) -> Any:  # noqa: ANN401 - of a package that needs PySpark
    plan = import_module("statekeep.spark.state.plan")
    named = plan.named_variable(variable, timers=is_timers)
    return plan.StateRequest(config=config, variable=named, **parts)


def _show(
    request: Any,  # noqa: ANN401 - as above
    form: Format,
    output: Path | None,
    *,
    key: str | None,
    is_full: bool,
) -> None:
    export = import_module("statekeep.spark.state.export")
    with (
        explained_temporary_files(),
        RestoreProgressBar(SystemClock().monotonic_ns, is_lasting=True) as bar,
    ):
        reading = export.Reading(request, key, bar.update, read_job)
        if form is not Format.TABLE:
            with _opened(output, form) as target:
                reading.write(form.value, target)
            return
        if output is not None:
            raise ConfigError(
                "a table is not written to a file", hint="give --format json, csv, arrow or parquet"
            )
        names, rows, has_more = reading.first_rows(_SHOWN_ROWS)
    print_table(names, rows, if_empty="no rows", is_full=is_full)
    if has_more:
        print_line(f"the first {_SHOWN_ROWS} rows; --format json, csv, arrow or parquet has all")


@contextmanager
def _opened(output: Path | None, form: Format) -> Generator[BinaryIO]:
    """Give what rows are written to; a file appears under its name once it is whole."""
    if output is None:
        if form is Format.PARQUET or (form is Format.ARROW and sys.stdout.isatty()):
            raise ConfigError(
                f"{form} is not for a terminal or a pipe", hint="name a file: --output"
            )
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.exists():
        raise ConfigError(f"the file is there already: file={output}", hint="name another one")
    partial = output.with_name(f"{output.name}.partial")
    try:
        with partial.open("xb") as target:
            yield target
        partial.rename(output)
    except StateBackupError:
        raise  # one of them is an OSError too
    except OSError as exc:
        raise ConfigError(
            f"the file cannot be written: file={output} reason={exc.strerror}",
            hint="make room there, or name another file",
        ) from exc
    finally:
        partial.unlink(missing_ok=True)

"""``statekeep replay``: one recorded batch of a query again, in this process, step by step."""

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from statekeep.cli.exit_status import ExitStatus
from statekeep.cli.local_disk import explained_temporary_files
from statekeep.cli.options import AsJson, IsFull
from statekeep.cli.output import NOTHING, print_json, print_line, print_table
from statekeep.errors import ConfigError

_SHOWN_ROWS: Final = 100
"""Lines that people see; ``--full`` and ``--json`` have all of them."""


def replay(
    *,
    batch: Annotated[int, typer.Option(min=0, metavar="N", help="The batch to run again.")],
    program: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Your function that takes the Spark session and returns the query before start(): "
            "writeStream with its checkpointLocation.",
        ),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Only this grouping key, on its task: the text or the number, or a JSON array with a "
            "value for each field.",
        ),
    ] = None,
    is_debugged: Annotated[
        bool,
        typer.Option(
            "--debug", help="Stop at breakpoint() in the processor, here in this terminal."
        ),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark's master; by default as spark-submit says."),
    ] = None,
    spark_setting: Annotated[
        list[str] | None,
        typer.Option("--spark-set", metavar="KEY=VALUE", help="A setting of the Spark session."),
    ] = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Run one recorded batch of a query on Spark again.

    The state is as it was before the batch, and the rows are read from the source again. The processor runs
    in this process. You see what came in, what was read and written for each key, and what went out, and
    whether that is what the job has recorded: if not, the exit status is 6. The job is only read, and may keep
    running.
    """
    pairs = [given.partition("=") for given in spark_setting or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigError(f"no setting of Spark: --spark-set {name}", hint="write KEY=VALUE")
    replayer: Any = import_module("statekeep.spark.batch_replay.replay")
    with explained_temporary_files():
        again = replayer.replay_by_command(
            program,
            batch,
            key,
            debug=is_debugged,
            master=master,
            session_settings={name: value for name, _, value in pairs},
        )
    if as_json:
        print_json(again.as_json())
    else:
        print_replayed(again, is_full=is_full)
    if not again.matches:
        raise typer.Exit(int(ExitStatus.REFUSED))


def print_replayed(again: Any, *, is_full: bool) -> None:  # noqa: ANN401 - of a package that needs PySpark
    """Print what came of a batch, for people."""
    lines = list(_lines(again))
    shown = lines if is_full else lines[:_SHOWN_ROWS]
    print_table(
        ["key", "what", "variable", "before", "after"],
        shown,
        if_empty="no key was processed",
        is_grouped=True,
        is_full=is_full,
    )
    if len(shown) < len(lines):
        print_line(f"the first {len(shown)} of {len(lines)} lines; --full or --json shows all")
    if again.untraced:
        print_line(f"not shown: {again.untraced} calls for further keys; --key shows one of them")
    print_line(
        f"batch {again.batch} from the commit of batch {again.commit_batch}: tasks {len(again.tasks)}, "
        f"rows out {again.output.num_rows}, late {again.late_rows}, expired {again.expired_values}"
    )
    if again.matches:
        print_line("as recorded")
        return
    print_table(
        ["batch", "task", "differs", "recorded", "now", "keys"],
        [[d.batch, d.task, d.what, d.recorded, d.replayed, d.keys] for d in again.differences],
        is_full=is_full,
    )
    print_line("not as recorded: the source, the program or the order of rows has changed")


def _lines(again: Any) -> Iterator[list[object]]:  # noqa: ANN401 - as above
    for trace in again.keys:
        key = ",".join(map(str, trace.key))
        for row in trace.rows_in:
            yield [key, "row in", NOTHING, NOTHING, _text(row)]
        for step in trace.steps:
            name = step.variable
            if step.map_key is not None:
                name = f"{name}[{','.join(map(str, step.map_key.values()))}]"
            after = _text(step.after) if step.is_write or step.before is None else "same"
            yield [key, step.operation, name, _text(step.before), after]
        for row in trace.rows_out:
            yield [key, "row out", NOTHING, NOTHING, _text(row)]


def _text(value: object) -> str:
    return NOTHING if value is None else json.dumps(value, ensure_ascii=False)

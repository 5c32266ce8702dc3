"""The application: which commands there are, and what becomes of errors."""

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from statekeep.cli import (
    backends,
    checkpoints,
    clean_up,
    clones,
    config,
    doctor,
    events,
    guard,
    import_query,
    migrate,
    new_jobs,
    replay,
    report,
    restore,
    savepoints,
    spark_state,
    state,
    state_changes,
    stores,
    top,
    verify,
)
from statekeep.cli.exit_status import exit_status_of
from statekeep.cli.output import PlainConsole
from statekeep.errors import StateBackupError
from statekeep.extras import missing_package

app = typer.Typer(
    name="statekeep",
    help="Inspect, verify and restore the backups of a job's state, and manage its commits.",
    epilog="Exit status: 0 fine, 1 not confirmed, or an unexpected error, 2 wrong setting "
    "or argument, or data of a newer version, 3 damaged, 4 unavailable, 5 fenced, 6 refused for another reason.",
    context_settings={"max_content_width": 120},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(checkpoints.app)
app.add_typer(stores.app)
for change in (
    state_changes.put,
    state_changes.delete,
    state_changes.edit,
    state_changes.undo,
    state_changes.erase,
):
    state.app.command()(change)
app.add_typer(state.app)
app.add_typer(savepoints.app)
app.add_typer(clones.app)
app.add_typer(spark_state.app)
app.add_typer(guard.app)
app.add_typer(backends.app)
app.add_typer(config.app)
app.command("verify")(verify.verify)
app.command("restore")(restore.restore)
app.command("migrate")(migrate.migrate)
app.command("migrate-log")(migrate.migrate_log)
app.command("import")(import_query.import_query)
app.command("rescale")(new_jobs.rescale_job)
app.command("replay")(replay.replay)
app.command("gc")(clean_up.collect_garbage)
app.command("reset")(clean_up.reset)
app.command("events")(events.events)
app.command("report")(report.report)
app.command("ui")(report.ui)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)


def _show_version(is_asked: bool) -> None:  # noqa: FBT001 - the callback of an option
    if is_asked:
        sys.stdout.write(f"statekeep {version('statekeep')}\n")
        raise typer.Exit


@app.callback()
def common(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Take the options that stand before any command."""


def main() -> None:
    """Run the command line and exit; an error becomes a line with its remedy, and a number."""
    try:
        with _warnings_shown():
            app()
    except StateBackupError as exc:
        _end(exc)
    except ModuleNotFoundError as exc:
        missing = missing_package(exc)
        if missing is None:
            raise
        _end(missing)


@contextmanager
def _warnings_shown() -> Generator[None]:
    """Show our own warnings as lines on stderr, and none of the clients': our errors include those."""
    lines, nowhere = logging.StreamHandler(), logging.NullHandler()
    lines.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    own, root = logging.getLogger("statekeep"), logging.getLogger()
    own.addHandler(lines)
    root.addHandler(nowhere)
    try:
        yield
    finally:
        own.removeHandler(lines)
        root.removeHandler(nowhere)


def _end(error: StateBackupError) -> NoReturn:
    _explain(error)
    raise SystemExit(int(exit_status_of(error))) from None


def _explain(error: StateBackupError) -> None:
    console = PlainConsole(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[bold red]error:[/] {escape(error.message)}")
    for note in [*getattr(error, "__notes__", ()), *(f"hint: {hint}" for hint in error.hints)]:
        console.print(f"  {escape(note)}")
    cause = error.__cause__
    if isinstance(cause, StateBackupError) and cause.message not in error.message:
        console.print(f"  cause: {escape(cause.message)}")

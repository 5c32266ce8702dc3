"""``statekeep config``: the effective settings and their sources."""

import typer

from statekeep.cli.options import (
    AsJson,
    IsFull,
    JobOptions,
    shared_options,
)
from statekeep.cli.output import print_json, print_line, print_table

app = typer.Typer(name="config", help="The settings of a job.", no_args_is_help=True)


@app.command()
@shared_options
def explain(
    *,
    options: JobOptions,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show each effective setting and where it comes from.

    Secrets stay hidden.
    """
    rows = options.settings().explain()
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(["key", "value", "source"], rows, is_full=is_full)


@app.command()
@shared_options
def check(
    *,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Check the settings, each and all together, as a start does."""
    options.settings().check()
    if as_json:
        print_json({"ok": True})
    else:
        print_line("the settings are valid")

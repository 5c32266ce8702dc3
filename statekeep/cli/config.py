"""``statekeep config``: what holds in the end, and who said so."""

import typer

from statekeep.cli.options import (
    AsJson,
    ConfigFiles,
    IsFull,
    Location,
    Settings,
    SettingsFiles,
    read_config,
)
from statekeep.cli.output import print_json, print_table

app = typer.Typer(name="config", help="The settings of a job.", no_args_is_help=True)


@app.command()
def explain(
    *,
    config: ConfigFiles = None,
    setting: Settings = None,
    set_file: SettingsFiles = None,
    location: Location = None,
    is_full: IsFull = False,
    as_json: AsJson = False,
) -> None:
    """Show each effective setting and where it comes from.

    Secrets stay hidden.
    """
    rows = read_config(config, setting, set_file, location).explain()
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(["key", "value", "source"], rows, is_full=is_full)


@app.command()
def check(
    *,
    config: ConfigFiles = None,
    setting: Settings = None,
    set_file: SettingsFiles = None,
    location: Location = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings as the start of the job would.

    Each alone, and all against each other. Says nothing of settings that are right, but by --json.
    """
    read_config(config, setting, set_file, location).check()
    if as_json:
        print_json({"ok": True})

"""``statekeep migrate``: the state of a stopped job, in one more backend."""

from typing import Annotated

import typer

from statekeep.cli.copying import copy_newest_commits, print_copies
from statekeep.cli.options import (
    AsJson,
    ConfigFiles,
    IsSure,
    LogsOfTasks,
    Settings,
    read_config,
)


def migrate(
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="BACKEND", help="The backend that gets the state.")
    ],
    is_sure: IsSure = False,
    config: ConfigFiles = None,
    setting: Settings = None,
    task: LogsOfTasks = None,
    as_json: AsJson = False,
) -> None:
    """Copy the state of a stopped job to another backend: its next start finds markers of both.

    Makes a new commit, equal to the newest one but for the markers that are added. If the job
    runs, it is fenced. docs/migration.md has the way for a job that must not stop.
    """
    settings = read_config(config, setting)
    if not is_sure:
        typer.confirm(
            f"Take over job {settings.job.name} and copy its state to {target}?", abort=True
        )
    print_copies(copy_newest_commits(settings, task, [target]), is_json=as_json)

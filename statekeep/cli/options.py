"""Options that many commands share, and the settings that they add up to."""

import os
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Annotated, TypeAlias

import typer

from statekeep.config.load import load_dict, load_job, merge
from statekeep.config.model import Config
from statekeep.errors import ConfigError

ConfigFiles: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings of the job, .toml or .properties; a later file wins over an earlier one.",
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="One setting; wins over files and environment."
    ),
]
LogOfTask: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="Look at the log of one task: in plain Python each task has a log of its own.",
    ),
]
LogsOfTasks: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="In plain Python, where each task has a log of its own: each task of the job.",
    ),
]
IsSure: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs, instead of text for people.")
]
Which: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="COMMIT",
        help="Position, checkpoint id or pin of a commit; left out: the current one.",
        show_default=False,
    ),
]


def owner_name() -> str:
    """Return host and process, as a log names its owners."""
    return f"{gethostname()}:{os.getpid()}"


def read_config(files: Sequence[Path] | None, settings: Sequence[str] | None) -> Config:
    """Return the settings: files, then environment, then ``--set``; the last one wins.

    Raises:
        ConfigError: A file cannot be read, a key is unknown, or a value is not of its type.
    """
    return merge(load_job(*files or ()), load_dict(dict(map(_split, settings or ())), "--set"))


def _split(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError("not KEY=VALUE: --set")  # no more: it may be a value, and a secret
    return key.strip(), value

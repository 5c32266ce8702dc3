"""Options that many commands share, and the settings that they add up to."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, TypeAlias

import typer
from typing_extensions import override

from statekeep.config.load import load_dict, load_job, load_private_file, merge
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.inspection.job_of_location import with_location

logger = logging.getLogger(__name__)

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
IsSure: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs, instead of text for people.")
]
IsFull: TypeAlias = Annotated[
    bool,
    typer.Option("--full", help="Show markers and paths whole, however wide the table becomes."),
]
Which: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="COMMIT",
        help="Position, checkpoint id or pin of a commit; by default the current one.",
        show_default=False,
    ),
]


def owner_name() -> str:
    """Return host and process, as a log names its owners."""
    return f"{gethostname()}:{os.getpid()}"


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """Where the settings of a job come from."""

    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Settings of the job, .toml or .properties; a later file wins over an earlier one.",
        ),
    ] = None
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="One setting; wins over files and environment. No secrets: every user of the machine "
            "sees them in the process list.",
        ),
    ] = None
    set_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--set-file",
            metavar="FILE",
            help="Settings with secrets, .toml or properties, that only you can read (mode 600); win "
            "over files and environment. The environment may hold secrets too (STATEKEEP__...).",
        ),
    ] = None

    def settings(self) -> Config:
        """Return the settings: files, environment, ``--set-file``, ``--set``; the last one wins.

        Raises:
            ConfigError: A file cannot be read, or others can get at one that must be private; a key is
                unknown, or a value is not of its type.
        """
        told = load_dict(dict(map(_split, self.setting or ())), "--set")
        for setting in told.settings.values():
            if setting.holds_secret:
                logger.warning(
                    "every user of this machine sees a secret in the process list: key=%s: "
                    "give it by --set-file or in the environment, and replace it",
                    setting.name,
                )
        private = map(load_private_file, self.set_file or ())
        return merge(load_job(*self.config or ()), *private, told)


@dataclass(frozen=True, kw_only=True)
class JobOptions(SettingOptions):
    """Which job a command is about."""

    location: Annotated[
        str | None,
        typer.Option(
            "--location",
            metavar="CHECKPOINT",
            help="On Spark: the query's checkpoint location, as the program gives it. Finds the job of "
            "a query without settings of its own.",
        ),
    ] = None

    @override
    def settings(self) -> Config:
        """Return the settings; what none of them says follows from the checkpoint location."""
        config = super().settings()
        return config if self.location is None else with_location(config, self.location)


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that are fields of its parameters, where these are dataclasses.

    So options that many commands have are written once, with what they add up to.
    """
    own = signature(command)
    groups: dict[str, Any] = {
        p.name: p.annotation for p in own.parameters.values() if is_dataclass(p.annotation)
    }

    @wraps(command)
    def run(**given: object) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    shown: list[Parameter] = []
    for parameter in own.parameters.values():
        if parameter.name in groups:
            shown += signature(parameter.annotation).parameters.values()
        else:
            shown.append(parameter)
    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined] # read by typer
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


def _split(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError("not KEY=VALUE: --set")  # no more: it may be a value, and a secret
    return key.strip(), value


SparkMaster: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark's master; by default as spark-submit says."
    ),
]
SparkSettings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--spark-set", metavar="KEY=VALUE", help="A setting of the Spark session."),
]


def spark_settings(given: Sequence[str] | None) -> dict[str, str]:
    """Return the settings of Spark that a command was given.

    Raises:
        ConfigError: One of them is none.
    """
    settings: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"no setting of Spark: --spark-set {text}", hint="write KEY=VALUE")
        settings[key] = value
    return settings

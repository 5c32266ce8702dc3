"""Builds a `Config` from what the user wrote: a dict, a file, the environment, a Spark conf."""

import logging
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Final, cast

from statekeep.config.lookup import WrittenValue, check_setting
from statekeep.config.model import Config
from statekeep.config.properties import parse_properties
from statekeep.config.settings import Setting, collect, overlay
from statekeep.errors import ConfigError

logger = logging.getLogger(__name__)

SPARK_PREFIX: Final = "spark.statekeep."
"""What our settings begin with in a Spark conf."""
ENVIRONMENT_PREFIX: Final = "STATEKEEP__"
"""What our settings begin with in the environment."""
_ENVIRONMENT_DOT: Final = "__"


def load_dict(values: Mapping[str, WrittenValue], source: str = "dict") -> Config:
    """Read settings that a program holds; numbers, booleans, paths and lists are welcome.

    Args:
        values: By key.
        source: What error messages and `Config.explain` call the source.

    Raises:
        ConfigError: A key is unknown or not supported, a value is not of its type, or a setting is
            given twice with different values.
    """
    return Config(collect(check_setting(key, value, source) for key, value in values.items()))


def load_file(path: str | PathLike[str]) -> Config:
    """Read a ``.toml`` or a ``.properties`` file, by its name.

    Warns of a file with a secret in it that every user of the machine can read.

    Raises:
        ConfigError: As `load_toml` and `load_properties`; or the name ends in neither.
    """
    match Path(path).suffix:
        case ".toml":
            config = load_toml(path)
        case ".properties":
            config = load_properties(path)
        case _:
            raise ConfigError(
                f"the name of the settings file does not say its format: path={path}",
                hint="name it .properties or .toml",
            )
    secrets = [setting.name for setting in config.settings.values() if setting.holds_secret]
    if secrets and Path(path).stat().st_mode & stat.S_IROTH:
        logger.warning(
            "every user of this machine can read a file with secrets: path=%s keys=%s: "
            "chmod o= the file",
            path,
            ",".join(secrets),
        )
    return config


def load_private_file(path: str | PathLike[str]) -> Config:
    """Read a file of settings that other users cannot read: ``.toml``, or else properties.

    It must belong to this user, or to root; only root's may be readable by its group.

    Raises:
        ConfigError: As `load_toml` and `load_properties`; or others can read or write the file.
    """
    try:
        status = Path(path).stat()
    except OSError as exc:
        raise ConfigError(f"cannot read the settings: path={path} reason={exc.strerror}") from exc
    is_roots = status.st_uid == 0 and os.geteuid() != 0
    forbidden = stat.S_IRWXO | (stat.S_IWGRP if is_roots else stat.S_IRWXG)
    if not (is_roots or status.st_uid == os.geteuid()) or status.st_mode & forbidden:
        raise ConfigError(
            f"a file with secrets is not private: path={path} "
            f"mode={stat.S_IMODE(status.st_mode):o} owner={status.st_uid}",
            hint="let only yourself read it: chmod 600",
        )
    return load_toml(path) if Path(path).suffix == ".toml" else load_properties(path)


def load_job(*paths: str | PathLike[str]) -> Config:
    """Read what a job runs with: files, and over them the environment.

    The command line reads the same before its ``--set-file`` and ``--set``, so that it looks where the job does.

    Raises:
        ConfigError: As `load_file` and `load_environment`.
    """
    return merge(*map(load_file, paths), load_environment(os.environ))


def load_toml(path: str | PathLike[str]) -> Config:
    """Read a TOML file: tables and dotted keys are one and the same, lists may be arrays.

    A name that is both a setting and the beginning of another one is written in quotes, such as
    ``"stores.counts.changelog"``.

    Raises:
        ConfigError: As `load_dict`; or the file cannot be read or is no TOML.
    """
    try:
        document = tomllib.loads(_read_text(path))
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"settings are not TOML: path={path} reason={exc}") from exc
    return Config(
        collect(check_setting(key, value, str(path)) for key, value in _flatten(document))
    )


def load_environment(variables: Mapping[str, str]) -> Config:
    """Read the settings among environment variables: those under `ENVIRONMENT_PREFIX`.

    Two underscores stand for a dot: ``STATEKEEP__TASK__COMMIT__MS`` is ``task.commit.ms``. A name
    without lower-case letters is taken as lower case; any other as it is written.

    Args:
        variables: Such as ``os.environ``.

    Raises:
        ConfigError: As `load_dict`.
    """
    return Config(
        collect(
            check_setting(_key_of_variable(name), value, f"environment {name}")
            for name, value in variables.items()
            if name.startswith(ENVIRONMENT_PREFIX)
        )
    )


def load_properties(path: str | PathLike[str]) -> Config:
    """Read a Java ``.properties`` file in UTF-8; the source of a value is file and line.

    Raises:
        ConfigError: As `load_dict`; or the file cannot be read.
    """
    text = _read_text(path)
    try:
        entries = list(parse_properties(text))
    except ValueError as exc:
        raise ConfigError(f"{exc} path={path}") from exc
    return Config(
        collect(check_setting(entry.key, entry.value, f"{path}:{entry.line}") for entry in entries)
    )


def load_spark_conf(pairs: Iterable[tuple[str, str]]) -> Config:
    """Read the settings among the entries of a Spark conf: those under `SPARK_PREFIX`.

    Args:
        pairs: Such as ``SparkConf.getAll()`` gives.

    Raises:
        ConfigError: As `load_dict`.
    """
    return Config(
        collect(
            check_setting(key.removeprefix(SPARK_PREFIX), value, f"spark conf {key}")
            for key, value in pairs
            if key.startswith(SPARK_PREFIX)
        )
    )


def merge(*configs: Config) -> Config:
    """Return all settings together; a later one wins, and each keeps its source.

    A default of the runtime never replaces a value that was given.
    """
    merged: Mapping[str, Setting] = {}
    for config in configs:
        merged = overlay(merged, config.settings)
    return Config(merged)


def _read_text(path: str | PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"cannot read the settings: path={path} reason={exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"settings are not UTF-8: path={path} byte={exc.start}") from None


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, WrittenValue]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(cast("dict[str, object]", value), f"{prefix}{name}.")
        else:  # of a type that no setting has: refused where the setting is checked
            yield f"{prefix}{name}", cast("WrittenValue", value)


def _key_of_variable(name: str) -> str:
    key = name.removeprefix(ENVIRONMENT_PREFIX).replace(_ENVIRONMENT_DOT, ".")
    return key.lower() if key.isupper() else key

"""Builds a `Config` from what somebody wrote: a dict, a ``.properties`` file, a Spark conf."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Final

from statekeep.config.model import Config
from statekeep.config.properties import parse_properties
from statekeep.config.settings import Setting, WrittenValue, check_setting, collect, overlay
from statekeep.errors import ConfigError

SPARK_PREFIX: Final = "spark.statekeep."
"""What our settings begin with in a Spark conf."""


def load_dict(values: Mapping[str, WrittenValue], source: str = "dict") -> Config:
    """Read settings that a program holds; numbers, booleans, paths and lists are welcome.

    Args:
        values: By key.
        source: What error messages and `Config.explain` call the place.

    Raises:
        ConfigError: A key is unknown or not supported, a value is not of its type, or a setting is
            given twice with different values.
    """
    return Config(collect(check_setting(key, value, source) for key, value in values.items()))


def load_properties(path: str | PathLike[str]) -> Config:
    """Read a Java ``.properties`` file in UTF-8; the source of a value is file and line.

    Raises:
        ConfigError: As `load_dict`; or the file cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        entries = list(parse_properties(text))
    except OSError as exc:
        raise ConfigError(f"cannot read the settings: path={path} reason={exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"settings are not UTF-8: path={path} byte={exc.start}") from None
    except ValueError as exc:
        raise ConfigError(f"{exc} path={path}") from exc
    return Config(collect(check_setting(e.key, e.value, f"{path}:{e.line}") for e in entries))


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

    A default of the runtime never replaces a value that somebody gave.
    """
    merged: Mapping[str, Setting] = {}
    for config in configs:
        merged = overlay(merged, config.settings)
    return Config(merged)

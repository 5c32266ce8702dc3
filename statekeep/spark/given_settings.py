"""The settings that a program gives for a job on Spark, with the environment over them."""

import os
from collections.abc import Mapping
from os import PathLike
from typing import Any

from statekeep.config.load import load_dict, load_environment, load_file, merge
from statekeep.config.model import Config

Settings = Mapping[str, Any] | Config | str | PathLike[str]
"""By key, or read already, or the path of a ``.toml`` or ``.properties`` file."""


def read_settings(settings: Settings | None, conf: Config | None = None) -> Config:
    """Return what a job runs with, or is looked up by. Called on the driver, or without Spark.

    Args:
        settings: Of the program.
        conf: Of the Spark session: the program's go over them.

    Raises:
        ConfigError: The file cannot be read, a key is unknown or not supported, or a value is not of
            its type.
    """
    under = () if conf is None else (conf,)
    return merge(*under, _read(settings), load_environment(os.environ))


def _read(settings: Settings | None) -> Config:
    if isinstance(settings, Config):
        return settings
    if isinstance(settings, str | PathLike):
        return load_file(settings)
    return load_dict(settings or {}, "settings")

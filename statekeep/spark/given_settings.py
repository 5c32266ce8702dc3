"""The settings that a program gives for a job on Spark, with the environment over them."""

import os
from collections.abc import Mapping
from typing import Any

from statekeep.config.load import load_dict, load_environment, merge
from statekeep.config.model import Config

Settings = Mapping[str, Any] | Config


def read_settings(settings: Settings | None, conf: Config | None = None) -> Config:
    """Return what a job runs with, or is looked up by. Called on the driver, or without Spark.

    Args:
        settings: Of the program.
        conf: Of the Spark session: the program's go over them.

    Raises:
        ConfigError: A key is unknown or not supported, or a value is not of its type.
    """
    given = settings if isinstance(settings, Config) else load_dict(settings or {}, "settings")
    under = () if conf is None else (conf,)
    return merge(*under, given, load_environment(os.environ))

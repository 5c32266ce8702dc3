"""Where a job keeps its local state that names no place for it."""

import os
import tempfile
from pathlib import Path

from statekeep.config.job_keys import LOCAL_DIR
from statekeep.config.settings import Setting
from statekeep.errors import ConfigError


def default_local_dir() -> Path:
    """Return the local directory of a job that names none.

    As in Samza it is the one that the environment of this machine has, else one of each user.

    Raises:
        ConfigError: The environment's is no absolute path: processes of a job have working
            directories of their own.
    """
    text = LOCAL_DIR.default_of_variable
    if text is None:
        return Path(tempfile.gettempdir()) / f"statekeep-{os.getuid()}"
    found = Setting(LOCAL_DIR.name, text, f"environment {LOCAL_DIR.variable}").parse_key(LOCAL_DIR)
    if found is None or not found.is_absolute():
        raise ConfigError(
            f"the local directory must be absolute: path={text} source=environment {LOCAL_DIR.variable}",
            key=LOCAL_DIR.name,
            hint=f"write the whole path into {LOCAL_DIR.variable}",
        )
    return found

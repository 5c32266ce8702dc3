"""Names of jobs, tasks and stores as names of directories."""

import string
from typing import Final

from statekeep.errors import ConfigError

_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "-.")
_MAX_BYTES: Final = 255


def directory_name(name: str) -> str:
    """Return the directory name for a name; different names never share one.

    Letters, digits, dots and dashes stay, a space becomes ``_`` (``Partition 3``:
    ``Partition_3``), every other byte of the UTF-8 form ``%XX``, a dot in front as well: such
    names are kept for files of our own.

    Raises:
        ConfigError: The name is empty, or too long for a file system.
    """
    text = "".join(
        char
        if char in _PLAIN and (char != "." or index)
        else "_"
        if char == " "
        else "".join(f"%{byte:02X}" for byte in char.encode())
        for index, char in enumerate(name)
    )
    if not text or len(text) > _MAX_BYTES:
        raise ConfigError(f"name cannot be that of a local directory: name={name!r}")
    return text

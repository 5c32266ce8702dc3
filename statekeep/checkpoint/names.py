"""Names of jobs, tasks, stores and files as parts of a path, local or remote, and which job log is whose."""

import re
from typing import Final
from urllib.parse import unquote

from statekeep.errors import ConfigError

MAIN_OPERATOR: Final = "main"
"""The one stateful operator of a job; in plain Python it stands for the program."""

MAIN_STORE: Final = "state"
"""The store on Spark of every state variable that no setting puts into another one."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]")
_SPACE_BEFORE_DIGIT: Final = re.compile(r"_(?=[0-9])")
_DIGITS: Final = frozenset("0123456789")
_MAX_BYTES: Final = 255
"""Of one part of a path; Linux and all common filesystems take no more."""


def escape_name(name: str) -> str:
    """Return ``name`` as one part of a path; different names give different parts.

    Letters, digits, ``_``, ``.`` and ``-`` stay, a space before a digit becomes ``_`` (so
    ``Partition 3`` is ``Partition_3``), and every other byte of the UTF-8 form is ``%XX``: also
    ``_`` before a digit and a dot in front, as such parts are kept for files of our own.

    Raises:
        ConfigError: The name is empty, too long for a file system, or no valid Unicode.
    """
    try:
        part = "".join(_escape_at(name, index) for index in range(len(name)))
    except UnicodeEncodeError as exc:
        raise ConfigError(f"name is no valid Unicode: name={name!r}") from exc
    if not 0 < len(part) <= _MAX_BYTES:
        raise ConfigError(f"name is empty or too long for a path: name={name!r}")
    return part


def unescape_name(part: str) -> str:
    """Return the name of which `escape_name` made ``part``.

    Raises:
        ValueError: It is not a name that this function makes.
    """
    return unquote(_SPACE_BEFORE_DIGIT.sub(" ", part), errors="strict")


def is_escaped(part: str) -> bool:
    """Return whether `escape_name` may have made ``part``."""
    try:
        return len(part) <= _MAX_BYTES and escape_name(unescape_name(part)) == part
    except (ValueError, ConfigError):
        return False


def is_file_name(name: str) -> bool:
    """Return whether a name can be that of a file in some directory, and leads nowhere else."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    is_one_part = bool(name.strip()) and "/" not in name and "\0" not in name
    return is_one_part and size <= _MAX_BYTES and name not in {".", ".."}


def job_scope(job_name: str) -> str:
    """Return the scope of a job's one log, as on Spark: what `StateBackendFactory.job_log` is asked for."""
    return escape_name(job_name)


def task_scope(job_name: str, operator: str, task_name: str) -> str:
    """Return the scope of one task's log, as in plain Python."""
    return "/".join(map(escape_name, (job_name, operator, task_name)))


def _escape_at(text: str, index: int) -> str:
    char = text[index]
    is_before_digit = text[index + 1 : index + 2] in _DIGITS
    if char == " " and is_before_digit:
        return "_"
    if _PLAIN.fullmatch(char) and not (char == "_" and is_before_digit):
        return "%2E" if char == "." and index == 0 else char
    return "".join(f"%{byte:02X}" for byte in char.encode())

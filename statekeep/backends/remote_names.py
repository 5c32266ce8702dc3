"""The parts of remote names: from task and store names to text that every store accepts."""

import re
from typing import Final
from urllib.parse import unquote

TEMPORARY_PREFIX: Final = ".tmp-"
"""With this begin names of files that are not blobs yet; no part of a blob's name may."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]")
_SPACE_BEFORE_DIGIT: Final = re.compile(r"_(?=[0-9])")


def escape_name(text: str) -> str:
    """Return ``text`` as one part of a remote name; different texts give different parts.

    Letters, digits, ``_``, ``.`` and ``-`` stay, a space before a digit becomes ``_`` (so
    ``Partition 3`` is ``Partition_3``), and everything else is percent-encoded: also ``_`` before
    a digit and a dot at the beginning.

    Raises:
        ValueError: The text is empty, or no valid Unicode.
    """
    if not text:
        msg = "an empty name cannot be part of a remote name"
        raise ValueError(msg)
    return "".join(_escape_at(text, index) for index in range(len(text)))


def unescape_name(part: str) -> str:
    """Return the text of which `escape_name` made ``part``."""
    return unquote(_SPACE_BEFORE_DIGIT.sub(" ", part), errors="strict")


def check_blob_name(name: str) -> None:
    """Refuse a name that could lead out of the root or mean another blob on some store.

    Raises:
        ValueError: The name is absolute, has an empty, ``.``, ``..`` or temporary part, a
            backslash or a control character.
    """
    parts = name.split("/")
    if (
        any(part in {"", ".", ".."} or part.startswith(TEMPORARY_PREFIX) for part in parts)
        or "\\" in name
        or not name.isprintable()
    ):
        msg = f"not a blob name: name={name!r}"
        raise ValueError(msg)


def _escape_at(text: str, index: int) -> str:
    char = text[index]
    is_before_digit = text[index + 1 : index + 2] in set("0123456789")
    if char == " " and is_before_digit:
        return "_"
    if _PLAIN.fullmatch(char) and not (char == "_" and is_before_digit):
        return "%2E" if char == "." and index == 0 else char
    return "".join(f"%{byte:02X}" for byte in char.encode())

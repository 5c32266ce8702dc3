"""Reading documents and names that others may have written."""

from typing import Final, TypeVar

import msgspec

from statekeep.errors import CheckpointCorruptError

T = TypeVar("T")

_MAX_NAME_BYTES: Final = 255
"""Of one part of a path; Linux and all common filesystems take no more."""


def decode_json(decoder: msgspec.json.Decoder[T], data: bytes, damage: str) -> T:
    """Return what a JSON document holds.

    Args:
        decoder: Of the type that is expected.
        data: The document.
        damage: The message of the error, such as ``checkpoint cannot be read: task=...``.

    Raises:
        CheckpointCorruptError: It is not JSON, not of the type, or nested too deep.
    """
    try:
        return decoder.decode(data)
    # The library raises errors that are not its own for invalid text and deep nesting.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CheckpointCorruptError(damage) from exc


def is_file_name(name: str) -> bool:
    """Return whether a name can be that of a file in some directory, and leads nowhere else."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    is_one_part = bool(name.strip()) and "/" not in name and "\0" not in name
    return is_one_part and size <= _MAX_NAME_BYTES and name not in {".", ".."}

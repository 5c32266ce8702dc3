"""Reads the frames that the formats page describes, by that page alone."""

import json
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

_PARTS = 5


class DamagedFrameError(Exception):
    """Raised for bytes that are not a whole frame."""


@lru_cache(maxsize=4096)
def _read(path: Path, inode: int) -> str:  # noqa: ARG001 - tells a file from its successor
    return json.dumps(parse_frame(path.read_bytes(), str(path)))


def read_frame(path: Path) -> dict[str, Any]:
    """Return the payload of a file that never changes."""
    found: dict[str, Any] = json.loads(_read(path, path.stat().st_ino))
    return found


def parse_frame(data: bytes, where: str) -> dict[str, Any]:
    """Return the payload of a frame, which must be JSON.

    Raises:
        DamagedFrameError: Header, length or checksum do not fit.
    """
    header, _, payload = data.partition(b"\n")
    parts = header.decode("ascii", errors="replace").split(" ")
    if len(parts) != _PARTS or parts[:2] != ["statekeep", "1"]:
        raise DamagedFrameError(f"no frame of version 1: {where}: {header[:60]!r}")
    _, _, kind, checksum, length = parts
    if len(payload) != int(length) or zlib.crc32(kind.encode() + payload) != int(checksum, 16):
        raise DamagedFrameError(f"length or checksum differ: {where}")
    found: dict[str, Any] = json.loads(payload)
    return found

"""The blocking calls that move one part of a blob, each on one executor thread."""

import os
from dataclasses import dataclass
from pathlib import Path

from statekeep.backends.blob.managers.object_client import (
    ObjectClient,
    ObjectStamps,
)
from statekeep.backends.blob.managers.ordered_file import OrderedFile
from statekeep.backends.blob.managers.parts import Part
from statekeep.errors import RetriableError, VersionDamagedError


def file_size(path: Path) -> int:
    """Return the size of a file that is to be stored."""
    try:
        return path.stat().st_size
    except OSError as exc:
        raise VersionDamagedError(f"the file to store is gone: path={path}") from exc


def _read_slice(path: Path, part: Part) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), part.size, part.start)
    except OSError as exc:
        raise VersionDamagedError(f"the file to store cannot be read: path={path}") from exc
    if len(data) != part.size:
        raise VersionDamagedError(
            f"the file to store has changed: path={path} "
            f"expected_bytes={part.start + part.size} actual_bytes={part.start + len(data)}"
        )
    return data


def put_file(
    client: ObjectClient,
    name: str,
    path: Path,
    part: Part,
    stamps: ObjectStamps,
    *,
    if_absent: bool,
) -> None:
    """Store a file whole."""
    client.put(name, _read_slice(path, part), stamps, if_absent=if_absent)


def put_part(client: ObjectClient, name: str, upload: str, path: Path, part: Part) -> str:
    """Store a part of a file; return what `ObjectClient.complete_parts` calls it by."""
    return client.put_part(name, upload, part.number, _read_slice(path, part))


def read_part(client: ObjectClient, name: str, part: Part) -> bytes:
    """Return a part of a blob that is known to be as large."""
    data = client.read(name, part.start, part.size).data
    _check_size(name, part.size, len(data))
    return data


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of a part that was fetched for a file."""

    size: int
    object_bytes: int
    parts_written: int
    """Of the file, from its start: not always this one, which another thread may have to write."""


def fetch_part(client: ObjectClient, name: str, part: Part, file: OrderedFile) -> Fetched:
    """Fetch a part, up to the blob's end, and bring it to its file: still in the caches.

    Raises:
        BlobNotFoundError: The blob is not there.
        ConfigError: The disk is full or not writable.
        RetriableError: It came short; nothing was brought.
    """
    size, object_bytes = _bring_part(client, name, part, file)
    return Fetched(size, object_bytes, file.write())


def _bring_part(client: ObjectClient, name: str, part: Part, file: OrderedFile) -> tuple[int, int]:
    """Leave a part with its file, and nowhere else; return its size and the blob's."""
    found = client.read(name, part.start, part.size)
    size, object_bytes = len(found.data), found.object_bytes
    # Only with the first part is the size of the blob not known before.
    expected = part.size if part.number else min(part.size, object_bytes)
    if size == expected:
        file.bring(part.number, found.data)
    del found  # the frames of an error would keep it
    _check_size(name, expected, size)
    return size, object_bytes


def _check_size(name: str, expected: int, actual: int) -> None:
    if actual != expected:
        msg = f"short read: name={name} expected_bytes={expected} actual_bytes={actual}"
        raise RetriableError(msg)

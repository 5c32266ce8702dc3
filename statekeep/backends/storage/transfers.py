"""Moving a blob in parts: how it is cut, each part on one executor thread, and the file that they fill."""

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.backends.storage.client import ObjectClient, ObjectStamps, PartLimits, StorageClient
from statekeep.errors import ConfigError, RetriableError, VersionDamagedError

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a blob's bytes."""

    number: int
    """From 0."""
    start: int
    size: int


def cut(size: int, part_bytes: int, *, start: int = 0, number: int = 0) -> list[Part]:
    """Return the parts of a blob of ``size`` bytes from ``start`` on; all but the last are equal.

    They are numbered from ``number`` on.
    """
    return [
        Part(each, begin, min(part_bytes, size - begin))
        for each, begin in enumerate(range(start, size, part_bytes), number)
    ]


def fitting_part_bytes(size: int, wanted: int, limits: PartLimits) -> int:
    """Return the size of the parts to upload a blob in: as wanted, if the store takes as many.

    A blob that is too large for that gets larger parts, in whole MiB: 10,000 parts of 16 MiB
    are 156 GiB.
    """
    smallest = -(-size // limits.max_parts)
    return max(wanted, limits.min_bytes, -(-smallest // _MIB) * _MIB if smallest > wanted else 0)


class OrderedFile:
    """A file that is written by the threads that bring its parts, while these are in their caches.

    Who brings a part calls `write` next: one thread at a time writes the parts whose turn it is, its
    own and those of others. No thread waits for another's.
    """

    def __init__(self, target: Path) -> None:
        """Write nothing yet; ``target`` must not exist."""
        self._target = target
        self._digest = hashlib.sha256()
        self._parts: dict[int, bytes] = {}
        """Those that have come and are not written."""
        self._next = 0
        self._changing = threading.Condition()
        self._is_writing = False
        self._is_closed = False

    def bring(self, number: int, data: bytes) -> None:
        """Leave a part here, once; numbers begin at 0. `write` has to be called after it."""
        with self._changing:
            if not self._is_closed:
                self._parts[number] = data

    def write(self) -> int:
        """Write the parts whose turn it is, unless another thread does; return how many are written.

        That many, from the first on, are out of memory: of the file, and here.

        Raises:
            ConfigError: The disk is full or not writable.
        """
        with self._changing:
            if self._is_writing:
                return self._next
            self._is_writing = True
        try:
            while self._write_next():
                pass
        except BaseException:
            with self._changing:
                self._is_writing = False
                self._close()
            raise
        return self._next

    def close(self) -> bool:
        """Write no other part from now on; return whether none is being written. Never waits."""
        with self._changing:
            self._close()
            return not self._is_writing

    def wait_closed(self) -> None:
        """Wait for the end of the part that is being written as the file is closed."""
        with self._changing:
            self._changing.wait_for(lambda: not self._is_writing)

    @property
    def sha256(self) -> str:
        """In hex, of what was written; once the file is closed and no thread writes."""
        return self._digest.hexdigest()

    def _close(self) -> None:
        self._is_closed = True
        self._parts.clear()
        self._changing.notify_all()

    def _write_next(self) -> bool:
        """Write the part whose turn it is; without one, False ends the writing."""
        with self._changing:
            data = None if self._is_closed else self._parts.pop(self._next, None)
            if data is None:
                self._is_writing = False
                self._changing.notify_all()
                return False
        self._append(data)
        self._digest.update(data)
        del data  # another part may have its memory as soon as it counts as written
        with self._changing:
            self._next += 1
        return True

    def _append(self, data: bytes) -> None:
        try:
            with self._target.open("ab" if self._next else "xb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
        except OSError as exc:
            raise ConfigError(
                f"a blob cannot be written to this machine: path={self._target}"
                f" reason={exc.strerror}"
            ) from exc


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


def put_whole(
    client: StorageClient,
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


def read_part(client: StorageClient, name: str, part: Part) -> bytes:
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


def fetch_part(client: StorageClient, name: str, part: Part, file: OrderedFile) -> Fetched:
    """Fetch a part, up to the blob's end, and bring it to its file: still in the caches.

    Raises:
        BlobNotFoundError: The blob is not there.
        ConfigError: The disk is full or not writable.
        RetriableError: It came short; nothing was brought.
    """
    size, object_bytes = _bring_part(client, name, part, file)
    return Fetched(size, object_bytes, file.write())


def _bring_part(client: StorageClient, name: str, part: Part, file: OrderedFile) -> tuple[int, int]:
    """Leave a part with its file, and nowhere else; return its size and the blob's."""
    found = client.read(name, part.start, part.size)
    size, object_bytes = len(found.data), found.object_bytes
    if object_bytes is None:
        # Only who fetches the first part asks for it.
        object_bytes = 0 if part.number else client.size(name)
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

"""Blobs as files of the local filesystem, durable and whole."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from statekeep.backends.remote_names import TEMPORARY_PREFIX
from statekeep.checkpoint.log_writer import random_nonce

_COPY_BYTES: Final = 1 << 20
_MAX_TRIES: Final = 10


class LocalPlace:
    """A `Place` below one directory.

    A blob is written to a temporary name in its own directory, synced, then linked (which fails if
    the name is taken) or renamed, and the directory is synced: after a crash at any point it is
    there whole or not at all. Directories that a delete leaves empty are removed.
    """

    def __init__(self, root: Path, *, new_uid: Callable[[], str] = random_nonce) -> None:
        self._root = root
        self._new_uid = new_uid

    def check(self) -> None:
        """Create the root if it is missing, and look into it."""
        _make_directories(self._root)
        with os.scandir(self._root):
            pass

    def put(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        """Store a blob; FileExistsError with ``if_absent`` and a name that is taken."""
        target = self._root / name
        if if_absent and target.exists():
            raise FileExistsError(name)
        temporary, file = self._create_temporary(target.parent)
        try:
            with file:
                _write(file, content)
            if if_absent:
                os.link(temporary, target)
            else:
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(target.parent)

    def size(self, name: str) -> int:
        """Return a blob's size in bytes."""
        return (self._root / name).stat().st_size

    def read(self, name: str, start: int, end: int | None) -> bytes:
        """Return the bytes of a blob from ``start`` up to ``end``; None: to its end."""
        with (self._root / name).open("rb") as file:
            file.seek(start)
            return file.read(-1 if end is None else end - start)

    def delete(self, name: str) -> None:
        """Delete a blob; one that is not there is no error."""
        path = self._root / name
        path.unlink(missing_ok=True)
        for directory in path.parents:
            if directory == self._root:
                break
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # not empty: whatever else is wrong with it, the blob is gone
                break

    def list(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with ``prefix``."""
        directory = self._root / prefix.rpartition("/")[0]
        names = (path.relative_to(self._root).as_posix() for path in _files_below(directory))
        return [name for name in names if name.startswith(prefix)]

    def _create_temporary(self, directory: Path) -> tuple[Path, BinaryIO]:
        temporary = directory / f"{TEMPORARY_PREFIX}{self._new_uid()}"
        for _ in range(_MAX_TRIES):
            _make_directories(directory)
            try:
                return temporary, temporary.open("xb")
            except FileNotFoundError:  # a delete has removed the empty directory
                continue
        raise FileNotFoundError(directory)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: BinaryIO, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        file.write(content)
    else:
        with content.open("rb") as source:
            shutil.copyfileobj(source, file, _COPY_BYTES)
    file.flush()
    os.fsync(file.fileno())


def _make_directories(directory: Path) -> None:
    """Create a directory and what is missing above it, durably."""
    missing: list[Path] = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def _files_below(directory: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        # A directory that went since its parent was read has no files; any other error would make
        # the listing silently incomplete.
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, _, files in os.walk(directory, onerror=refuse):
        for file in files:
            if not file.startswith(TEMPORARY_PREFIX):
                yield Path(parent, file)

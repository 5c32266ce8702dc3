"""Checksums of files that are shared by hard link: read once, then known."""

import os
import stat
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from statekeep.stores.local_files import IMMUTABLE_SUFFIXES, crc32_of
from statekeep.stores.version import FileEntry

_FileId = tuple[str, int, int, int]
_SUFFIXES: Final = tuple(IMMUTABLE_SUFFIXES)
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class KnownChecksums:
    """Gives the manifest entries of an image without reading again what the last one shares.

    A store of a gigabyte is not read for every version. Used by one thread; only `read_ahead` may
    run beside another method.
    """

    def __init__(self) -> None:
        self._crcs: dict[_FileId, int] = {}
        self._ahead: dict[_FileId, int] = {}

    def learn(self, directory: Path, entries: tuple[FileEntry, ...]) -> None:
        """Take over what the manifest of the version in ``directory`` says.

        Raises:
            FileNotFoundError: A file is missing.
        """
        self._crcs = {
            _file_id(entry.path, (directory / entry.path).stat()): entry.crc32
            for entry in entries
            if entry.path.endswith(_SUFFIXES)
        }

    def read_ahead(self, directory: Path) -> None:
        """Read the files of an image to be, which the engine may be writing just now.

        A file that changes meanwhile is left to `entries`.

        Args:
            directory: Laid out as the image will be: a file is known by name, inode, size and time.
        """
        known, found = self._crcs, dict[_FileId, int]()
        for name, file in _files_below(directory):
            if not name.endswith(_SUFFIXES):
                continue
            path = Path(file.path)
            try:
                file_id = _file_id(name, path.stat())
                if file_id not in known:
                    crc = self._ahead.get(file_id)
                    crc = crc32_of(path) if crc is None else crc
                    if _file_id(name, path.stat()) == file_id:
                        found[file_id] = crc
            except FileNotFoundError:  # compacted away
                continue
        self._ahead = found

    def entries(self, directory: Path) -> tuple[FileEntry, ...]:
        """Return the entry of every file below ``directory``, and know these from now on.

        A file that the engine has made readable for others is closed to them.
        """
        crcs: dict[_FileId, int] = {}
        entries: list[FileEntry] = []
        for name, file in _files_below(directory):
            status = file.stat()
            if status.st_mode & _OTHERS:
                os.chmod(file.path, stat.S_IMODE(status.st_mode) & ~_OTHERS)  # noqa: PTH101 - as above
            file_id = _file_id(name, status)
            crc = self._crcs.get(file_id, self._ahead.get(file_id))
            if crc is None:
                crc = crc32_of(Path(file.path))
            if name.endswith(_SUFFIXES):
                crcs[file_id] = crc
            entries.append(FileEntry(name, status.st_size, crc))
        self._crcs = crcs
        return tuple(sorted(entries, key=attrgetter("path")))


def _files_below(directory: Path | str, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files with their relative names; not by `Path.walk`, as this is on the sync pause."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry


def _file_id(name: str, status: os.stat_result) -> _FileId:
    """Return what a hard link shares with its original, and no other file has.

    The inode alone would not do: it may be given to a new file once the old one is gone.
    """
    return name, status.st_ino, status.st_size, status.st_mtime_ns

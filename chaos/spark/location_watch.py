"""Tells whether anything of the checkpoint location was touched that must not be."""

import zlib
from pathlib import Path

Fingerprint = dict[str, tuple[int, int]]


class LocationWatch:
    """Compares the query's checkpoint location with what it was when a run began."""

    def __init__(self, location: Path) -> None:
        self._location = location
        self._before: Fingerprint = {}

    def begin(self) -> None:
        """Record the location as it is before a run."""
        self._before = fingerprint(self._location)

    def changed(self) -> list[str]:
        """Return the files that were changed or are gone since then."""
        now = fingerprint(self._location)
        return sorted(name for name, what in self._before.items() if now.get(name) != what)

    def added(self) -> list[str]:
        """Return the files that were not there."""
        return sorted(fingerprint(self._location).keys() - self._before.keys())


def fingerprint(directory: Path) -> Fingerprint:
    """Return size and checksum of each file below a directory, but for Spark's hidden ones."""
    found: Fingerprint = {}
    for path in directory.rglob("*") if directory.exists() else ():
        if path.name.startswith("."):
            continue
        try:
            data = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            continue
        found[path.relative_to(directory).as_posix()] = (len(data), zlib.crc32(data))
    return found

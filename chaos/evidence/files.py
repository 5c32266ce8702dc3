"""The blobs of a place, whatever holds them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from typing_extensions import override


class Files(Protocol):
    """Named contents. One thread uses it."""

    def names(self, prefix: str) -> set[str]:
        """Return the names below a prefix that is a directory; none if there is no such thing."""
        ...

    def unfinished(self, prefix: str) -> set[str]:
        """Return the names below a prefix that puts, neither ended nor tidied up, were to make."""
        ...

    def empty_directories(self, prefix: str) -> set[str]:
        """Return the directories below a prefix in which nothing is, where they are things."""
        ...

    def read(self, name: str) -> bytes:
        """Return a content.

        Raises:
            FileNotFoundError: There is none of this name.
        """
        ...


class LocalFiles(Files):
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def names(self, prefix: str) -> set[str]:
        # What is not whole yet has a name of its own, which does not count.
        found: set[str] = set()
        pending = [self._root / prefix]
        while pending:
            try:
                entries = list(pending.pop().iterdir())
            except (FileNotFoundError, NotADirectoryError):
                continue  # deleted at this moment
            for path in entries:
                if path.is_dir():
                    pending.append(path)
                elif not path.name.startswith(".tmp-"):
                    found.add(path.relative_to(self._root).as_posix())
        return found

    @override
    def unfinished(self, prefix: str) -> set[str]:
        return set()

    @override
    def empty_directories(self, prefix: str) -> set[str]:
        return set()  # a delete that was killed leaves one, and no later one looks for it

    @override
    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()


def log_records(files: Files, scope: str) -> Mapping[int, str]:
    """Return ``{position: name}`` of the records of a log, as the formats page names them."""
    names = files.names(f"{scope}/log")
    return {int(name.rpartition("/")[2].removesuffix(".json")): name for name in names}

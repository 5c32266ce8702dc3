"""What an attacker may change: the places of a job, and its local disk, as named contents."""

import base64
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from chaos.backends import Place
from chaos.evidence.remote import Reader

_MOST_KEPT_BYTES: Final = 1 << 24
"""What is larger is not remembered: it is of an attack."""


class Prey(ABC):
    """Files that an attacker can read, replace and add to. One thread uses it."""

    is_local = True
    """Whether links and pipes can be put there, and files that are huge cost nothing."""

    @abstractmethod
    def contents(self) -> Mapping[str, bytes]:
        """Return every file by its name, without those that are too large to be the job's."""

    @abstractmethod
    def write(self, name: str, data: bytes, *, zeros: int = 0) -> None:
        """Put bytes, and zeros behind them, in the place of whatever has the name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove whatever has the name, if anything has."""

    @abstractmethod
    def make_directory(self, name: str) -> None:
        """Put a directory in the place of whatever has the name."""


class LocalPrey(Prey):
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @override
    def contents(self) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for parent, _, files in os.walk(self._root):
            for file in files:
                path = Path(parent, file)
                entry = path.lstat()
                if stat.S_ISREG(entry.st_mode) and entry.st_size <= _MOST_KEPT_BYTES:
                    found[path.relative_to(self._root).as_posix()] = path.read_bytes()
        return found

    @override
    def write(self, name: str, data: bytes, *, zeros: int = 0) -> None:
        # Another file: what is linked to the old one stays whole, as on another disk.
        path = self._cleared(name)
        path.write_bytes(data)
        if zeros:
            os.truncate(path, len(data) + zeros)

    @override
    def delete(self, name: str) -> None:
        path = self._root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @override
    def make_directory(self, name: str) -> None:
        self._cleared(name).mkdir()

    def write_through(self, name: str, data: bytes) -> None:
        """Put bytes into the file itself, so into all that is linked to it."""
        (self._root / name).write_bytes(data)

    def link(self, name: str, target: str) -> None:
        """Put a symbolic link in the place of whatever has the name."""
        self._cleared(name).symlink_to(target)

    def make_pipe(self, name: str) -> None:
        """Put a pipe without a writer in the place of whatever has the name."""
        os.mkfifo(self._cleared(name))

    def exchange(self, one: str, other: str) -> None:
        """Let two files or directories have each other's name."""
        if not ((self._root / one).exists() and (self._root / other).exists()):
            return  # the job has removed one meanwhile
        spare = self._root / f"{one}.spare"
        (self._root / one).rename(spare)
        (self._root / other).rename(self._root / one)
        spare.rename(self._root / other)

    def _cleared(self, name: str) -> Path:
        self.delete(name)
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class HdfsPrey(Prey):
    """Files on a NameNode."""

    is_local = False

    def __init__(self, place: Place, hand: Reader) -> None:
        self._files = place.files()
        self._hand = hand
        self._at = (place.server.address, place.root)
        self._known: dict[str, bytes] = {}

    @override
    def contents(self) -> Mapping[str, bytes]:
        there = self._files.names("")
        # No name is ever given to another content, but by us.
        for name in there - self._known.keys():
            try:
                data = self._files.read(name)
            except FileNotFoundError:
                continue  # deleted at this moment, or listed by another name than it can be read by
            if len(data) <= _MOST_KEPT_BYTES:
                self._known[name] = data
        return {name: self._known[name] for name in sorted(there & self._known.keys())}

    @override
    def write(self, name: str, data: bytes, *, zeros: int = 0) -> None:
        self._known.pop(name, None)
        self._hand.ask("hdfs_write", *self._at, name, base64.b64encode(data).decode(), zeros)

    @override
    def delete(self, name: str) -> None:
        self._known.pop(name, None)
        self._hand.ask("hdfs_delete", *self._at, name)

    @override
    def make_directory(self, name: str) -> None:
        self._known.pop(name, None)
        self._hand.ask("hdfs_make_directory", *self._at, name)


Record = tuple[bytes, bytes | None]


class Topics:
    """The topics of a place on a broker."""

    def __init__(self, place: Place, hand: Reader) -> None:
        self._hand = hand
        self._address = place.server.address
        self._prefix = place.topic_prefix

    def records(self) -> Mapping[tuple[str, int], Sequence[tuple[int, bytes, bytes | None]]]:
        """Return what each partition holds: offset, key and value of its records."""
        found = self._hand.ask("kafka_read_all", self._address, self._prefix)
        return {
            (topic, number): [
                (offset, base64.b64decode(key), None if value is None else base64.b64decode(value))
                for offset, key, value in records
            ]
            for topic, number, records in found
        }

    def write(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Write records behind those that are there."""
        self._hand.ask("kafka_write", self._address, topic, partition, _as_text(records))

    def cut(self, topic: str, partition: int, offset: int) -> None:
        """Delete the records before an offset."""
        self._hand.ask("kafka_cut", self._address, topic, partition, offset)

    def rewrite(self, topic: str, partitions: Sequence[Sequence[Record]]) -> None:
        """Delete a topic and make it anew with other records."""
        self._hand.ask("kafka_rewrite", self._address, topic, [*map(_as_text, partitions)])


def prey_of(place: Place, hand: Reader) -> Prey:
    """Return the files of a place; not of a broker."""
    return LocalPrey(place.directory) if place.is_local else HdfsPrey(place, hand)


def _as_text(records: Sequence[Record]) -> list[tuple[str, str | None]]:
    return [
        (base64.b64encode(k).decode(), None if v is None else base64.b64encode(v).decode())
        for k, v in records
    ]

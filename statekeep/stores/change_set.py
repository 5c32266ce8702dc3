"""A change set: what one batch changed in a task's stores, under the name of the version it makes.

A version is its parent plus a change set. On Spark a batch leaves no more than that; an image, with
all files of the stores, is made when a version is submitted for a commit.

Layout of ``<batch>_<uid>.changes``::

    <store>.delta     the changes of one store; the header names the version, its parent, the store
    output.arrow      the output rows of the batch, where they did not travel with the receipt

A change set appears whole, by one rename. Nothing is fsynced: it must survive the death of a
process, not of the host. Each delta carries checksums and an end marker, so one that a power loss
tore is found when it is read.

Every write of a store goes to its delta as well: `CapturingStore`.
"""

import io
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.checkpoint.names import escape_name
from statekeep.errors import CheckpointCorruptError, StateBackupError, VersionDamagedError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change, DeltaCounts, DeltaHeader, DeltaReader, DeltaWriter
from statekeep.stores.local_files import explained_errors, open_regular, private_opener

CHANGES_SUFFIX: Final = ".changes"
OUTPUT_FILE: Final = "output.arrow"


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """A change set on this disk; immutable, but it may be removed once a newer image is there."""

    directory: Path
    version: VersionId

    def parent(self, store: StoreName) -> VersionId | None:
        """Return the version that the changes start from; None for empty state.

        Raises:
            VersionDamagedError: The delta of ``store`` is missing or damaged.
        """
        with self.open(store) as delta:
            return VersionId.parse(delta.header.parent) if delta.header.parent else None

    @contextmanager
    def open(self, store: StoreName) -> Generator[DeltaReader]:
        """Open the delta of a store; damage found here or inside the block is one error.

        Raises:
            VersionDamagedError: It is missing, damaged, or of another version or store.
            UnknownFormatError: A newer version of Statekeep wrote it.
        """
        path = self.delta_path(store)
        try:
            with open_regular(path) as file:
                delta = DeltaReader(file, where=f"path={path}")
                if (delta.header.version, delta.header.store) != (str(self.version), store):
                    msg = f"delta is of another version or store: path={path}"
                    raise VersionDamagedError(msg)
                yield delta
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise VersionDamagedError(f"delta of a version is missing: path={path}") from exc
        except CheckpointCorruptError as exc:
            raise VersionDamagedError(f"delta of a version is damaged: path={path}") from exc

    def verify(self, stores: Sequence[StoreName]) -> None:
        """Read every delta to its end.

        Raises:
            VersionDamagedError: One is missing or damaged; names it.
        """
        for store in stores:
            with self.open(store) as delta:
                for _ in delta.blocks():
                    pass

    def size_bytes(self, stores: Sequence[StoreName]) -> int:
        """Return how much the deltas of some stores take; it was made just now."""
        return sum(self.delta_path(store).stat().st_size for store in stores)

    def delta_path(self, store: StoreName) -> Path:
        """Return where the delta of a store lies."""
        return self.directory / delta_name(store)

    @property
    def output_path(self) -> Path:
        """Where the output of the batch lies, if it is here."""
        return self.directory / OUTPUT_FILE


def delta_name(store: StoreName) -> str:
    """Return the file name of a store's delta in a change set."""
    return f"{escape_name(store)}.delta"


_CURRENT: Final = "current.tmp"


class CapturingStore(KeyValueStore):
    """Forwards to a store and keeps what is written between two calls of `cut`.

    Memory is bounded by one block of the delta format; the rest goes to a file at once. A write
    that fails in the middle leaves store and delta different: every later write or cut fails then,
    and the work directory has to be thrown away.
    """

    def __init__(self, store: KeyValueStore, directory: Path) -> None:
        """Wrap ``store``; delta files go to ``directory``.

        Raises:
            ConfigError: The directory is not writable, or the disk is full.
        """
        super().__init__(store.name)
        self._store = store
        self._directory = directory
        self._is_broken = False
        self._current: tuple[io.BufferedRandom, DeltaWriter] | None = None
        with explained_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def has_changes(self) -> bool:
        """Whether anything was written since the last `cut`, or may have been."""
        return self._is_broken or self._current is not None

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._store.get_many(keys)

    @override
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._check_whole()
        self._is_broken = True
        self._store.write(changes)
        with explained_errors(self._directory):
            _, writer = self._begun()
            writer.write(changes)
        self._is_broken = False

    def apply(self, records: Iterable[Change]) -> None:
        """Write changes that are a version's already: they are not captured again."""
        self._store.load(records)

    @override
    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(prefix)

    @override
    def flush(self, *, is_awaited: bool = True) -> None:
        self._store.flush(is_awaited=is_awaited)

    @override
    def size_bytes(self) -> int:
        return self._store.size_bytes()

    @override
    def checkpoint(self, directory: Path) -> None:
        self._store.checkpoint(directory)

    @override
    def close(self) -> None:
        try:
            if self._current is not None:
                # The rest of the buffer is written here, on a disk that may be full.
                with explained_errors(self._directory):
                    self._current[0].close()
        finally:
            self._store.close()

    def cut(self, header: DeltaHeader, target: Path) -> DeltaCounts:
        """End the current delta as the file ``target``, and begin the next one.

        Called while no thread writes, at the moment that an image of the store is made: the delta has
        what was written since the last cut, or since the store was opened.

        Raises:
            StateBackupError: A write failed in the middle.
            ConfigError: The disk is full or not writable.
        """
        self._check_whole()
        self._is_broken = True
        with explained_errors(self._directory):
            file, writer = self._begun()
            counts = writer.finish(header)
            file.close()
            (self._directory / _CURRENT).rename(target)
            self._current = None
        self._is_broken = False
        return counts

    def _begun(self) -> tuple[io.BufferedRandom, DeltaWriter]:
        """Return the file of the current delta, made with its first write."""
        if self._current is None:
            file = open(self._directory / _CURRENT, "w+b", opener=private_opener)  # noqa: SIM115 - kept
            self._current = file, DeltaWriter(file)
        return self._current

    def _check_whole(self) -> None:
        if self._is_broken:
            msg = f"a write failed in the middle, its changes are lost: store={self.name} directory={self._directory}"
            raise StateBackupError(msg)

"""Change capture: every write of a store is also appended to a delta file."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from statekeep.errors import StateBackupError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change, DeltaCounts, DeltaHeader, DeltaWriter
from statekeep.stores.local_files import explained_errors, private_opener

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
    def flush(self) -> None:
        self._store.flush()

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

        Called while nobody writes, at the moment that an image of the store is made: the delta has
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

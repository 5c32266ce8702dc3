"""The store in memory, for tests and for small state: every image of it is a whole copy."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import BackendClosedError, CheckpointCorruptError, VersionDamagedError
from statekeep.stores.base import START_AGAIN, KeyValueStore
from statekeep.stores.delta import DeltaHeader, DeltaReader, DeltaWriter, Records
from statekeep.stores.local_files import explained_errors, open_regular

IMAGE_FILE: Final = "image.delta"
"""The whole content, in the format of `statekeep.stores.delta`."""


class MemoryStore(KeyValueStore):
    """A `KeyValueStore` in a dict. Memory grows with the state; a scan sorts its keys first."""

    def __init__(self, name: StoreName, directory: Path, *, is_new: bool) -> None:
        """Load the image in ``directory``.

        Args:
            name: For errors.
            directory: Holds nothing but this store.
            is_new: Nothing was ever stored: the store is empty where there is no image.

        Raises:
            VersionDamagedError: The image is damaged, or there is none and ``is_new`` is False.
            UnknownFormatError: A newer version of Statekeep wrote it.
            ConfigError: The directory is not writable.
        """
        super().__init__(name)
        self._directory = directory
        self._is_changed = False
        with explained_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._open_entries: dict[bytes, bytes] | None = _load(directory / IMAGE_FILE, is_new=is_new)

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    @override
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        entries = self._entries
        return [entries.get(key) for key in keys]

    @override
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        entries = self._entries
        self._is_changed = True
        for key, value in changes.items():
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value

    @override
    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        entries = self._entries
        return iter([(key, entries[key]) for key in sorted(entries) if key.startswith(prefix)])

    @override
    def checkpoint(self, directory: Path) -> None:
        entries = self._entries
        with explained_errors(directory):
            directory.mkdir(parents=True)
            _save(self.name, entries, directory / IMAGE_FILE)

    @override
    def close(self) -> None:
        if self._open_entries is None:
            return
        entries, self._open_entries = self._open_entries, None
        # An empty one has an image too: a version without one lacks the store.
        if self._is_changed or not (self._directory / IMAGE_FILE).exists():
            temporary = self._directory / f"{IMAGE_FILE}.tmp"
            with explained_errors(self._directory):
                _save(self.name, entries, temporary)
                # A new file: the one in its place may be shared with a sealed version.
                temporary.replace(self._directory / IMAGE_FILE)

    @property
    def _entries(self) -> dict[bytes, bytes]:
        if self._open_entries is None:
            msg = f"store is closed: store={self.name} directory={self._directory}"
            raise BackendClosedError(msg)
        return self._open_entries


def check_memory_image(directory: Path) -> None:
    """Read an image to its end, with bounded memory.

    Raises:
        VersionDamagedError: There is none, or it is damaged.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    for _ in _blocks(directory / IMAGE_FILE):
        pass


def _load(path: Path, *, is_new: bool) -> dict[bytes, bytes]:
    if is_new and not path.exists():
        return {}
    try:
        return {key: value for block in _blocks(path) for key, value in block if value is not None}
    except VersionDamagedError as exc:
        exc.add_note(START_AGAIN)
        raise


def _blocks(path: Path) -> Iterator[Records]:
    try:
        with open_regular(path) as file:
            yield from DeltaReader(file, where=f"path={path}").blocks()
    except FileNotFoundError as exc:
        raise VersionDamagedError(f"image of a store lacks a file: path={path}") from exc
    except CheckpointCorruptError as exc:
        raise VersionDamagedError(f"store is damaged: path={path}") from exc


def _save(store: StoreName, entries: Mapping[bytes, bytes], path: Path) -> None:
    with path.open("wb") as file:
        writer = DeltaWriter(file, DeltaHeader(store=store))
        writer.write(entries)
        writer.finish()

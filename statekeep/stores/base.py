"""The contract of a local store: bytes to bytes, on the disk or in memory of one task."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.delta import Change

START_AGAIN: Final = "hint: start again: what is damaged is found then, and restored from a backup"
"""Note of the `VersionDamagedError` that a running task comes to."""


class KeyValueStore(ABC):
    """A task's local store. Keys and values are bytes; keys are ordered as bytes are.

    Used by one thread at a time: the task's processing thread, or an executor thread while the
    task waits. Every method blocks, and none reaches beyond the local disk. After `close` every
    other method raises `BackendClosedError`.
    """

    def __init__(self, name: StoreName) -> None:
        self.name = name

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of ``key``, None if there is none."""

    @abstractmethod
    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` in their order, None where there is none."""

    @abstractmethod
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Put and delete many keys; a value of None deletes.

        Chunked at 10,000 keys, so that no call holds the interpreter lock for long. Atomic only
        together with the version that is sealed next.
        """

    def load(self, records: Iterable[Change]) -> None:
        """Put and delete in order, of two records of one key the later one holds: for a restore.

        As `write` is, but no mapping has to be made first. Cheap on a store that was opened to be
        loaded (`statekeep.stores.factory.open_to_load`).
        """
        self.write(dict(records))

    def put(self, key: bytes, value: bytes) -> None:
        """Set one key."""
        self.write({key: value})

    def delete(self, key: bytes) -> None:
        """Remove one key; a key that is not there is no error."""
        self.write({key: None})

    @abstractmethod
    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose key begins with ``prefix``, in order of key.

        Writes made while the iterator lives are not seen by it.
        """

    def flush(self, *, is_awaited: bool = True) -> None:  # noqa: B027 - a store without a disk has nothing to do
        """Bring closer to the disk what a `checkpoint` would have to write; nothing changes by it.

        The one method that may run beside another thread's reads and writes, so that the pause of
        a `checkpoint` soon after it is short.

        Args:
            is_awaited: Return when it is done; else once it has begun: a `checkpoint` waits for the end.
        """

    def size_bytes(self) -> int:
        """Return about how much the content takes, files and memory together; 0 where unknown."""
        return 0

    @abstractmethod
    def checkpoint(self, directory: Path) -> None:
        """Write the content as it is now to ``directory``, which must not exist yet.

        The image is immutable and independent of the store (files are shared by hard link where
        the engine never rewrites them); opening a store on a clone of it gives the same content.
        Called while no thread writes.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and memory. Idempotent.

        What was written lies in the store's directory afterwards: opening it gives the content.
        """

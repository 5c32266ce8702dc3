"""Bringing a restored image to a later version by its deltas; every function here blocks, on the disk."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from statekeep.backends.blob.index import DeltaBlob
from statekeep.errors import CheckpointCorruptError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import DeltaReader


@dataclass(frozen=True, slots=True)
class FetchedDelta:
    """A delta that lies on this disk, equal to its digest."""

    delta: DeltaBlob
    path: Path


class DeltaLoad:
    """Writes deltas to the store on an image, one after the other; opens it with the first.

    Every method blocks. Used by one thread at a time, whichever.
    """

    def __init__(self, open_store: Callable[[], KeyValueStore]) -> None:
        """Open nothing yet.

        Args:
            open_store: Opens the store on the image.
        """
        self._open_store = open_store
        self._store: KeyValueStore | None = None

    def apply(self, fetched: FetchedDelta, is_cancelled: threading.Event) -> None:
        """Write the changes of the next delta, and remove its file.

        Args:
            fetched: Leads on from the image, or from the delta before.
            is_cancelled: Ends it within a block: nobody uses the store any more.

        Raises:
            CheckpointCorruptError: It is damaged, or not the one that the index says.
        """
        if is_cancelled.is_set():
            return
        if self._store is None:
            self._store = self._open_store()
        with fetched.path.open("rb") as source:
            for block in _checked(source, fetched).blocks():
                self._store.load(block)
                if is_cancelled.is_set():
                    return
        fetched.path.unlink()

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()


def _checked(source: BinaryIO, fetched: FetchedDelta) -> DeltaReader:
    """Read the header of a delta and compare it with its index."""
    reader = DeltaReader(source, where=f"blob_id={fetched.delta.blob_id}")
    expected = (fetched.delta.parent, fetched.delta.version)
    if (reader.header.parent, reader.header.version) != expected:
        msg = (
            f"delta is another one than its index says: blob_id={fetched.delta.blob_id} "
            f"parent={reader.header.parent} version={reader.header.version}"
        )
        raise CheckpointCorruptError(msg)
    return reader

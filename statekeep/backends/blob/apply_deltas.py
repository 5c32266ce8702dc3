"""Bringing a restored image to a later version by its deltas; every function here blocks, on the disk."""

import threading
from collections.abc import Callable, Sequence
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


def apply_deltas(
    open_store: Callable[[], KeyValueStore],
    deltas: Sequence[FetchedDelta],
    is_cancelled: threading.Event,
) -> None:
    """Write the changes of deltas to a store, in order, and close it.

    Args:
        open_store: Opens the store on the image.
        deltas: What leads from there to the version that is wanted.
        is_cancelled: Ends it within a block: nobody uses the store any more.

    Raises:
        CheckpointCorruptError: A delta is damaged, or not the one that the index says.
    """
    if is_cancelled.is_set():
        return
    store = open_store()
    try:
        for fetched in deltas:
            with fetched.path.open("rb") as source:
                for block in _checked(source, fetched).blocks():
                    store.load(block)
                    if is_cancelled.is_set():
                        return
    finally:
        store.close()


def remove_deltas(deltas: Sequence[FetchedDelta]) -> None:
    """Remove the files of deltas that are applied."""
    for fetched in deltas:
        fetched.path.unlink()


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

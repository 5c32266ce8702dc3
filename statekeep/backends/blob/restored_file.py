"""Putting a restored file together and proving it; every function here blocks, on the disk."""

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from statekeep.backends.blob.codec import at_most
from statekeep.backends.blob.encoded_stream import StreamDecoder
from statekeep.backends.blob.image import DigestRun, digest_file
from statekeep.backends.blob.index import BlobRange, DeltaBlob, FileIndex
from statekeep.errors import CheckpointCorruptError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import DeltaReader


def append_part(part: Path, path: Path, offset: int) -> None:
    """Move a downloaded part to the end of its file.

    Raises:
        CheckpointCorruptError: The part does not begin where the file ends.
    """
    size = path.stat().st_size
    if size != offset:
        msg = f"blobs of a file leave a gap or overlap: path={path} offset={offset} bytes={size}"
        raise CheckpointCorruptError(msg)
    with part.open("rb") as source, path.open("ab") as target:
        shutil.copyfileobj(source, target)
    part.unlink()


def write_small_file(path: Path, pieces: Iterable[bytes]) -> str:
    """Write a new file from what was fetched into memory; return its sha-256 in hex.

    What a damaged try has left there goes first: nothing is written through a link.
    """
    path.unlink(missing_ok=True)
    digests = DigestRun()
    with path.open("xb") as file:
        for piece in pieces:
            digests.update(piece)
            file.write(piece)
    return digests.digests.sha256


def check_stored(stored: bytes, expected: BlobRange, where: str) -> None:
    """Compare stored bytes with the index before anything else is made of them.

    Raises:
        CheckpointCorruptError: They differ.
    """
    if len(stored) != expected.size or hashlib.sha256(stored).hexdigest() != expected.sha256:
        msg = (
            f"stored bytes differ from their digest: {where} start={expected.start} "
            f"expected_bytes={expected.size} actual_bytes={len(stored)}"
        )
        raise CheckpointCorruptError(msg)


def write_piece(
    path: Path,
    stored: bytes,
    expected: BlobRange,
    decoder: StreamDecoder,
    digests: DigestRun,
    *,
    max_bytes: int,
) -> int:
    """Decode the next piece of a file and append it; return how many bytes it is.

    Raises:
        CheckpointCorruptError: It is damaged, not the next piece of this file, or more than
            ``max_bytes``.
        KeyUnavailableError: Its key is missing.
    """
    check_stored(stored, expected, f"path={path}")
    with path.open("ab") as file:
        start = file.tell()
        for frame in at_most(decoder.frames(stored), max_bytes, f"path={path}"):
            digests.update(frame)
            file.write(frame)
        return file.tell() - start


def check_file(path: Path, expected: FileIndex, sha256: str | None) -> None:
    """Compare a restored file with its index.

    Args:
        path: The file.
        expected: Its index.
        sha256: Of the bytes as they were written, if known; else the file is read.

    Raises:
        CheckpointCorruptError: Size or digest differ.
    """
    size = path.stat().st_size
    if size != expected.size:
        msg = (
            f"restored size differs: path={path} expected_bytes={expected.size} actual_bytes={size}"
        )
        raise CheckpointCorruptError(msg)
    if expected.sha256 is not None and sha256 is not None:
        is_equal = sha256 == expected.sha256
    else:
        digests = digest_file(path)
        is_equal = digests.crc32 == expected.checksum and (
            expected.sha256 is None or digests.sha256 == expected.sha256
        )
    if not is_equal:
        msg = f"restored file differs from its digest: path={path} bytes={size}"
        raise CheckpointCorruptError(msg)


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
            is_cancelled: Ends it within a block; for a store that is no longer needed.

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

"""The contract of a blob store's client, for the blob backend: ``blob.store.manager.factory``.

Source: Samza 1.8 SEP-29 (``BlobStoreManager``).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from statekeep.backends.awaiting import run_bounded
from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import CheckpointCorruptError

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Of what is read whole, such as an index (170,000 files) or a record of the job log."""

MAX_FILE_BYTES: Final = 1 << 40
"""Of a file whose size nothing states."""


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """Goes with every blob, as far as the store keeps metadata.

    Source: Samza 1.8 ``Metadata``.
    """

    task: TaskIdentity | None
    """None for the job's own records."""
    store_name: StoreName | None
    payload_name: str
    """File name within the store, or ``snapshot-index``."""
    sha256: str | None = None
    """Hex digest of the payload, where it is known before the put."""
    is_temporary: bool = False
    """`BlobStoreManager.remove_ttl` follows once it may stay: a store may let it expire until then."""


class BlobStoreManager(ABC):
    """A client of one object store or filesystem, under one root that it was built with.

    Names are relative to the root, ``/``-separated. A blob's id, which `put` and `list` return, ends
    with the blob's name, whatever stands before it: names are read back from ids. A blob is
    immutable: there whole or not at all, never overwritten. Coroutines on an event loop; blocking SDK calls go through the
    executor that the manager was built with. The backend classifies errors, the retry wrapper
    decides: a method raises `RetriableError` only if repeating the call may help.
    """

    @abstractmethod
    async def init(self) -> None:
        """Connect. Idempotent.

        Raises:
            ConfigError: Unreachable, no such location, or access denied.
        """

    @abstractmethod
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        """Store a blob and return its id, which `get` and `delete` take; it ends with ``name``.

        Args:
            name: Where; never used before unless ``if_absent``.
            content: The bytes, or the local file that holds them.
            metadata: See `BlobMetadata`.
            if_absent: Create atomically: of racing puts exactly one succeeds.

        Raises:
            BlobExistsError: With ``if_absent``: the name is taken.
            RetriableError: Unknown whether the blob landed.
        """

    @abstractmethod
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """Return a small blob's bytes.

        An id may come from bytes that others wrote: one that no blob can have is one that is
        not there, in every method that takes an id.

        Args:
            blob_id: Of the blob.
            max_bytes: No more than this is taken into memory.

        Raises:
            BlobNotFoundError: It is not there.
            CheckpointCorruptError: It is larger than ``max_bytes``.
        """

    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of a blob from ``start`` on; fewer where it ends before.

        This one fetches the whole blob: to be overridden where a part can be fetched.

        Args:
            blob_id: Of the blob.
            start: At most the blob's size.
            size: At least 1.

        Raises:
            BlobNotFoundError: It is not there.
        """
        return (await self.get(blob_id, max_bytes=MAX_FILE_BYTES))[start : start + size]

    async def get_start(self, blob_id: str, size: int) -> bytes:
        """Return the first ``size`` bytes of a blob, all of a smaller one; raises as `get_range`."""
        return await self.get_range(blob_id, 0, size)

    @abstractmethod
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        """Write a blob to the new file ``target`` with bounded memory; return its sha-256 in hex.

        Args:
            blob_id: Of the blob.
            target: Does not exist yet.
            on_bytes: Called with the bytes that were written since the last call.
            max_bytes: No more than this is written.

        Raises:
            BlobNotFoundError: It is not there.
            CheckpointCorruptError: It is larger than ``max_bytes``.
        """

    @abstractmethod
    async def delete(self, blob_id: str) -> None:
        """Delete a blob; one that is not there is no error."""

    async def delete_all(self, blob_ids: Sequence[str]) -> None:
        """Delete blobs; those that are not there are no error.

        This one deletes one by one, a few at a time, up to the first that fails: to be overridden
        where a request can delete many. Idempotent.
        """
        await run_bounded(partial(self.delete, blob_id) for blob_id in blob_ids)

    @abstractmethod
    async def list(self, prefix: str) -> Sequence[str]:
        """Return the ids of all blobs whose name begins with ``prefix``, sorted by name."""

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """Return the folders directly below ``prefix``, sorted.

        Those are the parts of blobs' names between it and the next slash. Reads no more than that
        where the store allows it: a folder may hold any number of blobs. A folder that is not there,
        or not any more, may be among them. This one lists the blobs: to be overridden.

        Args:
            prefix: Ends with a slash.
        """
        # What stands before the name in an id, such as a root, may look like the prefix too.
        form = re.compile(rf"(?={re.escape(prefix)}([^/]+)/)")
        return sorted(
            {name for blob_id in await self.list(prefix) for name in form.findall(blob_id)}
        )

    async def remove_unfinished(  # noqa: B027 - most stores keep nothing of such a put
        self, prefix: str, is_closed: Callable[[str], bool]
    ) -> None:
        """Remove what unfinished puts have left behind; `list` does not show it.

        This one does nothing: to be overridden where something may be left. Idempotent.

        Args:
            prefix: Of the names of their blobs, up to a slash; empty for all.
            is_closed: Given such a name, returns whether no process writes that blob any more. The
                name may lack its end where its last part is long.
        """

    @abstractmethod
    async def remove_ttl(self, blob_id: str) -> None:
        """Make a blob permanent that was put as a temporary one; nothing where all are permanent.

        Idempotent.

        Raises:
            BlobNotFoundError: It has expired.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""


def check_blob_size(blob_id: str, size: int, max_bytes: int) -> None:
    """Refuse a blob before it is fetched.

    Raises:
        CheckpointCorruptError: It is larger than it may be.
    """
    if size > max_bytes:
        raise CheckpointCorruptError(
            f"blob is larger than it may be: blob_id={blob_id} bytes={size} max_bytes={max_bytes}"
        )

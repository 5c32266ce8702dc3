"""The contract of a blob store's client, for the blob backend: ``blob.store.manager.factory``.

Source: Samza 1.8 SEP-29 (``BlobStoreManager``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import StoreName


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
            ConfigError: Unreachable, no such place, or access denied.
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
    async def get(self, blob_id: str) -> bytes:
        """Return a small blob's bytes.

        Raises:
            BlobNotFoundError: It is not there.
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
        return (await self.get(blob_id))[start : start + size]

    async def get_start(self, blob_id: str, size: int) -> bytes:
        """Return the first ``size`` bytes of a blob, all of a smaller one; raises as `get_range`."""
        return await self.get_range(blob_id, 0, size)

    @abstractmethod
    async def download(self, blob_id: str, target: Path, on_bytes: Callable[[int], None]) -> str:
        """Write a blob to the new file ``target`` with bounded memory; return its sha-256 in hex.

        Raises:
            BlobNotFoundError: It is not there.
        """

    @abstractmethod
    async def delete(self, blob_id: str) -> None:
        """Delete a blob; one that is not there is no error."""

    @abstractmethod
    async def list(self, prefix: str) -> Sequence[str]:
        """Return the ids of all blobs whose name begins with ``prefix``, sorted by name."""

    async def remove_unfinished(  # noqa: B027 - most stores keep nothing of such a put
        self, prefix: str, is_closed: Callable[[str], bool]
    ) -> None:
        """Remove what puts that never ended have left behind; `list` does not tell of it.

        This one does nothing: to be overridden where something may be left. Idempotent.

        Args:
            prefix: Of the names of their blobs, up to a slash; empty for all.
            is_closed: Told such a name, returns whether nobody is at work on that blob any more. The
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

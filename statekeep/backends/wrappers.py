"""Clients of a blob store around others: what every one of these passes on, and one that deletes nothing."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from statekeep.backends.blob_store import MAX_DOCUMENT_BYTES, BlobMetadata, BlobStoreManager

T = TypeVar("T")


class WrappedBlobStoreManager(BlobStoreManager):
    """Passes every operation on to another manager, through one hook."""

    def __init__(self, inner: BlobStoreManager) -> None:
        self._inner = inner

    @abstractmethod
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make ``call``, which passes ``operation`` on blob or prefix ``subject`` on."""

    @override
    async def init(self) -> None:
        await self._around("init", "", self._inner.init)

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        return await self._around(
            "put", name, lambda: self._inner.put(name, content, metadata, if_absent=if_absent)
        )

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        return await self._around(
            "get", blob_id, lambda: self._inner.get(blob_id, max_bytes=max_bytes)
        )

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        return await self._around(
            "get_range", blob_id, lambda: self._inner.get_range(blob_id, start, size)
        )

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        return await self._around(
            "download",
            blob_id,
            lambda: self._inner.download(blob_id, target, on_bytes, max_bytes=max_bytes),
        )

    @override
    async def delete(self, blob_id: str) -> None:
        await self._around("delete", blob_id, lambda: self._inner.delete(blob_id))

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        return await self._around("list", prefix, lambda: self._inner.list(prefix))

    @override
    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await self._around("list", prefix, lambda: self._inner.list_folders(prefix))

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        await self._around(
            "remove_unfinished", prefix, lambda: self._inner.remove_unfinished(prefix, is_closed)
        )

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        await self._around("remove_ttl", blob_id, lambda: self._inner.remove_ttl(blob_id))

    @override
    async def close(self) -> None:
        await self._inner.close()


class KeptBlobStoreManager(WrappedBlobStoreManager):
    """Deletes nothing; remembers what it was asked to delete.

    Attributes:
        to_delete: Ids of the blobs, in the order of the calls.
    """

    def __init__(self, inner: BlobStoreManager) -> None:
        super().__init__(inner)
        self.to_delete: list[str] = []

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    @override
    async def delete(self, blob_id: str) -> None:
        self.to_delete.append(blob_id)

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        pass  # it is no blob, so no caller needs its name

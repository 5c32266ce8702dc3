"""Blobs in the memory of this process, for tests and the in-memory backend."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import (
    MAX_DOCUMENT_BYTES,
    BlobMetadata,
    BlobStoreManager,
    check_blob_size,
)
from statekeep.backends.storage.names import check_blob_name
from statekeep.errors import BlobExistsError, BlobNotFoundError

_roots: Final[dict[str, dict[str, bytes]]] = {}
_guard: Final = threading.Lock()


def forget_root(root: str) -> None:
    """Drop all blobs of a root; an unused root is no error."""
    with _guard:
        _roots.pop(root, None)


class MemoryBlobStoreManager(BlobStoreManager):
    """A `BlobStoreManager` over a dictionary; managers of one root share its blobs.

    They may live on different event loops of the process, as processes that share a directory
    would. Racing creates are exact. A blob's id is its name. Nothing is closed by `close`.
    """

    def __init__(self, root: str, executor: BlockingExecutor) -> None:
        """Join a root, made at first use.

        Args:
            root: Any name; the same one gives the same blobs.
            executor: For reading and writing the local files of `put` and `download`.
        """
        self._executor = executor
        with _guard:
            self._blobs = _roots.setdefault(root, {})

    @override
    async def init(self) -> None:
        pass

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        check_blob_name(name)
        if isinstance(content, Path):
            content = await self._executor.run(content.read_bytes)
        with _guard:
            if if_absent and name in self._blobs:
                raise BlobExistsError(name)
            self._blobs[name] = content
        return name

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        with _guard:
            content = self._blobs.get(blob_id)
        if content is None:
            raise BlobNotFoundError(blob_id)
        check_blob_size(blob_id, len(content), max_bytes)
        return content

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        content = await self.get(blob_id, max_bytes=max_bytes)
        await run_to_end(self._executor, _create, target, content)
        on_bytes(len(content))
        return hashlib.sha256(content).hexdigest()

    @override
    async def delete(self, blob_id: str) -> None:
        with _guard:
            self._blobs.pop(blob_id, None)

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        with _guard:
            return sorted(name for name in self._blobs if name.startswith(prefix))

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        pass

    @override
    async def close(self) -> None:
        pass


def _create(target: Path, content: bytes) -> None:
    with target.open("xb") as file:
        file.write(content)

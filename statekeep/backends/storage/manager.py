"""Blobs in a store of objects or files: large ones in parts, several at once, with bounded memory."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from typing_extensions import override

from statekeep.backends.awaiting import run_all
from statekeep.backends.blob_store import (
    MAX_DOCUMENT_BYTES,
    BlobMetadata,
    BlobStoreManager,
    check_blob_size,
)
from statekeep.backends.storage.client import (
    ObjectClient,
    ObjectStamps,
    SharedClient,
    StorageClient,
    object_metadata,
)
from statekeep.backends.storage.names import check_blob_id, check_blob_name, is_blob_name
from statekeep.backends.storage.requests import Requests
from statekeep.backends.storage.transfers import (
    OrderedFile,
    Part,
    cut,
    fetch_part,
    file_size,
    fitting_part_bytes,
    put_part,
    put_whole,
    read_part,
)
from statekeep.errors import (
    BackendClosedError,
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    StateBackupError,
    VersionDamagedError,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)


_BLIND: Final = (
    "parts that killed uploads have left cannot be listed, and stay: root=%s error=%s"
    " (on S3 allow s3:ListBucketMultipartUploads, or let the bucket drop unfinished uploads)"
)


class StorageManager(BlobStoreManager):
    """A `BlobStoreManager` over a `StorageClient`; a blob's id is its name.

    Where the store takes parts, files above ``part_bytes`` go up in them and appear at the end,
    whole. Blobs come down in ranges that are written and hashed in order, in one pass. A failed part
    is moved again alone. Retries are in here, by request: nothing around it repeats.

    Memory: a part is in memory from its first byte to its last, a restored one until it is written.
    All managers of a container together hold at most ``blob.store.buffer.bytes``, or one part if a
    part is larger; content that was given as bytes is its giver's.
    """

    def __init__(
        self,
        client: SharedClient,
        root: str,
        requests: Requests,
        *,
        part_bytes: int,
        uncommitted_tags: Mapping[str, str],
    ) -> None:
        """Keep where the blobs are; nothing is reached before `init`.

        Args:
            client: Of the container and backend.
            root: The root, as messages show it.
            requests: Makes every request.
            part_bytes: Size of a part, where the store takes as many.
            uncommitted_tags: Of temporary blobs, until `remove_ttl`; empty: none are temporary.
        """
        self._shared_client = client
        self._root = root
        self._requests = requests
        self._part_bytes = part_bytes
        self._uncommitted_tags = uncommitted_tags
        self._client: StorageClient | None = None
        self._is_blind_to_unfinished = False
        client.join()
        self._is_closed = False

    @override
    async def init(self) -> None:
        self._check_open()
        if self._client is None:
            client = await self._shared_client.get(self._requests)
            await self._run(client, "init", "", 0, client.check)
            self._client = client

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        check_blob_name(name)
        client = self._open_client()
        tags: Mapping[str, str] = self._uncommitted_tags if metadata.is_temporary else {}
        stamps = ObjectStamps(object_metadata(metadata), tags)
        if isinstance(content, bytes):
            size = len(content)
        else:
            size = await self._requests.local(file_size, content)
        try:
            # A try that was given up and lands late must not tag a blob again that may stay.
            is_new = if_absent or bool(tags)
            await self._put(client, name, content, size, stamps, if_absent=is_new)
        except BlobExistsError:
            if if_absent:
                raise
            await self._check_landed(client, name, size)
        except BlobNotFoundError as exc:
            if isinstance(client, ObjectClient):
                raise
            if isinstance(content, bytes) or await self._requests.local(content.exists):
                raise ConfigError(f"no such location: root={self._root} name={name}") from exc
            raise VersionDamagedError(f"the file to store is gone: path={content}") from exc
        return name

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        check_blob_id(blob_id)
        client = self._open_client()
        asked = self._first_bytes(max_bytes)
        first = await self._get(client, blob_id, 0, client.read, blob_id, 0, asked)
        await self._requests.pay(len(first.data))  # how much it is was not known before
        size = first.object_bytes
        if size is None and len(first.data) < asked:
            size = len(first.data)
        if size is None:
            size = await self._get(client, blob_id, 0, client.size, blob_id)
        check_blob_size(blob_id, size, max_bytes)
        rest = cut(size, self._part_bytes, start=len(first.data))
        parts = await run_all(
            [self._get(client, blob_id, p.size, read_part, client, blob_id, p) for p in rest]
        )
        return b"".join([first.data, *parts])

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        check_blob_id(blob_id)
        client = self._open_client()
        found = await self._get(client, blob_id, size, client.read, blob_id, start, size)
        return found.data

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        check_blob_id(blob_id)
        client = self._open_client()
        file = OrderedFile(target)
        try:
            await self._fetch_all(client, blob_id, file, on_bytes, max_bytes)
        finally:
            # After a cancel, requests in flight still deliver their parts.
            if not file.close():
                await self._requests.local(file.wait_closed)
        return file.sha256

    @override
    async def delete(self, blob_id: str) -> None:
        client = self._open_client()
        if is_blob_name(blob_id):
            await self._run(client, "delete", blob_id, 0, client.delete, blob_id)

    @override
    async def delete_all(self, blob_ids: Sequence[str]) -> None:
        client = self._open_client()
        names = [blob_id for blob_id in blob_ids if is_blob_name(blob_id)]
        size = client.max_deletes
        if size == 1 or len(names) == 1:
            await super().delete_all(names)
            return
        for start in range(0, len(names), size):
            await self._delete_many(client, names[start : start + size])

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        client = self._open_client()
        return sorted(await self._run(client, "list", prefix, 0, client.list, prefix))

    @override
    async def list_folders(self, prefix: str) -> Sequence[str]:
        client = self._open_client()
        return sorted(await self._run(client, "list", prefix, 0, client.list_folders, prefix))

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        client = self._open_client()
        run = partial(self._run, client, "remove_unfinished")
        try:
            found = await run(prefix, 0, client.unfinished, prefix)
        except ConfigError as exc:
            if not isinstance(client, ObjectClient):
                raise
            # Blobs can be deleted all the same, and a store may have no such request.
            if not self._is_blind_to_unfinished:
                self._is_blind_to_unfinished = True
                logger.warning(_BLIND, self._root, exc)
            return
        await run_all(
            run(each.name, 0, client.abort, each.name, each.upload)
            for each in found
            if is_closed(each.name)
        )

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        client = self._open_client()
        if self._uncommitted_tags and isinstance(client, ObjectClient):
            check_blob_id(blob_id)
            await self._run(client, "remove_ttl", blob_id, 0, client.remove_tags, blob_id)

    @override
    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._client = None
            await self._shared_client.leave(self._requests)

    async def _delete_many(self, client: StorageClient, names: Sequence[str]) -> None:
        try:
            await self._run(client, "delete_all", names[0], 0, client.delete_many, names)
        except ConfigError:
            # Not every store that speaks the protocol has this request. Anything else that is wrong,
            # such as a missing permission, shows at the first delete.
            await super().delete_all(names)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendClosedError(f"blob store is closed: root={self._root}")

    def _open_client(self) -> StorageClient:
        self._check_open()
        if self._client is None:
            msg = f"init comes first: root={self._root}"
            raise RuntimeError(msg)
        return self._client

    async def _fetch_all(
        self,
        client: StorageClient,
        name: str,
        file: OrderedFile,
        on_bytes: Callable[[int], None],
        max_bytes: int,
    ) -> None:
        """Fetch the parts of a blob side by side; return once all of them are written."""
        buffers = self._requests.buffers
        get = partial(self._get, client, name)
        async with buffers.hold(self._part_bytes):
            part = Part(0, 0, self._first_bytes(max_bytes))
            first = await get(0, fetch_part, client, name, part, file)
            await self._requests.pay(first.size)  # how much it is was not known before
            check_blob_size(name, first.object_bytes, max_bytes)
        on_bytes(first.size)
        rest = cut(first.object_bytes, self._part_bytes, start=first.size, number=1)
        written = [asyncio.Event() for _ in range(len(rest) + 1)]

        async def fetch(part: Part) -> None:
            # Memory is given in order, so the part that is next to be written has its share.
            async with buffers.hold(part.size):
                found = await get(part.size, fetch_part, client, name, part, file)
                for event in written[: found.parts_written]:
                    event.set()
                await written[part.number].wait()
            on_bytes(part.size)

        await run_all([fetch(part) for part in rest])

    def _first_bytes(self, max_bytes: int) -> int:
        """Return how much of a blob is fetched before its size is known."""
        return max(1, min(self._part_bytes, max_bytes))

    async def _get(
        self, client: StorageClient, name: str, size: int, call: Callable[..., T], *args: object
    ) -> T:
        """Make a request that reads a blob, with errors that are ours."""
        return await self._run(client, "get", name, size, call, *args, is_read=True)

    async def _run(
        self,
        client: StorageClient,
        operation: str,
        name: str,
        size: int,
        call: Callable[..., T],
        *args: object,
        is_read: bool = False,
        **kwargs: object,
    ) -> T:
        """Make a request as `Requests.run` does, with errors that are ours."""
        explained = partial(client.explained, name, is_read=is_read)
        return await self._requests.run(
            operation, name, size, _call_explained, explained, partial(call, *args, **kwargs)
        )

    async def _put(
        self,
        client: StorageClient,
        name: str,
        content: bytes | Path,
        size: int,
        stamps: ObjectStamps,
        *,
        if_absent: bool,
    ) -> None:
        if isinstance(content, bytes):
            await self._run(
                client, "put", name, size, client.put, name, content, stamps, if_absent=if_absent
            )
            return
        if not isinstance(client, ObjectClient):
            put_file = partial(client.put_file, name, content, stamps, if_absent=if_absent)
            await self._run(client, "put", name, size, put_file)
            return
        part_bytes = fitting_part_bytes(size, self._part_bytes, client.part_limits)
        parts = cut(size, part_bytes) or [Part(0, 0, 0)]
        if len(parts) > 1:
            await self._put_parts(client, name, content, parts, stamps, if_absent=if_absent)
            return
        async with self._requests.buffers.hold(size):
            put = partial(put_whole, client, name, content, parts[0], stamps, if_absent=if_absent)
            await self._run(client, "put", name, size, put)

    async def _put_parts(
        self,
        client: ObjectClient,
        name: str,
        path: Path,
        parts: Sequence[Part],
        stamps: ObjectStamps,
        *,
        if_absent: bool,
    ) -> None:
        # What lands after the abort may stay in the store: a cancel waits for requests under way.
        run, buffers = self._requests.run_to_end, self._requests.buffers
        begun: list[str] = []

        def begin() -> None:
            # Recorded on the thread: the caller may be cancelled before it hears of it.
            begun.append(client.begin_parts(name, stamps))

        async def send(part: Part) -> str:
            async with buffers.hold(part.size):
                put = partial(put_part, client, name, begun[0], path, part)
                return await run("put", name, part.size, put)

        is_complete = False
        try:
            await run("put", name, 0, begin)
            tags = await run_all([send(part) for part in parts])
            complete = partial(client.complete_parts, name, begun[0], tags, stamps)
            try:
                await run("put", name, 0, complete, if_absent=if_absent)
            except BlobNotFoundError as exc:
                if if_absent:
                    raise BlobExistsError(name) from exc
                await self._check_landed(client, name, sum(part.size for part in parts))
            is_complete = True
        finally:
            if not is_complete and begun:
                await self._abort(client, name, begun[0])

    async def _check_landed(self, client: StorageClient, name: str, size: int) -> None:
        """Find out whether a put was refused because it had landed before, unheard."""
        found = await self._get(client, name, 1, client.read, name, 0, 1)
        if found.object_bytes != size:
            raise RetriableError(
                f"another blob has the name of one that was just written: name={name} "
                f"expected_bytes={size} actual_bytes={found.object_bytes}"
            )

    async def _abort(self, client: StorageClient, name: str, upload: str) -> None:
        """Drop the parts of a failed upload; what cannot be dropped is left to clean-up."""
        try:
            await self._requests.local(client.abort, name, upload)
        except StateBackupError as exc:
            logger.warning("parts of a failed upload stay: blob=%s error=%s", name, exc)


def _call_explained(
    explained: Callable[[], AbstractContextManager[None]], call: Callable[[], T]
) -> T:
    with explained():
        return call()

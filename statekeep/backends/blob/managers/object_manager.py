"""Blobs in an object store: large ones in parts, several at once, with bounded memory."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from typing_extensions import override

from statekeep.backends.blob.managers.object_client import (
    ObjectClient,
    ObjectRange,
    ObjectStamps,
    object_metadata,
)
from statekeep.backends.blob.managers.object_requests import Requests
from statekeep.backends.blob.managers.ordered_file import OrderedFile
from statekeep.backends.blob.managers.part_transfers import (
    fetch_part,
    file_size,
    put_file,
    put_part,
    read_part,
)
from statekeep.backends.blob.managers.parts import Part, cut, fitting_part_bytes
from statekeep.backends.blob.managers.shared_client import SharedClient
from statekeep.backends.blob.names import check_blob_id, check_blob_name, is_blob_name
from statekeep.backends.blob_store import (
    MAX_DOCUMENT_BYTES,
    BlobMetadata,
    BlobStoreManager,
    check_blob_size,
)
from statekeep.backends.fan_out import run_all
from statekeep.errors import (
    BackendClosedError,
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    StateBackupError,
)

logger = logging.getLogger(__name__)


_BLIND: Final = (
    "parts that killed uploads have left cannot be listed, and stay: root=%s error=%s"
    " (on S3 allow s3:ListBucketMultipartUploads, or let the bucket drop unfinished uploads)"
)


class ObjectBlobStoreManager(BlobStoreManager):
    """A `BlobStoreManager` on an object store; a blob's id is its name.

    Files above ``part_bytes`` go up in parts and appear at the end, whole; blobs come down in ranges
    that are written and hashed in order, in one pass. A failed part is moved again alone. Retries
    are in here, by request: no retry wrapper belongs around it.

    Memory: a part is in memory from its first byte to its last, a restored one until it is written.
    All managers of a container together hold at most ``blob.store.buffer.bytes``, or one part if a
    part is larger; content that was given as bytes is its giver's.
    """

    def __init__(
        self,
        client: SharedClient,
        place: str,
        requests: Requests,
        *,
        part_bytes: int,
        uncommitted_tags: Mapping[str, str],
    ) -> None:
        """Take note of where the blobs are; nothing is reached before `init`.

        Args:
            client: Of the container and backend.
            place: The root, as messages show it.
            requests: Makes every request.
            part_bytes: Size of a part, where the store takes as many.
            uncommitted_tags: Of temporary blobs, until `remove_ttl`; empty: none are temporary.
        """
        self._shared_client = client
        self._place = place
        self._requests = requests
        self._part_bytes = part_bytes
        self._uncommitted_tags = uncommitted_tags
        self._client: ObjectClient | None = None
        self._is_blind_to_unfinished = False
        client.join()
        self._is_closed = False

    @override
    async def init(self) -> None:
        self._check_open()
        if self._client is None:
            client = await self._shared_client.get(self._requests)
            await self._requests.run("init", "", 0, client.check)
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
        return name

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        check_blob_id(blob_id)
        client = self._open_client()
        first = await self._first(client, blob_id, max_bytes)
        check_blob_size(blob_id, first.object_bytes, max_bytes)
        rest = cut(first.object_bytes, self._part_bytes, start=len(first.data))
        parts = await run_all([self._read(client, blob_id, part) for part in rest])
        return b"".join([first.data, *parts])

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        check_blob_id(blob_id)
        client = self._open_client()
        found = await self._requests.run("get", blob_id, size, client.read, blob_id, start, size)
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
            # After a cancel, requests under way bring their parts to nobody.
            if not file.close():
                await self._requests.local(file.wait_closed)
        return file.sha256

    @override
    async def delete(self, blob_id: str) -> None:
        client = self._open_client()
        if is_blob_name(blob_id):
            await self._requests.run("delete", blob_id, 0, client.delete, blob_id)

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
        return sorted(await self._requests.run("list", prefix, 0, self._open_client().list, prefix))

    @override
    async def list_folders(self, prefix: str) -> Sequence[str]:
        list_folders = self._open_client().list_folders
        return sorted(await self._requests.run("list", prefix, 0, list_folders, prefix))

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        client, run = self._open_client(), self._requests.run
        try:
            found = await run("remove_unfinished", prefix, 0, client.unfinished, prefix)
        except ConfigError as exc:
            # Blobs can be deleted all the same, and a store may have no such request.
            if not self._is_blind_to_unfinished:
                self._is_blind_to_unfinished = True
                logger.warning(_BLIND, self._place, exc)
            return
        await run_all(
            run("remove_unfinished", each.name, 0, client.abort_parts, each.name, each.upload)
            for each in found
            if is_closed(each.name)
        )

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        client = self._open_client()
        if self._uncommitted_tags:
            check_blob_id(blob_id)
            await self._requests.run("remove_ttl", blob_id, 0, client.remove_tags, blob_id)

    @override
    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._client = None
            await self._shared_client.leave(self._requests)

    async def _delete_many(self, client: ObjectClient, names: Sequence[str]) -> None:
        try:
            await self._requests.run("delete_all", names[0], 0, client.delete_many, names)
        except ConfigError:
            # Not every store that speaks the protocol has this request. What else is wrong, such
            # as a right that lacks, is told by the first delete.
            await super().delete_all(names)

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendClosedError(f"blob store is closed: root={self._place}")

    def _open_client(self) -> ObjectClient:
        self._check_open()
        if self._client is None:
            msg = f"init comes first: root={self._place}"
            raise RuntimeError(msg)
        return self._client

    async def _fetch_all(
        self,
        client: ObjectClient,
        name: str,
        file: OrderedFile,
        on_bytes: Callable[[int], None],
        max_bytes: int,
    ) -> None:
        """Fetch the parts of a blob side by side; return once all of them are written."""
        buffers, run = self._requests.shared.buffers, self._requests.run
        async with buffers.hold(self._part_bytes):
            part = Part(0, 0, self._first_bytes(max_bytes))
            fetch_first = partial(fetch_part, client, name, part, file)
            first = await run("get", name, 0, fetch_first)
            await self._requests.pay(first.size)  # how much it is was not known before
            check_blob_size(name, first.object_bytes, max_bytes)
        on_bytes(first.size)
        rest = cut(first.object_bytes, self._part_bytes, start=first.size, number=1)
        written = [asyncio.Event() for _ in range(len(rest) + 1)]

        async def fetch(part: Part) -> None:
            # Memory is given in order, so the part that is next to be written has its share.
            async with buffers.hold(part.size):
                fetch_it = partial(fetch_part, client, name, part, file)
                found = await run("get", name, part.size, fetch_it)
                for event in written[: found.parts_written]:
                    event.set()
                await written[part.number].wait()
            on_bytes(part.size)

        await run_all([fetch(part) for part in rest])

    def _first_bytes(self, max_bytes: int) -> int:
        """Return how much of a blob is fetched before its size is known."""
        return max(1, min(self._part_bytes, max_bytes))

    async def _first(self, client: ObjectClient, name: str, max_bytes: int) -> ObjectRange:
        """Fetch the beginning of a blob, which tells its size too: small ones need no more."""
        size = self._first_bytes(max_bytes)
        first = await self._requests.run("get", name, 0, client.read, name, 0, size)
        # How much it is was not known before.
        await self._requests.pay(len(first.data))
        return first

    async def _read(self, client: ObjectClient, name: str, part: Part) -> bytes:
        return await self._requests.run("get", name, part.size, read_part, client, name, part)

    async def _put(
        self,
        client: ObjectClient,
        name: str,
        content: bytes | Path,
        size: int,
        stamps: ObjectStamps,
        *,
        if_absent: bool,
    ) -> None:
        if isinstance(content, bytes):
            await self._requests.run(
                "put", name, size, client.put, name, content, stamps, if_absent=if_absent
            )
            return
        part_bytes = fitting_part_bytes(size, self._part_bytes, client.part_limits)
        parts = cut(size, part_bytes) or [Part(0, 0, 0)]
        if len(parts) > 1:
            await self._put_parts(client, name, content, parts, stamps, if_absent=if_absent)
            return
        async with self._requests.shared.buffers.hold(size):
            put = partial(put_file, client, name, content, parts[0], stamps, if_absent=if_absent)
            await self._requests.run("put", name, size, put)

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
        run, buffers = self._requests.run_to_end, self._requests.shared.buffers
        begun: list[str] = []

        def begin() -> None:
            # Noted on the thread: the caller may be cancelled before it hears of it.
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

    async def _check_landed(self, client: ObjectClient, name: str, size: int) -> None:
        """Find out whether a put was refused because it had landed before, unheard."""
        found = await self._requests.run("get", name, 1, client.read, name, 0, 1)
        if found.object_bytes != size:
            raise RetriableError(
                f"another blob is where one was put: name={name} "
                f"expected_bytes={size} actual_bytes={found.object_bytes}"
            )

    async def _abort(self, client: ObjectClient, name: str, upload: str) -> None:
        """Drop the parts of a failed upload; what cannot be dropped is left to clean-up."""
        try:
            await self._requests.local(client.abort_parts, name, upload)
        except StateBackupError as exc:
            logger.warning("parts of a failed upload stay: blob=%s error=%s", name, exc)

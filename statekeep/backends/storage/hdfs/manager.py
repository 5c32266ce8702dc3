"""Blobs on HDFS: written under a temporary name, then renamed."""

import errno
import hashlib
import io
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import (
    MAX_DOCUMENT_BYTES,
    BlobMetadata,
    BlobStoreManager,
    check_blob_size,
)
from statekeep.backends.storage.file_errors import mapped_errors
from statekeep.backends.storage.hdfs.client import HdfsClient, Tree
from statekeep.backends.storage.hdfs.errors import explained_java_errors, explained_sweep
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.names import (
    check_blob_id,
    check_blob_name,
    is_blob_name,
    temporary_path,
    unfinished_name,
)
from statekeep.checkpoint.log_session import random_nonce
from statekeep.config.redact import redact
from statekeep.errors import BackendClosedError, ConfigError, RetriableError, VersionDamagedError

P = ParamSpec("P")
T = TypeVar("T")

_CHUNK_BYTES: Final = 4 << 20
"""Read or written in one step: the bound on memory, and how far a cancel has to wait."""


def open_manager(location: Location, executor: BlockingExecutor) -> BlobStoreManager:
    """Build a manager, which needs `init`; see the table of stores.

    Raises:
        ConfigError: A setting of Hadoop makes no sense.
    """
    try:
        client = HdfsClient(location.uri, location.options)
    except ValueError as exc:
        key = f"{location.key.removesuffix('uri')}storage.options"
        raise ConfigError(f"a Hadoop setting has an invalid value: {key} {exc}", key=key) from exc
    return HdfsBlobStoreManager(location.uri, client, executor)


class HdfsBlobStoreManager(BlobStoreManager):
    """A `BlobStoreManager` below a directory of HDFS; a blob's id is its name.

    The rename fails if the name is taken, so a blob is there whole or not at all, and of racing
    puts one succeeds. A put that was given up may still write: to a temporary name, which is no
    blob and unique to that put; `remove_unfinished` finds it. Directories below the root go
    with the last file in them. Metadata are not kept.
    """

    def __init__(
        self,
        root_uri: str,
        client: HdfsClient,
        executor: BlockingExecutor,
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Keep where the blobs are; nothing is reached before `init`.

        Args:
            root_uri: ``hdfs://namenode:8020/path``, of the client's filesystem.
            client: Shared with others; not closed.
            executor: For local files.
            new_uid: Draws lower-case hex that is never drawn again, for temporary names.
        """
        self._root = urlsplit(root_uri).path.rstrip("/")
        self._shown_root = redact(root_uri, is_secret=False)
        self._client = client
        self._executor = executor
        self._new_uid = new_uid
        self._is_ready = False
        self._is_closed = False

    @override
    async def init(self) -> None:
        if self._is_closed:
            raise BackendClosedError(f"blob store is closed: root={self._shown_root}")
        try:
            with self._explained_errors(""):
                await self._client.connect(self._executor)
                await self._client.check(self._root or "/")
        except ValueError as exc:
            msg = f"no filesystem for this root: root={self._shown_root}"
            raise ConfigError(msg, hint=str(exc)) from exc
        self._is_ready = True

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        target = self._path(name)
        temporary = temporary_path(target, self._new_uid())
        with self._explained_errors(name):
            if if_absent and await self._client.exists(target):
                raise FileExistsError(name)
            try:
                size = await self._write(temporary, content)
                await self._rename(temporary, target, None if if_absent else size)
            except BaseException:
                with suppress(OSError, RuntimeError):
                    await self._delete(temporary)
                raise
        return name

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        path = self._path_of_id(blob_id)
        with self._explained_errors(blob_id, is_read=True):
            reader = await self._client.open(path)
            check_blob_size(blob_id, reader.size, max_bytes)
            if not reader.size:
                return b""
            return _whole(await reader.read(0, reader.size), reader.size, blob_id)

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        path = self._path_of_id(blob_id)
        with self._explained_errors(blob_id, is_read=True):
            reader = await self._client.open(path)
            end = min(start + size, reader.size)
            if end <= start:
                return b""
            return _whole(await reader.read(start, end), end - start, blob_id)

    @override
    async def download(
        self, blob_id: str, target: Path, on_bytes: Callable[[int], None], *, max_bytes: int
    ) -> str:
        path, copy = self._path_of_id(blob_id), LocalCopy(target, self._executor)
        with self._explained_errors(blob_id, is_read=True):
            reader = await self._client.open(path)
            check_blob_size(blob_id, reader.size, max_bytes)
            await copy.create()
            for start in range(0, reader.size, _CHUNK_BYTES):
                end = min(start + _CHUNK_BYTES, reader.size)
                chunk = _whole(await reader.read(start, end), end - start, blob_id)
                await copy.append(chunk)
                on_bytes(len(chunk))
        return await copy.finish()

    @override
    async def delete(self, blob_id: str) -> None:
        self._check_open()
        if is_blob_name(blob_id):
            with self._explained_errors(blob_id):
                await self._delete(self._path(blob_id))

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        names = map(self._name, (await self._tree(prefix)).files)
        return sorted(
            name for name in names if name.startswith(prefix) and unfinished_name(name) is None
        )

    @override
    async def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        tree = await self._tree(prefix)
        with self._explained_errors(prefix):
            for path in tree.files:
                blob = unfinished_name(self._name(path))
                if blob is not None and is_closed(blob):
                    await self._delete(path)
            for directory in tree.empty_directories:  # of deletes that a crash has cut off
                await self._delete_empty(directory)

    @override
    async def remove_ttl(self, blob_id: str) -> None:
        self._check_open()

    @override
    async def close(self) -> None:
        self._is_closed = True

    async def _tree(self, prefix: str) -> Tree:
        """Return what is in the directory of a prefix, and below it; nothing where that is a file."""
        self._check_open()
        directory = f"{self._root}/{prefix.rpartition('/')[0]}".rstrip("/") or "/"
        with mapped_errors(self._shown_root, prefix):
            try:
                with explained_java_errors(self._shown_root):
                    return await self._client.tree(directory)
            except OSError as exc:
                if exc.errno != errno.ENOTDIR:
                    raise
                return Tree([], [])

    async def _delete(self, path: str) -> None:
        """Delete a file, and the directories that are empty by that."""
        await self._client.delete(path)
        await self._delete_empty(path.rpartition("/")[0])

    async def _delete_empty(self, directory: str) -> None:
        """Delete a directory in which nothing is, and then those above it, up to the root.

        One that is filled meanwhile stays; so does one that cannot be deleted, for the next sweep.
        """
        with suppress(OSError, RuntimeError):
            while directory.rstrip("/") != self._root:
                if not await self._client.delete_if_empty(directory):
                    return
                directory = directory.rpartition("/")[0]

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._root}/")

    async def _write(self, path: str, content: bytes | Path) -> int:
        """Write a new file, and let the NameNode confirm its size; return that."""
        source = await self._executor.run(_open, content)
        try:
            size = await self._copy(source, path)
        finally:
            await self._executor.run(source.close)
        with explained_sweep(path):
            written = await self._client.size(path)
        if written != size:
            msg = f"short write: path={path} expected_bytes={size} actual_bytes={written}"
            raise RetriableError(msg)
        return size

    async def _copy(self, source: BinaryIO, path: str) -> int:
        size = 0
        writer = await self._client.create(path)
        try:
            with explained_sweep(path):
                while chunk := await self._executor.run(source.read, _CHUNK_BYTES):
                    await writer.write(chunk)
                    size += len(chunk)
                await writer.close()
        except BaseException:
            await writer.give_up()
            raise
        return size

    async def _rename(self, temporary: str, target: str, expected_bytes: int | None) -> None:
        """Give a blob its name; with ``expected_bytes``, one that has it already may be the same.

        Without ``if_absent`` a name is used by one writer: the blob was put before, and the answer
        was lost.
        """
        try:
            with explained_sweep(temporary):
                await self._client.rename(temporary, target)
        except FileExistsError:
            if expected_bytes is None or await self._client.size(target) != expected_bytes:
                raise
            await self._client.delete(temporary)

    def _path(self, name: str) -> str:
        self._check_open()
        check_blob_name(name)
        return f"{self._root}/{name}"

    def _path_of_id(self, blob_id: str) -> str:
        self._check_open()
        check_blob_id(blob_id)
        return f"{self._root}/{blob_id}"

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendClosedError(f"blob store is closed: root={self._shown_root}")
        if not self._is_ready:
            msg = f"init comes first: root={self._shown_root}"
            raise RuntimeError(msg)

    @contextmanager
    def _explained_errors(self, name: str, *, is_read: bool = False) -> Generator[None]:
        mapped = mapped_errors(self._shown_root, name, is_read=is_read)
        with mapped, explained_java_errors(self._shown_root):
            yield


class LocalCopy:
    """A new local file that grows chunk by chunk, with the digest of what is in it.

    One call of the executor per step: each ends by itself, and between two of them a cancel takes
    effect, so that nothing is written after it. Every method raises `ConfigError` where the local disk refuses.
    """

    def __init__(self, path: Path, executor: BlockingExecutor) -> None:
        self._path = path
        self._executor = executor
        self._digest = hashlib.sha256()

    async def create(self) -> None:
        """Create the file, which must not exist."""
        await self._run(self._path.touch, exist_ok=False)

    async def append(self, chunk: bytes) -> None:
        """Write the next bytes."""
        await self._run(self._append, chunk)

    async def finish(self) -> str:
        """Make the file durable; return the sha-256 of its content, in hex."""
        await self._run(self._sync)
        return self._digest.hexdigest()

    def _append(self, chunk: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(chunk)
        self._digest.update(chunk)

    def _sync(self) -> None:
        with self._path.open("rb+") as file:
            os.fsync(file.fileno())

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await run_to_end(self._executor, call, *args, **kwargs)
        except OSError as exc:
            msg = (
                f"a blob cannot be written to this machine: path={self._path} reason={exc.strerror}"
            )
            raise ConfigError(msg) from exc


def _open(content: bytes | Path) -> BinaryIO:
    if isinstance(content, bytes):
        return io.BytesIO(content)
    try:
        return content.open("rb")
    except FileNotFoundError as exc:
        raise VersionDamagedError(f"the file to store is gone: path={content}") from exc


def _whole(data: bytes, size: int, name: str) -> bytes:
    if len(data) != size:
        msg = f"short read: name={name} expected_bytes={size} actual_bytes={len(data)}"
        raise RetriableError(msg)
    return data

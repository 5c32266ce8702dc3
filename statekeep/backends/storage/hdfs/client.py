"""HDFS by hdfs-native, with an end to every step.

Some calls of hdfs-native (seen in 0.14.7) never return once a DataNode has died at the wrong moment,
and others wait on a DataNode that is alive and silent, without a deadline of their own. Such a call is
left behind, with the thread that it runs on.
"""

import asyncio
import ctypes
import errno
import threading
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hdfs_native import FileStatus, WriteOptions

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.storage.hdfs.blocking import (
    BlockingClient,
    BlockingReader,
    BlockingWriter,
)

T = TypeVar("T")

SOCKET_TIMEOUT_OPTION: Final = "dfs.client.socket-timeout"
"""Hadoop's name for how long a client waits for a server, in milliseconds."""
_SOCKET_TIMEOUT_MS: Final = 60_000
"""Hadoop's default."""
_STEPS_OF_TIMEOUT: Final = 2
"""hdfs-native goes on without a silent DataNode after one time-out; that is to have its turn."""
_TRIES_OPTION: Final = "dfs.client.failover.max.attempts"
_SHORT_PAUSES: Final = {
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "1000",
}
"""Before the NameNodes of a service are asked again. With Hadoop's own a call may take minutes, and
the caller, who tries again by itself, has its own deadline."""
_PANIC: Final = "PanicException"
"""What Rust's panics are in Python; the class cannot be imported, and is no `Exception`."""
_GIVE_UP_S: Final = 5.0
"""How long a write that is given up may take to end in an orderly way."""

_clients: Final[dict[tuple[str, tuple[tuple[str, str], ...]], BlockingClient]] = {}
"""Of this process, by URL and settings: see `_connected_client`."""
_connecting: Final = threading.Lock()


def _connected_client(url: str, options: Mapping[str, str]) -> BlockingClient:
    """Return the process's one client of a filesystem, which is never released.

    Releasing one waits for its threads with the interpreter's lock held, and one of them may hang. So
    clients are shared and kept, also beyond the end of the interpreter.
    """
    key = (url, tuple(sorted(options.items())))
    with _connecting:
        if key not in _clients:
            client = BlockingClient(url, dict(options))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
            _clients[key] = client
        return _clients[key]


async def _without_panic(call: Awaitable[T]) -> T:
    """Await a call of hdfs-native.

    Raises:
        OSError: As it says, or it has panicked.
    """
    try:
        return await call
    except BaseException as exc:
        if type(exc).__name__ != _PANIC:
            raise
        raise OSError(errno.EIO, f"hdfs-native has panicked: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Tree:
    """What is below a directory, as paths in any order."""

    files: list[str]
    empty_directories: list[str]
    """The directory itself among them, if it is missing or nothing is in it."""


class HdfsClient:
    """A filesystem, reached by the process's one connection to it.

    A *step* is one answer of the NameNode, or one chunk written or read. One that takes longer than
    twice ``dfs.client.socket-timeout`` raises TimeoutError, which is an `OSError`.
    """

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        """Keep the location; nothing is reached before `connect`.

        Args:
            uri: Its scheme and authority name the filesystem.
            options: Settings of Hadoop, over those of ``HADOOP_CONF_DIR``.

        Raises:
            ValueError: The time-out is not a number of milliseconds.
        """
        parts = urlsplit(uri)
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._options = _SHORT_PAUSES | dict(options)
        if parts.port is not None:  # one NameNode, not a service of several
            self._options.setdefault(_TRIES_OPTION, "0")
        socket_timeout_ms = int(options.get(SOCKET_TIMEOUT_OPTION, _SOCKET_TIMEOUT_MS))
        self._step_s = _STEPS_OF_TIMEOUT * socket_timeout_ms / 1000
        self._client: BlockingClient | None = None

    async def connect(self, executor: BlockingExecutor) -> None:
        """Read Hadoop's configuration. Idempotent.

        Raises:
            OSError: It cannot be read, or (ValueError, RuntimeError) makes no sense.
        """
        if self._client is None:
            self._client = await executor.run(_connected_client, self._url, self._options)

    async def create(self, path: str) -> "HdfsWriter":
        """Create a file; FileExistsError if it is there."""
        options = WriteOptions(overwrite=False)
        return HdfsWriter(self, await self.to_end(self._connected.create(path, options)))

    async def open(self, path: str) -> "HdfsReader":
        """Open a file; FileNotFoundError if it is not there."""
        return HdfsReader(self, await self.step(self._connected.read(path)))

    async def size(self, path: str) -> int:
        """Return the bytes of a file; FileNotFoundError if it is not there."""
        return (await self.step(self._connected.get_file_info(path))).length

    async def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        try:
            await self.size(path)
        except FileNotFoundError:
            return False
        return True

    async def rename(self, source: str, target: str) -> None:
        """Give a file its name, atomically; FileExistsError if the name is taken."""
        await self.to_end(self._connected.rename(source, target, overwrite=False))

    async def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error."""
        with suppress(FileNotFoundError):
            await self.to_end(self._connected.delete(path, recursive=False))

    async def delete_if_empty(self, directory: str) -> bool:
        """Delete a directory in which nothing is; return whether it is gone.

        Nothing is lost in a race: the NameNode refuses what has been filled by then, and creates a
        file together with the directories above it.
        """
        # Looked at first, since a NameNode logs each refusal as an exception with its trace.
        if await self._has_entry(directory):
            return False
        await self.delete(directory)
        return True

    async def check(self, directory: str) -> None:
        """List a directory, which need not exist yet, as far as one step goes."""
        await self._has_entry(directory)

    async def tree(self, directory: str) -> "Tree":
        """Return what is below a directory; nothing if it is missing.

        Listed directory by directory: one that goes meanwhile takes nothing else with it.
        """
        files: list[str] = []
        empty: list[str] = []
        waiting = [directory]
        while waiting:
            parent = waiting.pop()
            entries = await self._entries(parent)
            waiting += [entry.path for entry in entries if entry.isdir]
            files += [entry.path for entry in entries if not entry.isdir]
            if not entries:
                empty.append(parent)
        return Tree(files, empty)

    async def step(self, call: Awaitable[T]) -> T:
        """Await a step that may be dropped at any time."""
        async with asyncio.timeout(self._step_s):
            return await _without_panic(call)

    async def to_end(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a step that a cancel does not cut off, unless it takes long.

        A write that is dropped half way leaves its connection to a DataNode open.
        """
        task = asyncio.create_task(_without_panic(call))
        try:
            async with asyncio.timeout(self._step_s):
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=_GIVE_UP_S)
            raise
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            call.close()  # if the task was cancelled before it began
            if not task.cancelled():
                task.exception()  # marks it as seen, where the caller gets another one

    async def _has_entry(self, directory: str) -> bool:
        try:
            await self.step(anext(self._connected.list_status(directory)))
        except (StopAsyncIteration, FileNotFoundError):
            return False
        return True

    async def _entries(self, directory: str) -> list[FileStatus]:
        statuses = self._connected.list_status(directory)
        entries: list[FileStatus] = []
        while True:
            try:
                entries.append(await self.step(anext(statuses)))
            except (StopAsyncIteration, FileNotFoundError):
                return entries

    @property
    def _connected(self) -> BlockingClient:
        if self._client is None:
            msg = f"connect comes first: url={self._url}"
            raise RuntimeError(msg)
        return self._client


class HdfsWriter:
    """A new file that is being written."""

    def __init__(self, client: HdfsClient, writer: BlockingWriter) -> None:
        self._client = client
        self._writer = writer

    async def write(self, chunk: bytes) -> None:
        """Append a chunk, of some MiB."""
        await self._client.to_end(self._writer.write(chunk))

    async def close(self) -> None:
        """Make the file whole."""
        await self._client.to_end(self._writer.close())

    async def give_up(self) -> None:
        """Release the DataNodes after an error or a cancel; raises no error of theirs."""
        with suppress(OSError, RuntimeError):
            async with asyncio.timeout(_GIVE_UP_S):
                await _without_panic(self._writer.close())


class HdfsReader:
    """A file that is open for reading."""

    def __init__(self, client: HdfsClient, reader: BlockingReader) -> None:
        self._client = client
        self._reader = reader
        self.size = len(reader)

    async def read(self, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` up to ``end``, which lies within the file."""
        return await self._client.step(self._reader.read_range(start, end - start))

"""hdfs-native's blocking client, each call on a thread that can be left behind.

hdfs-native has an asynchronous client as well, but a lost connection can stop a process that uses it
(seen in 0.14.7). Its calls are run with the interpreter's lock held, and take the lock of what is
under way on a connection. A thread that finds the connection lost wakes all of that with this lock
held, and each of them takes the interpreter's lock to be woken: neither ever goes on. A call of the
blocking client lets the interpreter's lock go before anything else.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from hdfs_native import Client, FileReader, FileStatus, WriteOptions
from typing_extensions import override

from statekeep.thread_pool import ThreadPool

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

T = TypeVar("T")

_MOST_CALLS: Final = 512
"""Of one client. Those that hang keep their thread until the connection ends: an hour of a silent NameNode
with 16 calls at a time takes so many."""
_END_WAIT_S: Final = 3.0
"""A call that was left behind mostly returns by then."""
_LISTED_AT_ONCE: Final = 1_000
"""As many as a NameNode sends in one answer."""


class _Calls:
    """Runs the calls of one client, so that one whose calls hang takes no thread from another."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = ThreadPool(_MOST_CALLS, "statekeep-hdfs", end_wait_s=_END_WAIT_S)
        self._submitting = threading.Lock()
        """Event loops of several threads share the client."""

    async def run(self, call: Callable[[], T]) -> T:
        """Await a call on a thread of its own; one that is cancelled goes on there, if it has begun.

        Raises:
            TimeoutError: Too many have not come back.
        """
        with self._submitting:
            if self._pool.load >= _MOST_CALLS:
                msg = f"calls of HDFS hang, no other one is begun: url={self._url} calls={_MOST_CALLS}"
                raise TimeoutError(msg)
            future = self._pool.submit(call)
        return await asyncio.wrap_future(future)


class BlockingClient:
    """A filesystem; each method waits without holding up the event loop, for as long as it takes."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        """Read Hadoop's configuration; blocks.

        Raises:
            OSError: It cannot be read, or (ValueError, RuntimeError) makes no sense.
        """
        self._client = Client(url, dict(options))
        self._calls = _Calls(url)

    async def get_file_info(self, path: str) -> FileStatus:
        """Return what a file or directory is."""
        return await self._calls.run(partial(self._client.get_file_info, path))

    def list_status(self, path: str) -> AsyncIterator[FileStatus]:
        """Return an iterator over what is in a directory; asks only when it is used."""
        return _Listing(self._calls, self._client.list_status(path))

    async def read(self, path: str) -> "BlockingReader":
        """Open a file."""
        reader = await self._calls.run(partial(self._client.read, path))
        return BlockingReader(self._calls, reader)

    async def create(self, path: str, options: WriteOptions) -> "BlockingWriter":
        """Create a file."""
        # Not by `Client.create`: what that returns ends the file on whatever thread drops it.
        writer = await self._calls.run(partial(self._client.inner.create, path, options))
        return BlockingWriter(self._calls, writer)

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Give a file another name."""
        await self._calls.run(partial(self._client.rename, source, target, overwrite))

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """Delete a file or directory; False if there was none."""
        return await self._calls.run(partial(self._client.delete, path, recursive))


class _Listing(AsyncIterator[FileStatus]):
    """No generator: one that is left half way, as for the first entry, has to be closed by the loop."""

    def __init__(self, calls: _Calls, statuses: Iterator[FileStatus]) -> None:
        self._calls = calls
        self._statuses = statuses
        self._found: deque[FileStatus] = deque()

    @override
    async def __anext__(self) -> FileStatus:
        if not self._found:
            self._found.extend(await self._calls.run(self._next_ones))
        if not self._found:
            raise StopAsyncIteration
        return self._found.popleft()

    def _next_ones(self) -> list[FileStatus]:
        return list(islice(self._statuses, _LISTED_AT_ONCE))


class BlockingReader:
    """A file that is open for reading."""

    def __init__(self, calls: _Calls, reader: FileReader) -> None:
        self._calls = calls
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader)

    async def read_range(self, offset: int, length: int) -> bytes:
        """Return bytes from the middle of the file."""
        return await self._calls.run(partial(self._reader.read_range, offset, length))


class BlockingWriter:
    """A file that is being written. One call at a time: another one raises RuntimeError."""

    def __init__(self, calls: _Calls, writer: "RawFileWriter") -> None:
        self._calls = calls
        self._writer = writer

    async def write(self, chunk: bytes) -> int:
        """Append all of a chunk."""
        return await self._calls.run(partial(self._writer.write, chunk))

    async def close(self) -> None:
        """Make the file whole."""
        await self._calls.run(self._writer.close)

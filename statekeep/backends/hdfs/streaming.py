"""Files of a backup while they are fetched: read piece by piece, or put beside the store that they fill."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor, RestoreContext
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobStoreManager
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change, DeltaReader
from statekeep.stores.delta_feed import DeltaFeed

_PIECE_BYTES: Final = 4 << 20
"""Fetched and worked on at a time: the bound on memory, and how far a cancel has to wait."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file."""

    data: bytes
    is_last: bool
    """Of its file."""


class FilesAhead:
    """The contents of some files, one after the other.

    While one piece is worked on the next one is fetched, be it of the next file. Used in an
    ``async with``, at whose end nothing is being fetched any more.
    """

    def __init__(self, manager: BlobStoreManager, paths: Sequence[str]) -> None:
        """Keep the files.

        Args:
            manager: Where they lie.
            paths: In the order in which they are read.
        """
        self._pieces = _pieces(manager, paths)
        self._fetching: asyncio.Task[Piece | None]

    async def __aenter__(self) -> Self:
        self._fetch()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fetching.cancel()
        await asyncio.wait({self._fetching})
        if not self._fetching.cancelled():
            self._fetching.exception()  # marks it as retrieved: a reader that stops early does not need it
        await self._pieces.aclose()

    async def next_piece(self) -> Piece:
        """Return the next piece, and begin to fetch the one after it.

        Raises:
            BlobNotFoundError: The file is not there.
            RetriableError: The service may answer later.
            EOFError: There are no more.
        """
        piece = await self._fetching
        if piece is None:
            raise EOFError("there are no more pieces")
        self._fetch()
        return piece

    def _fetch(self) -> None:
        self._fetching = asyncio.create_task(self._next())

    async def _next(self) -> Piece | None:
        return await anext(self._pieces, None)


async def read_next(
    files: FilesAhead,
    executor: BlockingExecutor,
    *,
    where: str,
    take: Callable[[Iterable[Change]], None],
    on_bytes: Callable[[int], None],
) -> tuple[DeltaReader, str]:
    """Read the next file to its end; return its reader, for header and counts, and its sha-256.

    Args:
        files: Has the file.
        executor: For taking it apart.
        where: Named in errors.
        take: Called in the executor with the records of each block, in order.
        on_bytes: Called with the bytes of each piece.

    Raises:
        CheckpointCorruptError: Truncated or damaged; what was taken must be thrown away.
        BlobNotFoundError: The file is not there.
        RetriableError: The service may answer later.
    """
    feed, digest = DeltaFeed(where=where), hashlib.sha256()

    def work(data: bytes) -> None:
        digest.update(data)
        for records in feed.feed(data):
            take(records)

    is_last = False
    while not is_last:
        piece = await files.next_piece()
        on_bytes(len(piece.data))
        await run_to_end(executor, work, piece.data)
        is_last = piece.is_last
    return await run_to_end(executor, feed.finish), digest.hexdigest()


async def _pieces(manager: BlobStoreManager, paths: Sequence[str]) -> AsyncGenerator[Piece]:
    for path in paths:
        start, is_last = 0, False
        while not is_last:
            data = await manager.get_range(path, start, _PIECE_BYTES)
            start, is_last = start + len(data), len(data) < _PIECE_BYTES
            yield Piece(data, is_last)


@asynccontextmanager
async def empty_store(context: RestoreContext, store: StoreName) -> AsyncGenerator[KeyValueStore]:
    """Open the empty store that a restore is to fill; it is closed after, also by a cancel."""
    opened: list[KeyValueStore] = []

    def open_store() -> None:
        directory = context.directories[store]
        directory.parent.mkdir(parents=True, exist_ok=True)
        opened.append(context.open_store(store, directory))

    try:
        await run_to_end(context.executor, open_store)
        yield opened[0]
    finally:
        for each in opened:
            await run_to_end(context.executor, each.close)


@asynccontextmanager
async def fetched_file(
    context: RestoreContext, manager: BlobStoreManager, path: str, store: StoreName
) -> AsyncGenerator[Path]:
    """Download a file beside a store's directory; it is gone after. Progress is reported.

    Raises:
        BlobNotFoundError: It is not there.
        RetriableError: The service may answer later.
    """
    root = context.directories[store]
    target = root.parent / f".{root.name}.{path.rpartition('/')[2]}"
    try:
        await manager.download(path, target, context.on_bytes, max_bytes=MAX_FILE_BYTES)
        context.on_total(await run_to_end(context.executor, _size, target))
        yield target
    finally:
        await run_to_end(context.executor, lambda: target.unlink(missing_ok=True))


def _size(path: Path) -> int:
    return path.stat().st_size

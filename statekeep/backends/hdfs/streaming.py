"""Reading files while they are fetched: nothing is kept on the local disk."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.run_to_end import run_to_end
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
        """Take note of the files.

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
            self._fetching.exception()  # whoever left early does not want to know
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

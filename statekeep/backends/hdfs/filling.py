"""Filling a local store from files that are fetched one after the other."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from statekeep.backends.base import RestoreContext
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobStoreManager
from statekeep.backends.run_to_end import run_to_end
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.base import KeyValueStore


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

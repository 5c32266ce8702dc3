"""A blob client that never ends the put of state; everything else it does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.testing.storage import bare_manager

T = TypeVar("T")


class HangingManager(WrappedBlobStoreManager):
    """Hangs in every put below a job's state, without occupying a thread."""

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation == "put" and "/state-" in subject:
            await asyncio.Event().wait()
        return await call()


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place; named by ``backends.<name>.manager.factory``."""
    return HangingManager(bare_manager(settings["uri"], {}, executor))

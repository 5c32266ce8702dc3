"""A blob client that reaches nothing for as long as the file ``away`` lies beside its place."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.errors import RetriableError
from statekeep.testing.storage import bare_manager

T = TypeVar("T")


def away(place: Path) -> Path:
    """Return the file that says that a place does not answer."""
    return place.with_name(f"{place.name}.away")


class OutageManager(WrappedBlobStoreManager):
    """Fails every call while its place is away."""

    def __init__(self, inner: BlobStoreManager, place: Path) -> None:
        super().__init__(inner)
        self._sign = away(place)

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._sign.exists():
            raise RetriableError(f"the place is away: operation={operation}")
        return await call()


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place; named by ``backends.<name>.manager.factory``."""
    uri = settings["uri"]
    return OutageManager(bare_manager(uri, {}, executor), Path(urlsplit(uri).path))

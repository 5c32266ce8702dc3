"""A blob client that writes down, in ``<place>.requests``, what each process has read, and what for."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.clock import SystemClock
from statekeep.reporter import current_activity
from statekeep.testing.storage import bare_manager

T = TypeVar("T")


def held(place: Path) -> Path:
    """Return the file during whose presence nothing is read of a place that state is restored from."""
    return place.with_name(f"{place.name}.held")


class TracedManager(WrappedBlobStoreManager):
    """Passes everything on; a line for each operation that reads."""

    def __init__(self, inner: BlobStoreManager, place: Path) -> None:
        super().__init__(inner)
        self._place = place
        self._trace = place.with_name(f"{place.name}.requests")

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        if operation.startswith(("get", "download")):
            line = {
                "time_ms": SystemClock().time_ns() // 1_000_000,
                "purpose": current_activity().purpose,
                "blob": subject,
            }
            while line["purpose"] == "restore" and held(self._place).exists():
                await asyncio.sleep(0.05)
            with open(self._trace, "a") as file:  # noqa: PTH123 - a line, in one write
                file.write(json.dumps({**line, "pid": os.getpid()}) + "\n")
        return await call()


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    """Build the client of a place; named by ``blob.store.manager.factory``."""
    uri = settings["uri"]
    return TracedManager(bare_manager(uri, {}, executor), Path(urlsplit(uri).path))


def restores_between(place: Path, since_ms: int, until_ms: int) -> int:
    """Return how many reads of a place were made to restore state in this time."""
    lines = place.with_name(f"{place.name}.requests").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return sum(f["purpose"] == "restore" and since_ms <= f["time_ms"] <= until_ms for f in found)

"""Clients of storage as they are, for tests that put faults around them."""

from collections.abc import Mapping
from typing import Any, Final

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage.factory import Storage
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.requests import Requests, TransferLimits
from statekeep.clock import SystemClock

_MIB: Final = 1 << 20


def bare_manager(
    uri: str,
    options: Mapping[str, Any],
    executor: BlockingExecutor,
    *,
    part_bytes: int = 16 * _MIB,
) -> BlobStoreManager:
    """Build the client of a storage that repeats nothing, and has bounds that are wide.

    Args:
        uri: ``file:///srv/backups``, a plain path, or any other that a blob backend takes.
        options: Of the filesystem's client.
        executor: For every call that blocks.
        part_bytes: How much is moved in one request.
    """
    location = Location(uri, options=options, connections=64)
    limits = TransferLimits("bare", max_in_flight=64, task_max_in_flight=64, buffer_bytes=64 * _MIB)
    requests = Requests(limits, executor, SystemClock(), RetryPolicy(max_retries=0))
    if location.kind.is_manager:
        return location.open_manager(executor)
    return Storage(location, part_bytes=part_bytes, uncommitted_tags={}).manager(requests, executor)

"""Running many calls side by side, but not too many at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from statekeep.backends.fan_out import run_all

T = TypeVar("T")

_MAX_IN_FLIGHT: Final = 16
"""Enough to hide a store's latency for small blobs, few beside a restore's downloads."""


async def run_bounded(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Make all calls, a fixed number of them at a time, and return their results in order.

    Fails as `run_all` does.
    """
    places = asyncio.Semaphore(_MAX_IN_FLIGHT)

    async def in_turn(call: Callable[[], Awaitable[T]]) -> T:
        async with places:
            return await call()

    return await run_all([in_turn(call) for call in calls])

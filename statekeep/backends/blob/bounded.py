"""Running many calls side by side, but not too many at once."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from statekeep.backends.fan_out import run_all

T = TypeVar("T")

_MAX_IN_FLIGHT: Final = 16
"""Enough to hide a store's latency for small blobs, few beside a restore's downloads."""


async def run_bounded(
    calls: Iterable[Callable[[], Awaitable[T]]], *, at_once: int = _MAX_IN_FLIGHT
) -> list[T]:
    """Make all calls, a fixed number of them at a time, and return their results in order.

    They are begun in order; one that waits for its turn takes no memory. Fails as `run_all` does.
    """
    numbered = enumerate(calls)
    results: dict[int, T] = {}

    async def work() -> None:
        for number, call in numbered:  # all workers take from the same ones
            results[number] = await call()

    await run_all([work() for _ in range(at_once)])
    return [results[number] for number in range(len(results))]

"""Running many coroutines side by side with one outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from statekeep.errors import RetriableError

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all coroutines side by side and return their results in order.

    The first failure cancels the rest, and every coroutine has ended when this returns. One error
    is raised in place of a group, so that callers keep their ``except`` clauses: the first that
    a retry would not help, else the first `RetriableError`. The others become its notes.
    """
    tasks: list[asyncio.Task[T]] = []
    failures: tuple[BaseException, ...] = ()
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend([group.create_task(coroutine) for coroutine in coroutines])
    except BaseExceptionGroup as errors:
        failures = errors.exceptions
    if failures:
        raise most_telling(failures)
    return [task.result() for task in tasks]


def most_telling(failures: Sequence[BaseException]) -> BaseException:
    """Return the first failure that a retry would not help, else the first; others as notes."""
    final = [error for error in failures if not isinstance(error, RetriableError)]
    chosen = (final or failures)[0]
    for error in failures:
        if error is not chosen:
            chosen.add_note(f"failed beside it: {error!r}")
    return chosen


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

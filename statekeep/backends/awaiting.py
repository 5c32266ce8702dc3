"""Awaiting several calls with one outcome, and single calls to their end, whatever is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from statekeep.backends.base import BlockingExecutor
from statekeep.errors import RetriableError

P = ParamSpec("P")
T = TypeVar("T")

_MAX_IN_FLIGHT: Final = 16
"""Enough to hide a store's latency for small blobs, few beside a restore's downloads."""


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


async def run_to_end(
    executor: BlockingExecutor, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run one blocking call; when cancelled, wait for its end before the cancel is raised.

    So the caller does not close or remove what a pool thread still uses.
    """
    return await run_to_early_end(executor, _go_on, call, *args, **kwargs)


async def run_to_early_end(
    executor: BlockingExecutor,
    stop: Callable[[], object],
    call: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run one blocking call as `run_to_end` does; when cancelled, ``stop`` tells it to end soon."""
    task = asyncio.ensure_future(executor.run(call, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # the caller gets the cancel; this marks the error as seen
        raise


def _go_on() -> None:
    """Let a call that knows of no cancel go on."""


async def shielded(call: Awaitable[T], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
    """Await ``call`` to its end, also when cancelled meanwhile; the cancel is raised after it.

    For short local calls on an executor thread, which go on after a cancel: what
    the caller does next must not meet them half done.

    Args:
        call: What to wait for.
        undo: Given the result that a cancelled caller does not get.
    """
    task = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            failure = (
                task.exception()
            )  # seen also where the caller gets the cancel: not for the log
            if failure is None and undo is not None:
                await undo(task.result())
        raise

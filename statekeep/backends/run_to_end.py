"""Blocking calls that are never left running behind one's back."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from statekeep.backends.base import BlockingExecutor

P = ParamSpec("P")
T = TypeVar("T")


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

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

    So nobody uses or closes a client that a pool thread is still in. Every call is bounded by the
    client's own time-outs, and so is the wait.
    """
    task = asyncio.ensure_future(executor.run(call, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # the caller gets the cancel; this marks the error as seen
        raise

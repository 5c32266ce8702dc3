"""Waiting for a call to its end, also when cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


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
        if undo is not None and not task.cancelled() and task.exception() is None:
            await undo(task.result())
        raise

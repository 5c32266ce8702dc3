"""Runs coroutines for plain functions, also inside a running event loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop runs already, as in a notebook."""
    if not _has_loop():
        # Not in an `except`: its errors would come with one of ours.
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="statekeep-read") as thread:
        return thread.submit(asyncio.run, work).result()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

"""An executor without threads."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SerialExecutor:
    """A `statekeep.backends.base.BlockingExecutor` that makes each call in line, on the loop.

    The same code then fails the same way each time, with one readable trace. It yields to the loop
    before each call, so that coroutines still interleave and can be cancelled there.

    Attributes:
        call_count: How many calls were made.
    """

    def __init__(self) -> None:
        self.call_count = 0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make the call and return its result."""
        await asyncio.sleep(0)
        self.call_count += 1
        return call(*args, **kwargs)

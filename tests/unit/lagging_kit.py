"""An executor one of whose threads is slow, for tests of what a cancel leaves behind."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

from statekeep.testing.executor import SerialExecutor

P = ParamSpec("P")
T = TypeVar("T")

TURNS: Final = 20
"""Of the loop: enough for a cancel to reach everybody."""


class LaggingExecutor(SerialExecutor):
    """Its threads are slow to make one call: a caller that is cancelled leaves it behind.

    Attributes:
        lagging: Number of the call that lags; None: none does.
        is_lagging: Set while it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lagging: int | None = None
        self.is_lagging = asyncio.Event()
        self._go_on = asyncio.Event()
        self._calls: list[asyncio.Future[Any]] = []

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        made = asyncio.ensure_future(self._make(lambda: call(*args, **kwargs)))
        self._calls.append(made)
        return await asyncio.shield(made)

    async def _make(self, call: Callable[[], T]) -> T:
        self.call_count += 1
        if self.call_count == self.lagging:
            self.is_lagging.set()
            await self._go_on.wait()
        return call()

    async def catch_up(self) -> None:
        """Make what is left behind."""
        self._go_on.set()
        await asyncio.gather(*self._calls, return_exceptions=True)

"""Executors whose calls take some turns of the loop, as those of threads do: they lag, they overlap."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

from statekeep.backends.storage.transfers import Part
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


class OverlappingCalls(SerialExecutor):
    """Each call takes some turns of the loop, so that calls overlap as those of threads do.

    Attributes:
        most_calls: Under way at once.
        most_bytes: Of uploaded parts in memory at once: from their calls' begins to their ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls = self._bytes = self.most_calls = self.most_bytes = 0

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        given = [*args, *getattr(call, "args", ())]
        part_bytes = sum(each.size for each in given if isinstance(each, Part))
        self._count(1, part_bytes)
        try:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            return await super().run(call, *args, **kwargs)
        finally:
            self._count(-1, -part_bytes)

    def _count(self, calls: int, size: int) -> None:
        self._calls += calls
        self._bytes += size
        self.most_calls = max(self.most_calls, self._calls)
        self.most_bytes = max(self.most_bytes, self._bytes)

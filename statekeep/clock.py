"""Time as an argument: nothing in statekeep reads a clock or sleeps but through a `Clock`."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits. `statekeep.testing.clock.FakeClock` is the other implementation."""

    def time_ns(self) -> int:
        """Return wall-clock nanoseconds since the epoch: for labels, never for decisions."""
        ...

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never goes back: for delays and time-outs."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without holding a thread."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def time_ns(self) -> int:
        """Return wall-clock nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never goes back."""
        return time.monotonic_ns()

    async def sleep(self, seconds: float) -> None:
        """Wait without holding a thread."""
        await asyncio.sleep(seconds)

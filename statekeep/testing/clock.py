"""A clock that tests move by hand."""

import asyncio
from typing import Final

_NANOS: Final = 1_000_000_000


class FakeClock:
    """A `statekeep.clock.Clock` whose time passes only on request.

    `sleep` advances the time by what was asked for and lets the other coroutines run, so code
    that backs off or polls runs through at once, in a defined order. Every sleep is recorded.

    Attributes:
        slept: The seconds of each call of `sleep`, in order.
    """

    def __init__(self, start_ns: int = 1_700_000_000 * _NANOS) -> None:
        self._wall_ns = start_ns
        self._monotonic_ns = 0
        self.slept: list[float] = []

    def time_ns(self) -> int:
        """Return the wall-clock time in nanoseconds."""
        return self._wall_ns

    def monotonic_ns(self) -> int:
        """Return the nanoseconds that have passed; `set_wall` does not move them."""
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass for everyone who reads it.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            msg = f"time does not go back: seconds={seconds}"
            raise ValueError(msg)
        passed_ns = round(seconds * _NANOS)
        self._wall_ns += passed_ns
        self._monotonic_ns += passed_ns

    def set_wall(self, time_ns: int) -> None:
        """Set the wall clock, forwards or back, as an administrator or a time server does."""
        self._wall_ns = time_ns

    async def sleep(self, seconds: float) -> None:
        """Advance the time by ``seconds`` and yield to the loop once."""
        self.slept.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)

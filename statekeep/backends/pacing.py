"""What slows transfers down on purpose: a cap, a rate, a bound on memory, a service that asks for rest.

Each object is shared by everything that it bounds, and used by one event loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from statekeep.clock import Clock

T = TypeVar("T")

logger = logging.getLogger(__name__)

_NANOS: Final = 1_000_000_000
_FIRST_REST_NS: Final = _NANOS // 4
_LONGEST_REST_NS: Final = 30 * _NANOS


class InFlightLimit:
    """How many calls to a service may be under way at once; one per container and backend.

    Waiting for its turn holds no thread. Used by one event loop.
    """

    def __init__(self, max_in_flight: int) -> None:
        if max_in_flight < 1:
            msg = f"no call could ever be made: max_in_flight={max_in_flight}"
            raise ValueError(msg)
        self._free = asyncio.Semaphore(max_in_flight)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call as soon as it is its turn."""
        async with self._free:
            return await call()


class TokenBucket:
    """Bytes per second; what was not used for one second may be used later, no more."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        if bytes_per_second < 1:
            msg = f"nothing could ever be sent: bytes_per_second={bytes_per_second}"
            raise ValueError(msg)
        self._rate = bytes_per_second
        self._clock = clock
        self._paid_until_ns = clock.monotonic_ns() - _NANOS

    async def take(self, size: int) -> None:
        """Wait until ``size`` bytes may be moved; first come, first served.

        What is taken is taken, also by a call that is cancelled while it waits.
        """
        now_ns = self._clock.monotonic_ns()
        begun_ns = max(self._paid_until_ns, now_ns - _NANOS)
        self._paid_until_ns = begun_ns + size * _NANOS // self._rate
        if self._paid_until_ns > now_ns:
            await self._clock.sleep((self._paid_until_ns - now_ns) / _NANOS)


class ByteBudget:
    """Bytes that may be in memory at once. Claims are served in order, so a large one is not starved."""

    def __init__(self, total_bytes: int) -> None:
        if total_bytes < 1:
            msg = f"nothing could ever be held: total_bytes={total_bytes}"
            raise ValueError(msg)
        self._total = total_bytes
        self._free = total_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncGenerator[None]:
        """Hold ``size`` bytes for the length of the block; more than there are: all of them."""
        claim = min(size, self._total)
        await self._acquire(claim)
        try:
            yield
        finally:
            self._release(claim)

    async def _acquire(self, claim: int) -> None:
        if not self._waiting and claim <= self._free:
            self._free -= claim
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (claim, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(claim)
            elif entry in self._waiting:  # else `_wake` has passed over it already
                self._waiting.remove(entry)
                self._wake()
            raise

    def _release(self, claim: int) -> None:
        self._free += claim
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            claim, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= claim
                turn.set_result(None)


class Throttle:
    """A rest for all transfers to a service that has answered "slow down".

    The rest doubles with each such answer, up to half a minute, and halves with each rest that was
    long enough. Answers to calls that were under way when a rest began do not lengthen it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rest_ns = 0
        self._until_ns = 0

    async def wait(self) -> None:
        """Wait for the end of the rest, if there is one."""
        while (left_ns := self._until_ns - self._clock.monotonic_ns()) > 0:
            await self._clock.sleep(left_ns / _NANOS)

    def slow_down(self) -> None:
        """Begin a rest: the service has asked for it."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._until_ns:
            return
        self._rest_ns = min(max(2 * self._rest_ns, _FIRST_REST_NS), _LONGEST_REST_NS)
        self._until_ns = now_ns + self._rest_ns
        logger.warning(
            "service is throttling, its transfers pause: pause_ms=%d", self._rest_ns // 1_000_000
        )

    def succeeded(self) -> None:
        """Record that a call was served."""
        if self._rest_ns and self._clock.monotonic_ns() >= self._until_ns:
            self._rest_ns = self._rest_ns // 2 if self._rest_ns > _FIRST_REST_NS else 0

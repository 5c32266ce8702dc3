"""How one container makes requests of one object store: bounded, paced, repeated, at rest together."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.pacing import ByteBudget, Throttle, TokenBucket
from statekeep.backends.retry import Retrier
from statekeep.backends.run_to_end import run_to_end
from statekeep.backends.wrappers import InFlightLimit
from statekeep.errors import ThrottledError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What all transfers of one container and backend share."""

    calls: InFlightLimit
    """Requests under way at once."""
    buffers: ByteBudget
    """Memory of parts."""
    throttle: Throttle
    bandwidth: TokenBucket | None
    """Both directions together; None: as fast as it goes."""


class Requests:
    """Makes the requests of one task's manager.

    A request waits for its share of the bandwidth, for a place among its task's requests and among
    the container's, and for the end of a rest. One that raises `RetriableError` is repeated alone,
    and waits out its back-off without a place.
    """

    def __init__(
        self,
        executor: BlockingExecutor,
        retrier: Retrier,
        shared: SharedLimits,
        own_calls: InFlightLimit,
    ) -> None:
        self._executor = executor
        self._retrier = retrier
        self._own_calls = own_calls
        self.shared = shared

    async def run(
        self,
        operation: str,
        blob: str,
        size: int,
        call: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Make a request that moves up to ``size`` bytes, until it is answered or time is up.

        A cancel leaves a request that is under way to its thread; its result is dropped.
        """
        return await self._repeated(
            operation, blob, size, lambda: self._executor.run(call, *args, **kwargs)
        )

    async def run_to_end(
        self,
        operation: str,
        blob: str,
        size: int,
        call: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Make a request as `run` does; a cancel waits for the end of the one that is under way."""
        request = partial(run_to_end, self._executor, call, *args, **kwargs)
        return await self._repeated(operation, blob, size, request)

    async def _repeated(
        self, operation: str, blob: str, size: int, request: Callable[[], Awaitable[T]]
    ) -> T:
        async def placed() -> T:
            await self.shared.throttle.wait()
            try:
                result = await request()
            except ThrottledError:
                self.shared.throttle.slow_down()
                raise
            self.shared.throttle.succeeded()
            return result

        async def one_try() -> T:
            await self.pay(size)
            return await self._own_calls.run(lambda: self.shared.calls.run(placed))

        return await self._retrier.run(one_try, operation=operation, subject=blob)

    async def pay(self, size: int) -> None:
        """Wait for the share of the bandwidth that ``size`` bytes need."""
        if self.shared.bandwidth is not None and size:
            await self.shared.bandwidth.take(size)

    async def local(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a blocking call that is no request; a cancel waits for its end."""
        return await run_to_end(self._executor, call, *args, **kwargs)

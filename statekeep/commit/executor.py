"""The one bounded pool of a container, which can leave calls behind that hang."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.errors import BackendClosedError
from statekeep.thread_pool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


_LONGEST_CALL_S: Final = 10.0
"""A blocking call that moves 16 MiB and lasts longer hangs, for one who has no time left."""


class BoundedExecutor(BlockingExecutor):
    """Runs blocking calls on at most ``max_workers`` threads, with as many in flight.

    Belongs to one event loop. A call that finds no free thread waits as a coroutine, first come
    first served, and holds no thread; so any number of callers can wait for each other's results
    without a deadlock, also with one worker. A thread counts as taken until the call itself has
    ended, even if its caller was cancelled long before.
    """

    def __init__(self, max_workers: int, name: str, *, ceiling: int | None = None) -> None:
        """Make the pool; threads start with the first calls.

        Args:
            max_workers: Most threads and most calls in flight.
            name: Begins the name of every thread, for people who look at a stack dump.
            ceiling: How far `raise_cap` may go; None: not at all.
        """
        if max_workers < 1:
            msg = f"an executor needs at least one worker: max_workers={max_workers}"
            raise ValueError(msg)
        self.max_workers = max_workers
        self._ceiling = max_workers if ceiling is None else max(ceiling, max_workers)
        self._pool = ThreadPool(self._ceiling, name)
        self._free = asyncio.Semaphore(max_workers)
        self._kept_free = 0
        self._in_flight: dict[Future[Any], tuple[Callable[..., Any], asyncio.Future[Any]]] = {}
        """Of each the call, and what its caller waits for."""
        self._is_closed = False
        self._has_abandoned = False
        self._closing = asyncio.Lock()

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        await self._free.acquire()
        try:
            self._check_open()
            run_in_context: Callable[[Callable[[], T]], T] = contextvars.copy_context().run
            future = self._pool.submit(partial(run_in_context, partial(call, *args, **kwargs)))
        except BaseException:
            self._free.release()
            raise
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._in_flight[future] = (call, result)
        future.add_done_callback(partial(self._pass_on, loop))
        try:
            return await result
        except asyncio.CancelledError:
            future.cancel()  # unless it has begun
            raise

    @property
    def in_flight(self) -> frozenset[object]:
        """The calls that have not ended, each the same object as long as it lasts."""
        return frozenset(self._in_flight)

    def raise_cap(self, max_workers: int) -> None:
        """Let more calls in flight, up to the ceiling, as tasks join; a lower cap is ignored."""
        while self.max_workers < min(max_workers, self._ceiling):
            self.max_workers += 1
            self._free.release()

    async def close(self) -> None:
        """Refuse new calls, wait for those in flight, end every thread. Idempotent.

        Calls that wait for a thread raise `BackendClosedError`. May be cancelled and called again.
        """
        self._is_closed = True
        async with self._closing:
            while self._kept_free < self.max_workers:
                await self._free.acquire()
                self._kept_free += 1
            if self._has_abandoned:
                self._pool.leave()
            else:  # every thread is idle now, so joining them does not hold up the loop
                self._pool.join()

    def abandon(self) -> None:
        """Refuse new calls, and wait no longer for those in flight: they may hang. On the loop.

        Awaiting one raises `BackendClosedError`, and each is logged as an error; it may still take
        effect. `close` then returns without the threads of such calls, and the
        interpreter ends without them.
        """
        self._is_closed = True
        for future, (call, result) in list(self._in_flight.items()):
            name = _name_of(call)
            logger.error("a blocking call hangs and is given up: call=%s", name)
            del self._in_flight[future]
            self._free.release()
            if not result.done():
                msg = f"a blocking call hangs and was given up: call={name}"
                result.set_exception(BackendClosedError(msg))
            self._has_abandoned = True
        if self._has_abandoned:
            self._pool.leave()

    async def abandon_hung_calls(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wait until a call turns out to hang, and `abandon`; for one whose time is over.

        Each is given a few seconds from now on. Returns only then: cancel it when all has ended.

        Args:
            sleep: Waits for so many seconds.
        """
        seen: frozenset[object] = frozenset()
        while not seen & self.in_flight:
            seen = self.in_flight
            await sleep(_LONGEST_CALL_S)
        self.abandon()

    def _pass_on(self, loop: asyncio.AbstractEventLoop, future: Future[Any]) -> None:
        """Pass the end of a call on to the loop; on the thread of the call."""
        with suppress(RuntimeError):  # the loop has ended without an abandoned call
            loop.call_soon_threadsafe(self._ended, future)

    def _ended(self, future: Future[Any]) -> None:
        """Free the slot of a call, and pass its result to the waiter."""
        if future not in self._in_flight:
            return  # abandoned
        _, result = self._in_flight.pop(future)
        self._free.release()
        if result.done():
            return  # its caller was cancelled
        error = future.exception()
        if error is None:
            result.set_result(future.result())
        elif isinstance(error, StopIteration):  # which a future of asyncio does not take
            raised = RuntimeError("a blocking call raised StopIteration")
            raised.__cause__ = error
            result.set_exception(raised)
        else:
            result.set_exception(error)

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "the executor is closed"
            raise BackendClosedError(msg)


def _name_of(call: Callable[..., object]) -> str:
    """Return where a call was written; never its arguments, which may hold secrets."""
    while isinstance(call, partial):
        call = call.func
    named = call if hasattr(call, "__qualname__") else type(call)
    return f"{named.__module__}.{named.__qualname__}"

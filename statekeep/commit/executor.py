"""The one bounded pool of a container: the only place in the core that creates threads."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.errors import BackendClosedError

P = ParamSpec("P")
T = TypeVar("T")


class BoundedExecutor(BlockingExecutor):
    """Runs blocking calls on at most ``max_workers`` threads, with as many in flight.

    Belongs to one event loop. A call that finds no free place waits as a coroutine, first come
    first served, and holds no thread; so any number of callers can wait for each other's results
    without a deadlock, also with one worker. A place counts as taken until the call itself has
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
        self._pool = ThreadPoolExecutor(self._ceiling, thread_name_prefix=name)
        self._places = asyncio.Semaphore(max_workers)
        self._places_kept = 0
        self._is_closed = False
        self._closing = asyncio.Lock()

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        await self._places.acquire()
        try:
            self._check_open()
            future = self._submit(partial(call, *args, **kwargs))
        except BaseException:
            self._places.release()
            raise
        return await asyncio.wrap_future(future)

    def raise_cap(self, max_workers: int) -> None:
        """Let more calls in flight, up to the ceiling, as tasks join; a lower cap is ignored."""
        while self.max_workers < min(max_workers, self._ceiling):
            self.max_workers += 1
            self._places.release()

    async def close(self) -> None:
        """Refuse new calls, wait for those in flight, end every thread. Idempotent.

        Calls that wait for a place raise `BackendClosedError`. May be cancelled and called again.
        """
        self._is_closed = True
        async with self._closing:
            while self._places_kept < self.max_workers:
                await self._places.acquire()
                self._places_kept += 1
            # Every thread is idle now, so joining them does not hold up the loop.
            self._pool.shutdown(wait=True)

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        """Start a call for which a place was taken; the place is given back when it ends."""
        loop = asyncio.get_running_loop()
        future = self._pool.submit(contextvars.copy_context().run, call)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._places.release))
        return future

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "the executor is closed"
            raise BackendClosedError(msg)

"""The driver's one commit thread: the event loop of all commit work, and its pool for blocking calls."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, TypeVar

from statekeep.clock import Clock
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.job_settings import ContainerSettings
from statekeep.errors import BackendClosedError

P = ParamSpec("P")
T = TypeVar("T")

_POLL_S: Final = 0.25


class CommitThread:
    """An event loop on a thread of its own; started by the query, closed at its end.

    Other threads wait for coroutines by `run`, and for blocking calls that may hang by `call`; the
    loop itself never waits for a thread.
    """

    def __init__(self, name: str, threads: ContainerSettings, clock: Clock) -> None:
        """Start the thread; its pool has none yet.

        Args:
            name: Of the thread.
            threads: Bounds of the pool.
            clock: For pauses.
        """
        self.executor = BoundedExecutor(
            threads.commit_pool_threads(1),
            "statekeep-driver",
            ceiling=threads.commit_pool_max_size,
        )
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._background: list[Future[None]] = []
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; not from the loop's own thread.

        Raises:
            BackendClosedError: The thread has ended.
        """
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop; the caller must look at the future."""
        if self._loop.is_closed():
            work.close()
            msg = "the query has ended"
            raise BackendClosedError(msg)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on the pool and wait for it, unless it is given up: it may hang.

        Raises:
            BackendClosedError: It was given up, see `give_up_calls_once`; or the thread has ended.
        """
        return self.run(self.executor.run(call, *args, **kwargs))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that runs until `end_background`."""
        self._background.append(self.submit(work))

    def watch(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Start a coroutine beside a blocking call; return what ends it."""

        async def run() -> None:
            await work()

        future = self.submit(run())

        def stop() -> None:
            future.cancel()

        return stop

    def give_up_calls_once(self, is_over: Callable[[], bool]) -> None:
        """Once ``is_over`` says so, wait for blocking calls that hang no longer; asked until `close` ends.

        Whatever waits for a call then fails, in `run` and `call` too: a store that hangs does not
        hold up the end of a query.
        """
        self.submit(self._give_up_calls_once(is_over))

    def end_background(self) -> None:
        """Cancel what `spawn` has started."""
        for work in self._background:
            work.cancel()

    def close(self) -> None:
        """Cancel what still runs, end pool, loop and thread. Idempotent, from any thread."""
        with self._closing:
            if self._loop.is_closed():
                return
            try:
                self.run(self.executor.close())
                self.run(_cancel_others())
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()

    async def _give_up_calls_once(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._clock.sleep(_POLL_S)
        await self.executor.abandon_hung_calls(self._clock.sleep)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

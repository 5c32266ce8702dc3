"""The driver's one commit thread: it owns the event loop that all commit work runs on."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from statekeep.errors import BackendClosedError

T = TypeVar("T")


class CommitThread:
    """An event loop on a thread of its own; started by the query, closed at its end.

    The batch thread waits for coroutines by `run`; the loop itself never waits for a batch.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
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

    def close(self) -> None:
        """Cancel what still runs, end the loop and the thread. Idempotent, from any thread."""
        with self._closing:
            self._close()

    def _close(self) -> None:
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

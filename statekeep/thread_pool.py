"""Threads of which one that hangs can be left behind. The only module of the core that creates any."""

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Work(NamedTuple):
    future: "Future[Any]"
    call: Callable[[], object]


class ThreadPool:
    """At most ``max_threads`` daemon threads, each started when all others have work.

    Those of `concurrent.futures` cannot be left behind: the interpreter waits for them at its end,
    and a call into a dead file system never returns. At its end it waits for these too, by
    `join`, unless `leave` was called. `submit`, `join` and `leave` are for one thread at a time.
    """

    def __init__(self, max_threads: int, name: str, *, end_wait_s: float | None = None) -> None:
        """Make an empty pool.

        Args:
            max_threads: Calls beyond so many wait for their turn.
            name: Begins the name of every thread.
            end_wait_s: How long the interpreter waits at its end for the calls under way, and then for
                none; None for as long as they take. Without any wait, a call of foreign code that
                returns while the interpreter ends can abort the process.
        """
        self._max_threads = max_threads
        self._name = name
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self._load = 0
        """Calls that have not ended."""
        self._counting = threading.Condition()
        self._has_ended = False
        self._end_wait_s = end_wait_s
        atexit.register(self.join if end_wait_s is None else self._await_calls)

    @property
    def load(self) -> int:
        """Calls that were submitted and have not ended."""
        return self._load

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Have a call run on a thread of the pool; a cancelled future's call never begins.

        Raises:
            RuntimeError: After `join` or `leave`.
        """
        if self._has_ended:
            msg = f"the pool has ended: name={self._name}"
            raise RuntimeError(msg)
        future: Future[T] = Future()
        with self._counting:
            self._load += 1
            is_one_lacking = len(self._threads) < min(self._load, self._max_threads)
        if is_one_lacking:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            try:
                thread.start()
            except BaseException:
                with self._counting:
                    self._load -= 1
                if thread.ident is not None:  # Ctrl-C has broken off the wait for it, and it runs
                    self._threads.append(thread)
                raise
            self._threads.append(thread)
        self._waiting.put(_Work(future, call))
        return future

    def join(self) -> None:
        """Wait for the calls that were submitted, then for the end of every thread. Idempotent."""
        self._end()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def leave(self) -> None:
        """End idle threads and wait for none, now or at the end of the interpreter. Idempotent."""
        self._end()
        self._threads.clear()

    def _end(self) -> None:
        self._has_ended = True
        self._waiting.put(None)
        atexit.unregister(self.join)

    def _await_calls(self) -> None:
        with self._counting:
            self._counting.wait_for(lambda: not self._load, self._end_wait_s)

    def _serve(self) -> None:
        while (work := self._waiting.get()) is not None:
            if work.future.set_running_or_notify_cancel():
                _run(work)
            with self._counting:
                self._load -= 1
                self._counting.notify_all()
            del work  # or its result would stay in memory until the next one comes
        self._waiting.put(None)  # for the next thread, so that no count of them can be wrong


def _run(work: _Work) -> None:
    try:
        result = work.call()
    except BaseException as exc:  # noqa: BLE001 - raised where the call is awaited
        work.future.set_exception(exc)
    else:
        work.future.set_result(result)

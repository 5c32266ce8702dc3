"""SIGTERM, Ctrl-C and the end of the JVM: the queries commit what was delivered first.

Under ``spark-submit`` the JVM is the parent of the Python process, so that signals reach it: there
a hook of its shutdown stops the queries while all of Spark still works.
"""

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import SparkContext

logger = logging.getLogger(__name__)

_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``, for sidecars to end and for Spark to stop a query."""
_ONE_KEY_S: Final = 0.5
"""A program such as ``timeout`` sends one Ctrl-C to the process and to its group: that is one signal."""
_ENDED: Final = "Ctrl-C: the queries have ended"
_HOOK_PRIORITY: Final = 1_000
"""Before Spark's own hook, which has 40, and before those of file systems."""


class Stoppable(Protocol):
    """A query that runs in this process."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether it has not ended."""
        ...

    def stop(self) -> None:
        """Commit and end; blocks for as long as that takes, and is harmless once it has ended."""
        ...


class Termination:
    """Stops the queries of this process before it ends, by whatever way it ends.

    At the first SIGTERM the queries are stopped, then the process ends of the signal. At the first
    Ctrl-C they are stopped, then ``KeyboardInterrupt`` is raised, as Python and Spark do. A second
    signal has its effect at once, and so does the first once the time is over. A handler that the
    program has set for a signal is left alone: it stops its queries itself.

    The stops run on a thread of their own, since the main one may be inside a call into the JVM,
    where no other can be made. No handler waits for them: the main thread may hold a lock that they
    need, such as that of stdout.
    """

    def __init__(self) -> None:
        self._queries: list[Stoppable] = []
        self._timeout_s = 0.0
        self._stops: threading.Thread | None = None
        self._unhook: Callable[[], None] | None = None
        self._pressed_s = -_ONE_KEY_S
        """When Ctrl-C was pressed first, of a monotonic clock."""
        self._is_interrupt_due = False
        """The stops after a Ctrl-C have ended, or their time is over."""

    def stop_before_end(
        self, query: Stoppable, shutdown_ms: int, context: SparkContext | None = None
    ) -> None:
        """Have a query stopped before this process ends.

        Signals can be looked after by the main thread alone: a query that another one starts first
        is stopped at the end of the JVM only.

        Args:
            query: Held until another one comes after its end: the program need not keep it.
            shutdown_ms: How long its last commit may take.
            context: Whose JVM waits for the query at its own end, if there is one.
        """
        self._queries = [*self._active(), query]
        self._timeout_s = max(self._timeout_s, shutdown_ms / 1000 + _MARGIN_S)
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)
            if _is_default(signal.getsignal(signal.SIGINT)):
                signal.signal(signal.SIGINT, self._on_sigint)
                _hide_stack_of_interrupt()
        if context is not None:
            self._leave_jvm()
            self._unhook = _hook(context, self._stop_all, self._timeout_s)

    def say_what_runs(self) -> None:
        """Say at the end of the program which queries are cut off; called by the interpreter."""
        if self._stops is not None:
            with suppress(KeyboardInterrupt):
                self._stops.join(self._timeout_s)  # it ends the process by the signal
        elif active := self._active():
            logger.warning(
                "the program has ended while queries run: queries=%d. The next start replays the"
                " batches since their last commit; end with awaitTermination() or stop()",
                len(active),
            )
        self._leave_jvm()

    def _leave_jvm(self) -> None:
        if self._unhook is not None:
            self._unhook()

    def _active(self) -> list[Stoppable]:
        return [query for query in self._queries if query.isActive]

    def _on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        if self._stops is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        deadline = threading.Timer(self._timeout_s, os.kill, [os.getpid(), number])
        deadline.daemon = True
        deadline.start()

        def end() -> None:
            self._leave_jvm()
            os.kill(os.getpid(), number)

        self._begin_stops("SIGTERM", end)

    def _on_sigint(self, number: int, _frame: FrameType | None) -> None:
        if self._is_interrupt_due:
            self._stops, self._is_interrupt_due = (
                None,
                False,
            )  # a notebook goes on, with other queries
            raise KeyboardInterrupt(_ENDED)
        if time.monotonic() - self._pressed_s < _ONE_KEY_S:
            return
        if self._stops is not None:
            self._stops = None
            raise KeyboardInterrupt
        self._pressed_s = pressed_s = time.monotonic()

        def interrupt() -> None:
            if self._stops is not None and self._pressed_s == pressed_s:  # no second one came
                self._is_interrupt_due = True
                os.kill(os.getpid(), number)

        deadline = threading.Timer(self._timeout_s, interrupt)
        deadline.daemon = True
        deadline.start()

        def end() -> None:
            deadline.cancel()
            _cancel_jobs()
            interrupt()

        self._begin_stops("Ctrl-C", end)

    def await_interrupt(self) -> None:
        """Wait for the end of what a Ctrl-C has begun; called where a query has just ended.

        Raises:
            KeyboardInterrupt: It has ended.
        """
        stops = self._stops
        if stops is not None and threading.current_thread() is threading.main_thread():
            stops.join(self._timeout_s)

    def _begin_stops(self, reason: str, then: Callable[[], None]) -> None:
        def stop() -> None:
            try:
                self._stop_all(reason)
            finally:
                then()

        self._stops = threading.Thread(target=stop, name="statekeep-termination", daemon=True)
        self._stops.start()

    def _stop_all(self, reason: str) -> None:
        active = self._active()
        if not active:
            return
        logger.warning("%s: what was delivered is committed first: queries=%d", reason, len(active))
        for query in active:
            try:
                query.stop()
            except Exception:
                logger.exception("a query did not stop cleanly")


def _is_default(handler: object) -> bool:
    """Whether a handler of SIGINT is Python's own, or the one that each Spark context sets."""
    return handler is signal.default_int_handler or (
        getattr(handler, "__module__", "") == SparkContext.__module__
    )


def _hide_stack_of_interrupt() -> None:
    """Let a program that a Ctrl-C ends say so without the stack of the call that it was in."""
    show = sys.excepthook

    def show_error(
        kind: type[BaseException], error: BaseException, stack: TracebackType | None
    ) -> None:
        if not (isinstance(error, KeyboardInterrupt) and error.args == (_ENDED,)):
            show(kind, error, stack)

    sys.excepthook = show_error


def _cancel_jobs() -> None:
    """Do what Spark does at Ctrl-C. On another thread: the main one may be in a call already."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - has no getter
    if context is not None:
        context.cancelAllJobs()


class _Hook:
    """What the JVM runs at its end, by py4j."""

    def __init__(self, stop_all: Callable[[str], None]) -> None:
        self._stop_all = stop_all

    def run(self) -> None:
        self._stop_all("the JVM ends")

    class Java:
        """The interface that py4j gives it."""

        implements: Final = ("java.lang.Runnable",)


def _hook(
    context: SparkContext, stop_all: Callable[[str], None], timeout_s: float
) -> Callable[[], None]:
    """Have the JVM stop all queries before it ends; return what takes that back."""
    jvm: Any = context._jvm  # noqa: SLF001 - has no getter
    hook = jvm.java.lang.Thread(_Hook(stop_all))
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    hooks.addShutdownHook(hook, _HOOK_PRIORITY, int(timeout_s), seconds)

    def unhook() -> None:
        try:
            hooks.removeShutdownHook(hook)
        except (Py4JError, OSError):
            logger.debug("the JVM has ended already, or ends now")

    return unhook


termination: Final = Termination()
"""One per process, as there is one handler of a signal."""
atexit.register(termination.say_what_runs)

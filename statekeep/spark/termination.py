"""SIGTERM on the driver: the queries commit what was delivered, then the process ends as asked."""

import logging
import os
import signal
import threading
from types import FrameType
from typing import Final, Protocol

logger = logging.getLogger(__name__)

_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``, for containers to end and for Spark to stop a query."""


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
    """Stops the queries of this process at the first SIGTERM, and then lets it end of it.

    A handler that the program has set for the signal is left alone: it stops its queries itself. A
    second signal ends the process at once, and so does the first once the time is over. The stops
    run on a thread of their own, since the main one is mostly inside a call into the JVM, where no
    other can be made; a timer bounds them.
    """

    def __init__(self) -> None:
        self._queries: list[Stoppable] = []
        self._patience_s = 0.0
        self._is_asked = False

    def stop_before_end(self, query: Stoppable, shutdown_ms: int) -> None:
        """Have a query stopped at SIGTERM. Only the main thread can do more than remember it.

        Args:
            query: Held until another one comes after its end: the program need not keep it.
            shutdown_ms: How long its last commit may take.
        """
        self._queries = [*(other for other in self._queries if other.isActive), query]
        self._patience_s = max(self._patience_s, shutdown_ms / 1000 + _MARGIN_S)
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._is_asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._is_asked = True
        deadline = threading.Timer(self._patience_s, os.kill, [os.getpid(), number])
        deadline.daemon = True
        deadline.start()
        name = "statekeep-termination"
        threading.Thread(target=self._stop_all, args=[number], name=name, daemon=True).start()

    def _stop_all(self, number: int) -> None:
        logger.info("asked to end, queries are stopped first: signal=%d", number)
        try:
            for query in list(self._queries):
                query.stop()
        except Exception:
            logger.exception("a query did not stop well")
            raise
        finally:
            os.kill(os.getpid(), number)


termination: Final = Termination()
"""One per process, as there is one handler of a signal."""

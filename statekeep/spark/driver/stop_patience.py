"""Ends the wait of a batch for a commit once the query was told to stop for long."""

import logging
from collections.abc import Awaitable, Callable

from statekeep.clock import Clock
from statekeep.spark.driver.committer import Committer

logger = logging.getLogger(__name__)


class StopPatience:
    """Watches a query that was told to stop; on the commit thread's loop.

    Spark interrupts the query's thread, but a batch that waits in Python for a commit does not see
    that: it would wait for ``task.commit.timeout.ms``. What it waits for is made void instead, and
    the batch meets the interruption at its next call to Spark.
    """

    def __init__(
        self,
        committer: Committer,
        is_stopping: Callable[[], Awaitable[bool]],
        clock: Clock,
        patience_ms: int,
    ) -> None:
        """Take what to watch.

        Args:
            committer: Has the open attempt.
            is_stopping: Whether Spark was told to stop the query.
            clock: Tells how long ago.
            patience_ms: How long the open commit may still take.
        """
        self._committer = committer
        self._is_stopping = is_stopping
        self._clock = clock
        self._patience_ns = patience_ms * 1_000_000
        self._ends_at_ns: int | None = None

    async def look(self) -> None:
        """Look once; void the open attempt if the time is over."""
        if not await self._is_stopping():
            return
        now_ns = self._clock.monotonic_ns()
        if self._ends_at_ns is None:
            self._ends_at_ns = now_ns + self._patience_ns
        elif now_ns >= self._ends_at_ns and self._committer.open_batch is not None:
            logger.warning(
                "the query is to stop, its batch waits no longer for a commit: batch=%s",
                self._committer.open_batch,
            )
            await self._committer.abandon("the query was told to stop")

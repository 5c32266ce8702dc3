"""Ends what a query that was told to stop still waits for, once its time is over."""

# The JVM's errors have no types.
# pyright: reportMissingTypeStubs=false

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException

from statekeep.clock import Clock
from statekeep.errors import BackendClosedError, RetriableError, TaskFencedError
from statekeep.spark.driver.committer import Committer

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.25


class StopPatience:
    """Bounds the end of a query by ``task.shutdown.ms``; on the commit thread's loop.

    The time begins when Spark was told to stop the query, or the query has ended. What may outlast
    it: a batch that waits in Python for a commit, which Spark's interruption does not reach; and a
    Spark job of our own that waits for executors which will never come. The commit is made void
    then, and such jobs are cancelled.
    """

    def __init__(
        self,
        committer: Committer,
        is_stopping: Callable[[], Awaitable[bool]],
        give_up_jobs: Callable[[], None],
        clock: Clock,
        patience_ms: int,
    ) -> None:
        """Take what to watch.

        Args:
            committer: Has the open attempt.
            is_stopping: Whether Spark was told to stop the query.
            give_up_jobs: Cancels the Spark jobs of this stateful job, for good.
            clock: Tells how long ago.
            patience_ms: How long the end of the query may take.
        """
        self._committer = committer
        self._is_stopping = is_stopping
        self._give_up_jobs = give_up_jobs
        self._clock = clock
        self._patience_ns = patience_ms * 1_000_000
        self._ends_at_ns: int | None = None
        self._is_over = False

    def begin(self) -> None:
        """Let the time begin now, unless it has begun; from any thread."""
        self._deadline_ns()

    def remaining_s(self) -> float:
        """Return how many seconds are left; the time begins now, unless it has begun."""
        return max(0.0, (self._deadline_ns() - self._clock.monotonic_ns()) / 1e9)

    def is_over_since(self, margin_s: float) -> bool:
        """Whether the time has begun, and was over so long ago; asks nobody."""
        ends_at_ns = self._ends_at_ns
        return ends_at_ns is not None and self._clock.monotonic_ns() >= ends_at_ns + margin_s * 1e9

    async def watch(self) -> None:
        """Look again and again, until `end`."""
        while not self._is_over:
            await self._clock.sleep(_POLL_S)
            try:
                await self.look()
            except (TaskFencedError, BackendClosedError):
                return  # who waits for the commit meets it too
            except (RetriableError, PySparkException, Py4JError, OSError) as exc:
                logger.warning("what a stop waits for could not be ended: error=%s", exc)

    async def look(self) -> None:
        """Look once; end what is waited for if the time is over.

        Jobs are cancelled each time: one may begin just after.
        """
        if self._is_over or not await self._is_stopping():
            return
        if self._clock.monotonic_ns() < self._deadline_ns():
            return
        if self._committer.open_batch is not None:
            logger.warning(
                "the query is to stop, its commit is waited for no longer: batch=%s",
                self._committer.open_batch,
            )
            await self._committer.abandon("the query was told to stop")
        self._give_up_jobs()

    def end(self) -> None:
        """Leave alone what comes now: the query has ended."""
        self._is_over = True

    def _deadline_ns(self) -> int:
        if self._ends_at_ns is None:
            self._ends_at_ns = self._clock.monotonic_ns() + self._patience_ns
        return self._ends_at_ns

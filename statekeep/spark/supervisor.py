"""Starts a failed query again, within what its `RestartPolicy` grants."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from statekeep.clock import Clock
from statekeep.errors import BackendClosedError
from statekeep.events import QueryRestarted, Report
from statekeep.spark.failures import first_line
from statekeep.spark.query_run import QueryRun, Starter
from statekeep.spark.restart_policy import RestartPolicy, is_double_write

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.25
"""How long a stop during a back-off may take to be noticed."""


class Supervisor:
    """Follows one query over its runs, on a thread of its own; the thread ends with the last run.

    The thread is one that Spark knows: the query's local properties, such as its scheduler pool, are
    those of the thread that started it first.
    """

    def __init__(
        self,
        first: QueryRun,
        start: Starter,
        policy: RestartPolicy,
        *,
        report: Report,
        on_end: Callable[[], None],
        clock: Clock,
        is_session_alive: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        """Follow a query from now on.

        Args:
            first: The run that the caller has started.
            start: Starts the next one.
            policy: Grants restarts.
            report: Gets an event of each restart.
            on_end: Called, at least once, before the end is known.
            clock: For delays.
            is_session_alive: Whether a query could be started at all.
            timeout_s: How long `stop` waits for a restart that has begun.
        """
        self.run = first
        self.error: BaseException | None = None
        """Once it has ended: why; None if it was asked to."""
        self.failed_start: Exception | None = None
        """Why the newest restart did not get as far as a Spark query."""
        self.reason: str | None = None
        """Of the newest restart."""
        self._start = start
        self._policy = policy
        self._report = report
        self._on_end = on_end
        self._clock = clock
        self._is_session_alive = is_session_alive
        self._timeout_s = timeout_s
        self._changing = threading.Condition()
        self._is_stopping = False
        self._is_between_runs = False
        self._has_ended = False
        self._thread = InheritableThread(self._supervise, name="statekeep-restarts", daemon=True)
        self._thread.start()

    @property
    def restarts(self) -> int:
        """How often the query was started again, or is about to be."""
        return self._policy.restarts

    @property
    def has_ended(self) -> bool:
        """Whether no run is left, and none will follow."""
        return self._has_ended

    def wait_ended(self, timeout_s: float | None) -> bool:
        """Wait until the last run has ended; False after the time-out."""
        with self._changing:
            return self._changing.wait_for(lambda: self._has_ended, timeout_s)

    def wait_for_next(self, run: QueryRun) -> bool:
        """Wait until another run has taken the place of ``run``; False if none will."""
        with self._changing:
            self._changing.wait_for(lambda: self._has_ended or self.run is not run)
            return self.run is not run

    def stop(self) -> None:
        """Stop the query, or the wait for its next run; returns when it has ended.

        A restart that does not get on, such as one that waits for a dead store, is waited for
        no longer after some time. Should it get on later, it ends before it fences a driver.
        """
        with self._changing:
            self._is_stopping = True
            run = self.run
        run.stop()
        if self.wait_ended(self._timeout_s):
            return
        logger.error(
            "the query was stopped while it started again, and that start is given up:"
            " restart=%d waited_s=%.0f",
            self._policy.restarts,
            self._timeout_s,
        )
        self._end(None)

    def _supervise(self) -> None:
        error: BaseException | None = None
        try:
            error = self._follow()
            while error is not None and self._is_granted(error):
                # The query goes on only if it is still the owner of the job.
                own_epoch = self.run.job.epoch if is_double_write(error) else None
                error = self._begin_anew(own_epoch)
        finally:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self._on_end()
        with self._changing:
            self.error = None if self._is_stopping and self._is_between_runs else error
            self._has_ended = True
            self._changing.notify_all()

    def _follow(self) -> BaseException | None:
        """Wait for the end of the present run; return what it failed with."""
        try:
            self.run.wait_ended()
        except (PySparkException, Py4JError, OSError) as exc:  # of a JVM that has gone
            return exc
        return self.run.job.error

    def _is_granted(self, error: BaseException) -> bool:
        """Decide on a restart, and wait for its time; False if there will be none."""
        if self._is_stopping or not self._is_session_alive():
            return False
        reason = first_line(error)
        delay_ms = self._policy.next_delay_ms(error)
        if delay_ms is None:
            logger.error("the query has failed: restarts=%d error=%s", self.restarts, reason)
            return False
        self._is_between_runs = True
        self.reason = reason
        number = self._policy.restarts
        logger.warning(
            "the query is started again: restart=%d delay_ms=%d error=%s", number, delay_ms, reason
        )
        self._report(QueryRestarted(number, delay_ms, reason))
        asyncio.run(self._back_off(delay_ms / 1000))
        return not self._is_stopping

    async def _back_off(self, delay_s: float) -> None:
        while delay_s > 0 and not self._is_stopping:
            await self._clock.sleep(min(delay_s, _SLICE_S))
            delay_s -= _SLICE_S

    def _check_wanted(self) -> None:
        """Let no run that is late fence the query that came after the stop.

        Raises:
            BackendClosedError: The query is being stopped, or was.
        """
        if self._is_stopping:
            raise BackendClosedError("the query was stopped while it started again")

    def _begin_anew(self, own_epoch: int | None) -> BaseException | None:
        """Start the next run and follow it; return what it failed with."""
        self._policy.began()
        try:
            run = self._start(self._check_wanted, own_epoch)
        except Exception as exc:  # noqa: BLE001 - kept: another restart follows, or it is raised
            self.failed_start = None if self._is_stopping else exc
            return exc
        with self._changing:
            self.failed_start = None
            self.run = run
            self._is_between_runs = False
            is_stopping = self._is_stopping
            self._changing.notify_all()
        if is_stopping:
            run.stop()
        return self._follow()

"""Starts a failed query again, within what its `RestartPolicy` grants, and changes its state between runs."""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from statekeep.clock import Clock
from statekeep.errors import BackendClosedError, ConfigError, TaskFencedError
from statekeep.events import QueryRestarted, Report
from statekeep.spark.failures import first_line
from statekeep.spark.query_run import QueryRun, Starter
from statekeep.spark.restart_policy import RestartPolicy, is_double_write

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.25
"""How long a stop during a back-off may take to be noticed."""

ChangeOfState = Callable[[int, Future[int]], int]
"""Given the epoch of a run that has ended, gives the answer; returns the epoch that the next run follows.
Raises nothing."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the state that was asked for. Its answer is cancelled if it is not begun."""

    work: ChangeOfState
    answer: Future[int] = field(default_factory=Future)


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
        self._change: _Change | None = None
        """That waits for the end of the present run, or is under way."""
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
            "the query was stopped while it was to start again, and that start is given up:"
            " restart=%d waited_s=%.0f",
            self._policy.restarts,
            self._timeout_s,
        )
        self._end(None)

    def change_state(self, work: ChangeOfState) -> int:
        """Change the state between two batches: end the run, do the work, begin the next run.

        Returns once the next run has begun, or none will. The work is done on the thread that follows the
        query, and is not broken off: not by `stop` either, which waits for it as for a restart.

        Returns:
            The answer.

        Raises:
            ConfigError: The query has ended or ends, starts again, or is changed already.
            StateBackupError: Of the work; or what has kept the run from committing all that it delivered.
        """
        with self._changing:
            self._check_changeable()
            change = self._change = _Change(work)
            run = self.run
        logger.info("the query is stopped between two batches, as its state is to be changed")
        try:
            run.stop_between_batches()
        except BaseException:
            change.answer.cancel()  # unless it has begun
            raise
        try:
            return change.answer.result()
        except CancelledError:
            raise ConfigError(
                "the query ended or failed before its state was changed, and nothing is changed",
                hint="try again once it runs; if it has ended, use sk.write_state with its settings",
            ) from None
        finally:
            if change.answer.done() and not change.answer.cancelled():
                self.wait_for_next(run)

    def _check_changeable(self) -> None:
        """Refuse what has no boundary between two batches to wait for.

        Raises:
            ConfigError: As `change_state`.
        """
        if self._has_ended or self._is_stopping:
            raise ConfigError(
                "the query has ended, or is being stopped, and nothing is changed",
                hint="once it has ended, use sk.write_state with its settings",
            )
        if self._change is not None or self._is_between_runs:
            raise ConfigError(
                "the query is being changed or started again, and nothing is changed",
                hint="try again once it runs",
            )

    def _supervise(self) -> None:
        error: BaseException | None = None
        try:
            error = self._follow()
            while True:
                change = self._find_change(error)
                if change is not None:
                    error = self._make(change, error)
                elif error is not None and self._is_granted(error):
                    # The query goes on only if it is still the owner of the job.
                    own_epoch = self.run.job.epoch if is_double_write(error) else None
                    self._policy.began()
                    error = self._begin_anew(own_epoch)
                else:
                    break
        finally:
            self._end(error)

    def _find_change(self, error: BaseException | None) -> _Change | None:
        """Return the change that the run has ended for; None if it has ended for another reason, too."""
        is_fenced = isinstance(error, TaskFencedError)
        if self._is_stopping or is_fenced or error is not self.run.job.end_error:
            return None
        return self._change

    def _make(self, change: _Change, error: BaseException | None) -> BaseException | None:
        """Make a change, start the next run and follow it; return what it failed with.

        Args:
            change: Of the state.
            error: What kept the last commit from being made: then nothing is changed.
        """
        own_epoch = self.run.job.epoch
        if change.answer.set_running_or_notify_cancel():
            if error is None:
                own_epoch = change.work(own_epoch, change.answer)
            else:
                change.answer.set_exception(error)
        with self._changing:
            self._change = None
            self._is_between_runs = not self._is_stopping
        return self._begin_anew(own_epoch) if self._is_between_runs else error

    def _drop_change(self) -> None:
        """Refuse the change that has not begun, if there is one; the lock is held."""
        if self._change is not None and self._change.answer.cancel():
            self._change = None

    def _end(self, error: BaseException | None) -> None:
        self._on_end()
        with self._changing:
            self._drop_change()
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
        with self._changing:
            self._is_between_runs = True
            self._drop_change()
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

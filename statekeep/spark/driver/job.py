"""One stateful query on the driver: takes over the job, runs its batches, ends with a commit."""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, wait
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StateOperatorProgress

from statekeep.config.model import Config
from statekeep.config.query_defaults import page_command
from statekeep.errors import CommitFailedError, StateBackupError, TaskFencedError
from statekeep.events import CommitSummary, QueryStarted
from statekeep.inspection.continuous_proof import ContinuousProof
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.owned_job import JobDefinition, OwnedJob
from statekeep.spark.driver.progress import Stopwatch, explanation, operator_progress
from statekeep.spark.driver.query_watch import (
    BatchStoppedError,
    StopDeadline,
    WatchedQuery,
    find_successor,
    is_interruption,
)
from statekeep.spark.plan import stateful_upstream

logger = logging.getLogger(__name__)

_ATTACH_S: Final = 60.0
_POLL_S: Final = 0.25
_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``: for a batch that was cancelled to return, for sidecars to end."""


class StatefulJob:
    """One stateful query: what is set up before it, watched beside it, and ended after it.

    `open` runs on the thread that starts the query, `run_batch` on the one where Spark calls
    ``foreachBatch``, commits of an idle or ended query on the thread that watches it; ``_turn`` lets
    exactly one of them work at a time.
    """

    def __init__(self, definition: JobDefinition) -> None:
        """Wire the job; no I/O."""
        self._definition = definition
        self._config = definition.config
        self._location = definition.location
        self._clock = definition.clock
        self._stopwatch = Stopwatch(definition.clock)
        self._turn = threading.Lock()
        self._thread = CommitThread("statekeep-commit", definition.config.container, self._clock)
        self._owned = OwnedJob(
            definition, self._thread, self._turn, self._stopwatch, self._watermark_ms
        )
        self.failure: BaseException | None = None
        """What the batch call raised, as Python has it."""
        self.fenced: TaskFencedError | None = None
        """Another driver has taken over, as was found out when the query was idle or had failed."""
        self.commit_failure: CommitFailedError | None = None
        """More commits failed in a row than are tolerated, as was found out when it was idle."""
        self.end_error: Exception | None = None
        """What kept the last commit from being made."""
        self._batch_thread: int | None = None
        """The thread that runs a batch: a sink may stop its own query."""
        self._proof: ContinuousProof | None = None
        self._query: WatchedQuery | None = None
        self._is_attached = threading.Event()
        self._deadline: StopDeadline | None = None
        self._is_plan_checked = False
        self._is_asked_to_stop = False
        self._is_pausing = False
        self._is_open = False
        self._ended = threading.Event()
        self._is_hurried = threading.Event()
        """The query has ended, and a caller waits for the job."""
        self._query_error: Exception | None = None
        self._closing = threading.Lock()
        self._is_closed = False

    def open(
        self, check_wanted: Callable[[], None] = lambda: None, own_epoch: int | None = None
    ) -> None:
        """Take over the job, as `OwnedJob.open` does."""
        self._owned.open(check_wanted, own_epoch)
        self._is_open = True

    def run_batch(self, rows: DataFrame, batch: int) -> None:
        """Process one batch, record it, deliver its output (R3-R5); Spark's ``foreachBatch``.

        Raises:
            StateBackupError: The batch is not the next one, or cannot be processed exactly.
            ConfigError: A stateful operator of Spark's is upstream.
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
            BatchStoppedError: The query is stopping, and the batch was broken off.
        """
        try:
            with self._turn:
                is_begun = not self._is_pausing
                if is_begun:
                    self._batch_thread = threading.get_ident()
                    try:
                        self._check_plan()
                        self._owned.batches.run(rows, batch)
                    finally:
                        self._batch_thread = None
                    self._owned.watch.note_batch()
            if not is_begun:
                self._await_stop()
        except BaseException as exc:
            self.failure = exc
            is_broken_off = self._owned.jobs.placement.is_given_up or is_interruption(exc)
            if is_broken_off and self._query is not None and self._query.is_stopping():
                raise BatchStoppedError from None
            raise

    def attach(self, query: WatchedQuery) -> None:
        """Watch the Spark query from now on: commit when idle, commit and close when it ends."""
        self._stopwatch.lap("query")
        logger.info(
            "the query is started: job=%s %s", self._config.job.name, self._stopwatch.summary()
        )
        logger.info(
            "look at the job on a page: %s", page_command(self._config, self._location.shared_uri)
        )
        self._owned.report(QueryStarted(self._stopwatch.phases_ms))
        self._query = query
        self._is_attached.set()
        self._prove_commits()
        self._deadline = deadline = StopDeadline(
            self._owned.commits,
            lambda: self._thread.executor.run(query.is_stopping),
            self._owned.jobs.placement.give_up,
            self._clock,
            self._config.task.shutdown_ms,
        )
        # The batch that was cancelled has returned by then, and the sidecars had time to end.
        self._thread.give_up_calls_once(lambda: deadline.is_over_since(2 * _MARGIN_S))
        self._thread.spawn(deadline.watch())
        threading.Thread(
            # In this context, as what is spawned: it has the handler of fault points.
            target=copy_context().run,
            args=(self._look_after, query, deadline),
            name="statekeep-watch",
            daemon=True,
        ).start()

    def _prove_commits(self) -> None:
        """Let the newest commit be verified now and then, if that is wanted."""
        if self._config.job.verify_interval_ms:
            self._proof = ContinuousProof(
                self.settings,
                clock=self._clock,
                report=self._owned.report,
                rng=random.Random(),  # noqa: S311 - any task will do
            )
            self._thread.spawn(self._proof.run())

    def _watermark_ms(self) -> int:
        """Return the watermark of the next batch, on the query's thread between two batches."""
        return self._own_query().watermark_ms()

    def _own_query(self) -> WatchedQuery:
        # The first batch may come, and end, before the thread that starts the query has its handle.
        if not self._is_attached.wait(_ATTACH_S) or self._query is None:
            raise StateBackupError("the query was only partly started")
        return self._query

    def _check_plan(self) -> None:
        """Refuse state of Spark's own before the first operator, whatever its node in the program's plan.

        The names of those that are known are refused before the start.
        """
        if not self._is_plan_checked:
            node = self._own_query().stateful_node()
            if node:
                raise stateful_upstream(node)
            self._is_plan_checked = True

    def explain(self) -> str:
        """Return what the operators are and where their state goes, a line each."""
        return explanation(self._definition.stages, self._config, self._owned.identity.partitions)

    def prepare_stop(self) -> None:
        """Let ``task.shutdown.ms`` begin: `stop` is about to be called on the query.

        Where every batch is committed in its own call, a batch that runs may be delivered already,
        and Spark would break off its commit: it may end first, within that time.
        """
        deadline = self._deadline
        if deadline is None:
            return
        self._is_asked_to_stop = True
        deadline.begin()
        if self._config.task.is_commit_every_batch:
            self._await_batch(deadline)

    def pause(self) -> None:
        """Begin no other batch, and wait until the one that runs has ended; the query is stopped next.

        It has ended once Spark has recorded it, too: a stop before that would leave a batch that was
        delivered and is in no commit. Returns early if the query ends or is stopped meanwhile.
        """
        self._is_pausing = True
        while not self._is_ending():
            if self._turn.acquire(timeout=_POLL_S):
                self._turn.release()
                break
        while not self._is_ending() and not self._is_recorded():
            self._ended.wait(_POLL_S)

    def _is_ending(self) -> bool:
        return self._ended.is_set() or self._is_asked_to_stop

    def _is_recorded(self) -> bool:
        """Whether Spark has recorded the newest batch, or its records cannot be read."""
        try:
            newest = self._thread.call(self._location.newest, "commits")
        except (StateBackupError, CancelledError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("it is not known whether Spark has recorded the batch: error=%s", exc)
            return True
        return newest >= self._owned.batches.head

    def _await_stop(self) -> NoReturn:
        """Hold a batch that came while the query is to be stopped between two: it is not begun."""
        while self._query is not None and not self._query.is_stopping():
            self._ended.wait(_POLL_S)
        raise BatchStoppedError

    def _await_batch(self, deadline: StopDeadline) -> None:
        """Wait for the end of the batch that runs, if one does, until ``deadline``.

        Not for the turn, which the end of the job keeps.
        """
        while self._batch_thread not in {None, threading.get_ident()}:
            rest_s = deadline.remaining_s()
            if rest_s == 0 or self._ended.is_set():
                return
            if self._turn.acquire(timeout=min(_POLL_S, rest_s)):
                self._turn.release()
                return

    def find_successor(self) -> TaskFencedError | None:
        """Look whether another driver has taken over since `open`; None if it has not."""
        if self._owned.storage is None:
            return None
        return self._thread.run(find_successor(self._owned.storage.log))

    @property
    def is_in_batch(self) -> bool:
        """Whether the calling thread is the one that runs a batch, as in a sink."""
        return self._batch_thread == threading.get_ident()

    @property
    def settings(self) -> Config:
        """What the job is found by from outside: they name the backend that its log is in; after `open`."""
        return self._owned.settings

    @property
    def last_commit(self) -> CommitSummary | None:
        """The newest one of this run; None before the first."""
        return self._owned.recent_commits[-1] if self._owned.recent_commits else None

    @property
    def epoch(self) -> int:
        """The number of this driver session; after `open`."""
        return self._owned.jobs.epoch

    def wait_ended(self) -> None:
        """Wait for the end of the job after that of its query: at most the last commit."""
        self._is_hurried.set()
        self._ended.wait()
        self.close()

    @property
    def error(self) -> BaseException | None:
        """Why the job has ended, at its root; None if it was asked to, or runs."""
        if self._query_error is not None:
            return self.fenced or self.failure or self._query_error
        return self.fenced or self.commit_failure or self.end_error

    def end_failed_start(self, error: BaseException) -> None:
        """Report why a query could not be started, end what its tasks have left open, and close the job."""
        try:
            if self._owned.is_begun:
                self._owned.report_end(error)
            if self._owned.has_tasks:
                timeout_s = max(self._config.task.shutdown_ms / 1000, _MARGIN_S)
                self._stop_sidecars(timeout_s, is_committed=False)
        finally:
            self.close()

    def close(self) -> None:
        """Release the commit thread. Idempotent, from any thread."""
        self._ended.set()
        self._is_attached.set()
        self._owned.leave_ticks()
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._thread.end_background()
                self._owned.close_slots()
                try:
                    self._thread.run(self._owned.release())
                finally:
                    self._thread.close()

    def status(self) -> dict[str, Any]:
        """Return how far commits are."""
        is_open = self._is_open
        failing = None if self._owned.clean_up is None else self._owned.clean_up.failing
        return {
            "lastCommittedBatch": self._owned.commits.committed_batch if is_open else None,
            "isCommitting": is_open and self._owned.commits.open_batch is not None,
            "cleanUpFailing": None if failing is None else asdict(failing),
            **self._proof_status(),
        }

    def _proof_status(self) -> dict[str, Any]:
        proof = self._proof
        if proof is None:
            return {"lastVerifiedCommit": None, "verifyFailing": None}
        verified = proof.last_verified
        return {
            "lastVerifiedCommit": None if verified is None else asdict(verified),
            "verifyFailing": proof.failing or None,
        }

    def operator_progress(
        self, batch: int, restarts: Mapping[str, object]
    ) -> list[StateOperatorProgress]:
        """Return the entries of ``stateOperators`` for one of the newest batches, else none."""
        batches, commits = (
            list(self._owned.batches.recent_batches),
            list(self._owned.recent_commits),
        )
        found = next((done for done in reversed(batches) if done[0].batch == batch), None)
        if found is None:
            return []
        commit = next((commit for commit in reversed(commits) if commit.batch <= batch), None)
        return [
            operator_progress(done, len(tasks), commit, stage.operator.declared.counts, restarts)
            for stage, tasks, done in zip(
                self._definition.stages, self._owned.jobs.tasks, found, strict=True
            )
        ]

    def _look_after(self, query: WatchedQuery, deadline: StopDeadline) -> None:
        """Runs on a thread of its own for as long as the query lives, and ends the job."""
        try:
            try:
                while self._thread.call(query.is_running):
                    self._is_hurried.wait(_POLL_S)
                    self._owned.watch.poll(deadline)
            except (TaskFencedError, CommitFailedError) as exc:
                logger.warning("the query is stopped: error=%s", exc)
                if isinstance(exc, TaskFencedError):
                    self.fenced = exc
                else:
                    self.commit_failure = exc
                self._thread.call(query.stop)
            deadline.begin()
            self._query_error = self._thread.call(query.exception)
            is_expected = self._query_error is None and self._is_asked_to_stop
            if self.fenced is None and not is_expected:
                # Spark stops a query without an error when the same one starts anew in the session.
                self.fenced = self.find_successor()
            self._end(deadline, is_committing=self.error is None)
        except Exception as exc:
            logger.exception("the job did not stop cleanly")
            self.end_error = exc
        finally:
            deadline.begin()  # what hangs now is given up, however the query has ended
            deadline.end()
            self._is_open = False
            self._owned.report_end(self.error)
            self.close()

    def _end(self, deadline: StopDeadline, *, is_committing: bool) -> None:
        """Commit what was delivered, within ``task.shutdown.ms``; then let the sidecars end."""
        timeout_s = deadline.remaining_s() + _MARGIN_S
        if not self._turn.acquire(timeout=timeout_s):
            logger.warning("the running batch does not end: timeout_s=%s", timeout_s)
            return
        try:
            if is_committing:
                self._owned.watch.commit_last(deadline)
                self._thread.run(self._owned.begin_last_clean_up())
        finally:
            deadline.end()
            is_committed = self.fenced is None and (
                self._owned.commits.committed_batch == self._owned.batches.head
            )
            timeout_s = max(deadline.remaining_s(), _MARGIN_S)
            self._stop_sidecars(timeout_s, is_committed=is_committed)

    def _stop_sidecars(self, timeout_s: float, *, is_committed: bool) -> None:
        """Let the sidecars end once their uploads are done, if there still are executors.

        What lies on their disks is needed unless the last batch ``is_committed``.
        """
        end_session = partial(self._owned.jobs.end_session, is_committed=is_committed)
        stopping = self._thread.submit(self._thread.executor.run(end_session))
        wait([stopping], timeout=timeout_s)
        while not stopping.done():
            self._owned.jobs.rebalancer.give_up_end()
            wait([stopping], timeout=_POLL_S)  # its job may begin only now
        try:
            stopping.result()
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning(
                "sidecars could not be stopped and end with their executors: error=%s", exc
            )

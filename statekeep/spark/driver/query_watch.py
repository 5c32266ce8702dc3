"""What a query needs besides its batches: commits while it is idle, looks for a successor, its end."""

import logging
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from statekeep.checkpoint.log_session import LogSession
from statekeep.clock import Clock
from statekeep.config.job_settings import TaskSettings
from statekeep.errors import (
    BackendClosedError,
    CommitFailedError,
    RetriableError,
    StateBackupError,
    TaskFencedError,
)
from statekeep.spark.driver.batch_loop import BatchLoop
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.job_commits import (
    JobCommits,
    Resubmission,
    Submission,
    submit_beside_batches,
)
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.recovery import MAX_ROUNDS
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.plan import stateful_node
from statekeep.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.25


class StopDeadline:
    """Bounds the end of a query by ``task.shutdown.ms``; on the commit thread's loop.

    The time begins when the query is stopped or has ended. What may outlast
    it: a batch that waits in Python for a commit, which Spark's interruption does not reach; and a
    Spark job of our own that waits for executors which will never come. The commit is aborted
    then, and such jobs are cancelled.
    """

    def __init__(
        self,
        committer: JobCommits,
        is_stopping: Callable[[], Awaitable[bool]],
        give_up_jobs: Callable[[], None],
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        """Take what to watch.

        Args:
            committer: Has the open attempt.
            is_stopping: Whether Spark is stopping the query.
            give_up_jobs: Cancels the Spark jobs of this stateful job, for good.
            clock: Tells how long ago.
            timeout_ms: How long the end of the query may take.
        """
        self._committer = committer
        self._is_stopping = is_stopping
        self._give_up_jobs = give_up_jobs
        self._clock = clock
        self._timeout_ns = timeout_ms * 1_000_000
        self._ends_at_ns: int | None = None
        self._is_over = False

    def begin(self) -> None:
        """Let the time begin now, unless it has begun; from any thread."""
        self._deadline_ns()

    def remaining_s(self) -> float:
        """Return how many seconds are left; the time begins now, unless it has begun."""
        return max(0.0, (self._deadline_ns() - self._clock.monotonic_ns()) / 1e9)

    def is_over_since(self, margin_s: float) -> bool:
        """Whether the deadline was set, and passed at least so long ago; makes no request."""
        ends_at_ns = self._ends_at_ns
        return ends_at_ns is not None and self._clock.monotonic_ns() >= ends_at_ns + margin_s * 1e9

    async def watch(self) -> None:
        """Poll repeatedly, until `end`."""
        while not self._is_over:
            await self._clock.sleep(_POLL_S)
            try:
                await self.poll()
            except (TaskFencedError, BackendClosedError):
                return  # who waits for the commit meets it too
            except (RetriableError, PySparkException, Py4JError, OSError) as exc:
                logger.warning(
                    "what the stop of the query waits for could not be cancelled: error=%s", exc
                )

    async def poll(self) -> None:
        """Look once; end what is waited for if the time is over.

        Jobs are cancelled each time: one may begin just after.
        """
        if self._is_over or not await self._is_stopping():
            return
        if self._clock.monotonic_ns() < self._deadline_ns():
            return
        if self._committer.open_batch is not None:
            logger.warning(
                "the query is stopping and no longer waits for its commit: batch=%s",
                self._committer.open_batch,
            )
            await self._committer.abandon("the query was told to stop")
        self._give_up_jobs()

    def end(self) -> None:
        """Leave alone what comes now: the query has ended."""
        self._is_over = True

    def _deadline_ns(self) -> int:
        if self._ends_at_ns is None:
            self._ends_at_ns = self._clock.monotonic_ns() + self._timeout_ns
        return self._ends_at_ns


_LAST_REPEAT_MS: Final = 5_000
"""When the last commit of a query is submitted again, whose process may have died: a user waits for it."""
_IDLE_S: Final = 1.0
"""A commit that is due waits so long for a batch to ride on before it gets a job of its own."""
_QUIET_NS: Final = 5_000_000_000
"""How long nothing was appended before the end of the log is read; each append asks by itself."""


async def find_successor(log: LogSession) -> TaskFencedError | None:
    """Return how a driver whose query has failed was fenced; None if it was not, as far as is known.

    Two drivers meet in the query's checkpoint location, too: there Spark refuses to
    write a file that another driver has written.
    """
    try:
        await log.check_fence()
    except TaskFencedError as exc:
        return exc
    except StateBackupError as exc:
        logger.warning("the end of the job log could not be read: error=%s", exc)
    return None


class FenceWatch:
    """Reads the end of the job log while this driver appends nothing. Blocking.

    Without it, a driver that was replaced while its stream was idle would look alive until the
    next batch.
    """

    def __init__(
        self, thread: CommitThread, log: LogSession, commits: JobCommits, clock: Clock
    ) -> None:
        self._thread = thread
        self._log = log
        self._commits = commits
        self._clock = clock
        self._position = -1
        self._quiet_since_ns = 0

    def poll(self) -> None:
        """Look once; at most one request in each `_QUIET_NS`, none while records are appended.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        self._commits.raise_if_fenced()
        now_ns, position = self._clock.monotonic_ns(), self._log.view.next_position
        if position != self._position:
            self._position, self._quiet_since_ns = position, now_ns
        if now_ns - self._quiet_since_ns < _QUIET_NS:
            return
        self._quiet_since_ns = now_ns
        try:
            self._thread.run(self._log.check_fence())
        except RetriableError as exc:
            logger.warning("the end of the job log could not be read: error=%s", exc)


class QueryWatch:
    """Looks after a running query between its batches. Blocking, on the watch's own thread.

    Calls that may hang go by way of the commit thread, which gives them up.
    """

    def __init__(
        self,
        *,
        thread: CommitThread,
        log: LogSession,
        commits: JobCommits,
        batches: BatchLoop,
        jobs: TaskJobs,
        location: CheckpointLocation,
        turn: threading.Lock,
        settings: TaskSettings,
        clock: Clock,
    ) -> None:
        """Wire it.

        Args:
            thread: Runs what log and commits are asked.
            log: Of the job.
            commits: Of the job.
            batches: Know the head and every version.
            jobs: The placed jobs.
            location: Knows which batches Spark has taken for done.
            turn: Held while a batch is processed, and while one is submitted here.
            settings: Say how long a commit may take.
            clock: Tells how long the query has been idle.
        """
        self._thread = thread
        self._commits = commits
        self._batches = batches
        self._location = location
        self._turn = turn
        self._clock = clock
        submit_versions = submit_beside_batches(thread, jobs)
        self._submission = Submission(thread, commits, submit_versions)
        repeat_ms = settings.commit_max_delay_ms // 2
        self._repeats = Resubmission(thread, commits, submit_versions, clock, repeat_ms)
        self._last_repeats = Resubmission(
            thread, commits, submit_versions, clock, min(repeat_ms, _LAST_REPEAT_MS)
        )
        self._fence_watch = FenceWatch(thread, log, commits, clock)
        self._last_batch_ns = clock.monotonic_ns()

    def note_batch(self) -> None:
        """Record that a batch has ended; on the batch thread."""
        self._last_batch_ns = self._clock.monotonic_ns()

    def poll(self, deadline: StopDeadline) -> None:
        """Look once.

        Args:
            deadline: Bounds what runs here once the query is to stop.

        Raises:
            TaskFencedError: Another driver has taken over, and no batch is there to find out.
            CommitFailedError: The same of commits, of which more failed in a row than are tolerated.
        """
        if not self._turn.locked():
            self._fence_watch.poll()
        try:
            self._commit_if_idle(deadline)
            self._repeats.poll()
        except RetriableError as exc:
            logger.warning("the job log could not be written: error=%s", exc)

    def commit_last(self, deadline: StopDeadline) -> None:
        """Commit what was delivered, until ``deadline``.

        Raises:
            StateBackupError: It did not become durable.
            TaskFencedError: Another driver has taken over.
        """
        self._resolve(deadline)
        for _ in range(MAX_ROUNDS):
            if not self._submit_newest(deadline, is_forced=True) and not self._resolve(deadline):
                break
        newest = self._thread.call(self._location.newest, "commits")
        committed, head = self._commits.committed_batch, self._batches.head
        if committed < min(newest, head):
            msg = (
                "the last commit did not become durable, a restart will replay from the one before:"
                f" committed={committed} delivered={head}"
            )
            raise StateBackupError(msg)

    def _resolve(self, deadline: StopDeadline) -> bool:
        """Wait until the open commit ends, until ``deadline``; submit it again each `_LAST_REPEAT_MS`.

        Returns:
            Whether it was aborted as a version that it needs is lost.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        ended = self._thread.submit(self._commits.resolve(deadline.remaining_s()))
        found_lost = False
        try:
            while not wait([ended], timeout=_POLL_S).done:
                try:
                    found_lost = self._last_repeats.poll() or found_lost
                except RetriableError as exc:
                    logger.warning("the job log could not be written: error=%s", exc)
            ended.result()
        finally:
            ended.cancel()
        return found_lost

    def _commit_if_idle(self, deadline: StopDeadline) -> None:
        """Commit the newest batch if that is due and no batch comes along to ride on."""
        idle_s = (self._clock.monotonic_ns() - self._last_batch_ns) / 1e9
        has_new = self._batches.head > self._commits.committed_batch
        if idle_s < _IDLE_S or not has_new or not self._turn.acquire(blocking=False):
            return
        try:
            self._commit_if_due(deadline)
        finally:
            self._turn.release()

    def _commit_if_due(self, deadline: StopDeadline) -> None:
        if self._commits.open_batch is not None:
            self._thread.run(self._commits.abort_if_overdue())
            return
        if self._commits.final_error is not None:
            raise self._commits.final_error
        if not self._commits.is_due():
            return
        try:
            self._submit_newest(deadline, is_forced=False)
        except (TaskFencedError, CommitFailedError):
            raise
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("commit of the idle stream failed: error=%s", exc)

    def _submit_newest(self, deadline: StopDeadline, *, is_forced: bool) -> bool:
        """Submit the newest batch whose ``commits/`` file is there; heal tasks that have lost theirs.

        Returns:
            Whether any had failed: the batch is to be submitted again.
        """
        newest = self._thread.call(self._location.newest, "commits")
        batch = min(self._batches.head, newest)
        if batch <= self._commits.committed_batch:
            return False
        versions = self._batches.versions(batch)
        done = self._submission.submit(batch, versions, is_forced=is_forced)
        if done is None or not done.lost:
            return False
        self._heal(done.lost, batch, deadline)
        return True

    def _heal(self, lost: frozenset[int], batch: int, deadline: StopDeadline) -> None:
        """Recover tasks on a thread that is left behind if a call still hangs after ``deadline``.

        Raises:
            StateBackupError: They could not be recovered.
        """
        pool = ThreadPool(1, "statekeep-heal")
        healing = pool.submit(lambda: self._batches.heal(lost, batch))
        try:
            while not healing.done() and not deadline.is_over_since(_POLL_S):
                wait([healing], timeout=_POLL_S)
            healing.result(0)
        except (PySparkException, Py4JError, OSError) as exc:
            msg = f"tasks that lost their state could not be recovered: tasks={len(lost)} batch={batch}"
            raise StateBackupError(msg) from exc
        finally:
            pool.leave()


_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


class BatchStoppedError(Exception):
    """Raised to Spark in place of an error by which a stop has broken a batch off.

    Spark looks for an interruption in the text of such an error by a regular expression, which takes
    some stack for each character behind the words that are repeated here: the stack of Java that
    those errors quote makes it overflow, and Spark prints 1,024 frames of that. See decision 0052.
    """

    def __init__(self) -> None:
        super().__init__(
            "the query was stopped: py4j.protocol.Py4JJavaError: An error occurred while calling"
            f" foreachBatch: {_INTERRUPTIONS[0]}"
        )


def is_interruption(error: BaseException) -> bool:
    """Return whether Spark has interrupted a call into the JVM that this error comes from."""
    text = "".join(traceback.format_exception(error))
    return any(name in text for name in _INTERRUPTIONS)


class WatchedQuery:
    """Polled by the job; every call blocks on the JVM for a moment, from any thread.

    Spark calls a query inactive as soon as `stop` was called. Its thread may then only be about to
    call ``foreachBatch``, and the caller of `stop` waits for that thread.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def is_running(self) -> bool:
        """Whether the query's thread lives: a batch may still come."""
        handle: Any = self._query._jsq  # noqa: SLF001 - no public way to the thread
        stream = handle.streamingQuery()
        return bool(stream.queryExecutionThread().isAlive())

    def is_stopping(self) -> bool:
        """Whether `stop` was called on the query, or it has ended."""
        return not self._query.isActive

    def exception(self) -> StreamingQueryException | None:
        """Return what the query failed with, None if it did not, or runs."""
        return self._query.exception()

    def watermark_ms(self) -> int:
        """Return the watermark that the next batch will have; asked between two batches."""
        handle: Any = self._query._jsq  # noqa: SLF001 - reports have that of the last batch only
        return int(handle.streamingQuery().watermarkTracker().currentWatermark())

    def stateful_node(self) -> str:
        """Return the first node with a state of Spark's own in the plan of the batch at hand, or ""."""
        handle: Any = self._query._jsq  # noqa: SLF001 - as above
        plan = str(handle.streamingQuery().lastExecution().executedPlan().toString())
        return stateful_node(plan)

    def stop(self) -> None:
        """End the query, and wait until its thread has ended."""
        self._query.stop()

"""Tasks move to executors that have joined, between two batches, once their state is fetched there."""

import logging
from functools import partial
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException

from statekeep.checkpoint.log_session import LogSession
from statekeep.clock import Clock
from statekeep.errors import StateBackupError, TaskFencedError
from statekeep.events import Report, TasksMoved
from statekeep.fault_points import fault_point
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.processing import VersionHistory
from statekeep.spark.driver.rebalancer import Move
from statekeep.spark.driver.recovery import Recovery, task_commit
from statekeep.spark.driver.task_jobs import TaskJobs

logger = logging.getLogger(__name__)

_FEW_BATCHES: Final = 3
_SHORT_NS: Final = 5_000_000_000
"""Tasks move to another executor where that replays few batches, or such as took this long at most."""

_ASK_AGAIN_NS: Final = 2_000_000_000
"""Between two looks at what executors fetch for tasks that are to move: each is a short Spark job."""


class TaskMoves:
    """Carries out what `Rebalancer` has found. Blocking, on the thread that runs batches.

    The newest commit of the tasks that move is fetched first, beside the batches. Where that takes
    long, another one is by then the newest, and what it has beyond is fetched, too. What came
    after it is replayed, and the stream waits.
    """

    def __init__(
        self,
        *,
        jobs: TaskJobs,
        commits: JobCommits,
        log: LogSession,
        history: VersionHistory,
        recovery: Recovery,
        is_each_batch: bool,
        report: Report,
        clock: Clock,
    ) -> None:
        """Move nothing yet.

        Args:
            jobs: With the rebalancer.
            commits: Nothing moves while one is open, as its versions are submitted where they are.
            log: Has the newest commit.
            history: Gets the versions that a replay makes.
            recovery: Brings tasks to the newest batch where they go.
            is_each_batch: Whether each batch is committed before the next one.
            report: Gets each move.
            clock: For durations.
        """
        self._jobs = jobs
        self._commits = commits
        self._log = log
        self._history = history
        self._recovery = recovery
        self._is_each_batch = is_each_batch
        self._report = report
        self._clock = clock

    def move_due(self, head: int, batch_ns: int) -> None:
        """Go on with the move that is due, if any: tasks spread anew where executors have come or gone.

        Whatever fails by that, nothing is lost: the batch that follows meets what is really wrong.

        Args:
            head: The newest batch.
            batch_ns: How long it took.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        try:
            self._move_due(head, batch_ns)
        except TaskFencedError:
            raise
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("tasks could not be moved and stay where they are: error=%s", exc)

    def _move_due(self, head: int, batch_ns: int) -> None:
        rebalancer, committed = self._jobs.rebalancer, self._commits.committed_batch
        is_due = rebalancer.is_due(committed)
        if self._commits.open_batch is not None:
            return
        if is_due:
            rebalancer.prepare(self._jobs.tasks, self._jobs.executors)
        move = rebalancer.move
        if move is None or move.is_asking:
            return
        if move.error is not None:
            logger.warning(
                "tasks are not moved yet, their state could not be fetched: error=%s", move.error
            )
            rebalancer.give_up_move(is_again=True)
            return
        if move.tasks and not (move.is_there and self._is_near(move.batch, head, batch_ns)):
            self._fetch_ahead(move)
            return
        began_ns = self._clock.monotonic_ns()
        fault_point("move.before")
        with rebalancer.moving() as moved, self._history.unless_failed():
            if moved:
                # Where each batch is committed, one waits for an upload anyway, and the newest commit
                # is never fetched yet: what it has beyond the one that was fetched is little.
                fetched = None if self._is_each_batch else move.batch
                summary = self._recovery.recover(
                    moved, head, is_thorough=False, is_optional=True, fetched=fetched
                )
                elapsed_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
                summary.tell(self._report, elapsed_ms, "move")
        fault_point("move.after")
        if moved:
            logger.info("tasks have moved to other executors: tasks=%d", len(moved))
            self._report(TasksMoved(len(moved), len(rebalancer.placement.slots)))

    def _is_near(self, fetched: int, head: int, batch_ns: int) -> bool:
        """Whether a commit was fetched after which few batches came, or such as do not take long."""
        to_replay = head - fetched
        is_short = to_replay <= _FEW_BATCHES or to_replay * batch_ns <= _SHORT_NS
        return self._is_each_batch or (is_short and fetched in self._history)

    def _fetch_ahead(self, move: Move) -> None:
        """Bring the newest commit of tasks where they are to go, while batches go on.

        One that is on its way comes first: then only what has changed since is left.
        """
        rebalancer, now_ns = self._jobs.rebalancer, self._clock.monotonic_ns()
        if move.fetch is not None and not move.is_there:
            if now_ns - move.asked_ns >= _ASK_AGAIN_NS:
                rebalancer.ask_again(move, now_ns)
            return
        commit, view = self._log.view.last_commit, self._log.view
        if commit is None or commit.batch <= move.batch:
            return
        commits = {task: task_commit(commit, task) for task in move.tasks}
        wanted = {task: found for task, found in commits.items() if found.version}
        fetch = partial(self._jobs.fetch_ahead, commits=wanted, bad_markers=view.bad_markers)
        rebalancer.fetch(move, commit.batch, fetch, now_ns)

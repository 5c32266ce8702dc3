"""How versions get to the containers for a commit: the one sequence, whoever asks for the commit."""

# The JVM's errors have no types.
# pyright: reportMissingTypeStubs=false

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException

from statekeep.clock import Clock
from statekeep.errors import StateBackupError
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan

logger = logging.getLogger(__name__)

HandOver = Callable[[HandOverPlan], Mapping[int, str]]
"""Lets the tasks hand a plan over; returns ``{partition: why not}``."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of one wish to commit."""

    checkpoint_id: str
    lost: frozenset[int]
    """The tasks whose version was not on their host: the attempt is void, and they are to be healed."""


class Submission:
    """Begins a commit, lets the tasks hand over, and says how that went. Blocking.

    The hand-over rides on the process job of a batch, between `begin` and `end`, or has a Spark job
    of its own in `submit`.
    """

    def __init__(self, thread: CommitThread, commits: JobCommits, hand_over: HandOver) -> None:
        self._thread = thread
        self._commits = commits
        self._hand_over = hand_over

    def begin(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> HandOverPlan | None:
        """Ask for a commit; see `JobCommits.prepare`."""
        return self._thread.run(self._commits.prepare(batch, versions, is_forced=is_forced))

    def end(self, plan: HandOverPlan, errors: Mapping[int, str]) -> Submitted:
        """Take note how the tasks have handed over; see `JobCommits.handed_over`."""
        self._thread.run(self._commits.handed_over(plan, errors))
        return Submitted(plan.checkpoint_id, lost_by(errors))

    def submit(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> Submitted | None:
        """Do both, with a Spark job in between; None where there is nothing to hand over now."""
        plan = self.begin(batch, versions, is_forced=is_forced)
        return None if plan is None else self.end(plan, self._hand_over(plan))


def lost_by(errors: Mapping[int, str]) -> frozenset[int]:
    """Return the tasks that could not hand over as their version is not on their host."""
    return frozenset(p for p, why in errors.items() if why.startswith(VERSION_NOT_HERE))


def hand_over_beside(thread: CommitThread, jobs: TaskJobs) -> HandOver:
    """Return a hand-over for whoever is not the batch thread: it may be given up, and never raises."""

    def hand_over(plan: HandOverPlan) -> Mapping[int, str]:
        try:
            return thread.call(jobs.hand_over, plan)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            return dict.fromkeys(plan.versions, f"{type(exc).__name__}: {exc}")

    return hand_over


class HandOverRepeats:
    """Hands the open attempt over once more if it takes long: its container may have died.

    A container ignores what it works on already or has finished; a new one begins.
    """

    def __init__(
        self,
        thread: CommitThread,
        commits: JobCommits,
        hand_over: HandOver,
        clock: Clock,
        patience_ms: int,
    ) -> None:
        """Take what to watch.

        Args:
            thread: Runs what the commits are asked.
            commits: Have the open attempt.
            hand_over: Never raises.
            clock: Tells how long it takes.
            patience_ms: How long an attempt is left alone, each time.
        """
        self._thread = thread
        self._commits = commits
        self._hand_over = hand_over
        self._clock = clock
        self._patience_ns = patience_ms * 1_000_000
        self._awaited: HandOverPlan | None = None
        self._repeat_at_ns = 0

    def look(self) -> None:
        """Look once; repeat the hand-over if the same attempt has been open for long."""
        plan, now_ns = self._commits.open_plan, self._clock.monotonic_ns()
        if plan is not self._awaited:
            self._awaited, self._repeat_at_ns = plan, now_ns + self._patience_ns
        if plan is None or now_ns < self._repeat_at_ns:
            return
        self._repeat_at_ns = now_ns + self._patience_ns
        logger.warning("commit takes long, its versions are submitted again: batch=%d", plan.batch)
        errors = self._hand_over(plan)
        if errors:
            logger.warning("versions could not all be submitted again: tasks=%d", len(errors))
        lost = {p: plan.versions[p] for p in lost_by(errors)}
        self._thread.run(self._commits.void_if_lost(lost))

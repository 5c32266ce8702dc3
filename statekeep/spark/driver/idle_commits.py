"""Commits that ride on no batch: of a query without new data, and of one that has ended."""

# The JVM's errors have no types.
# pyright: reportMissingTypeStubs=false

import logging
import threading
from collections.abc import Mapping
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException

from statekeep.clock import Clock
from statekeep.errors import CommitFailedError, StateBackupError, TaskFencedError
from statekeep.spark.driver.batch_loop import BatchLoop
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.reign import Reign
from statekeep.spark.driver.stop_patience import StopPatience
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.worker.job_spec import HandOverPlan

logger = logging.getLogger(__name__)

_IDLE_S: Final = 1.0
"""A commit that is due waits so long for a batch to ride on before it gets a job of its own."""


class IdleCommits:
    """Hands the newest batch over by a job of its own; on the commit thread's loop."""

    def __init__(
        self,
        *,
        reign: Reign,
        batches: BatchLoop,
        jobs: TaskJobs,
        location: CheckpointLocation,
        turn: threading.Lock,
        clock: Clock,
    ) -> None:
        """Wire it.

        Args:
            reign: Its committer is used.
            batches: Know the head and every version.
            jobs: The anchored jobs.
            location: Knows which batches Spark has taken for done.
            turn: Held while a batch is processed, and while one is handed over here.
            clock: Tells how long the query has been idle.
        """
        self._reign = reign
        self._committer = reign.committer
        self._batches = batches
        self._jobs = jobs
        self._location = location
        self._turn = turn
        self._clock = clock
        self._last_batch_ns = clock.monotonic_ns()

    def note_batch(self) -> None:
        """Take note that a batch has ended; on the batch thread."""
        self._last_batch_ns = self._clock.monotonic_ns()

    async def look(self) -> None:
        """Commit the newest batch if that is due and no batch comes along to ride on.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated, and no batch is
                there to find out.
            TaskFencedError: Another driver has taken over.
        """
        idle_s = (self._clock.monotonic_ns() - self._last_batch_ns) / 1e9
        has_new = self._batches.head > self._committer.committed_batch
        if idle_s < _IDLE_S or not has_new or not self._turn.acquire(blocking=False):
            return
        try:
            await self._commit_if_due()
        finally:
            self._turn.release()

    async def commit_last(self, patience: StopPatience) -> None:
        """Commit what was delivered, for as long as ``patience`` lasts.

        Raises:
            StateBackupError: It did not become durable.
            TaskFencedError: Another driver has taken over.
        """
        await self._committer.settle(patience.remaining_s())
        await self._commit_newest(is_forced=True)
        await self._committer.settle(patience.remaining_s())
        newest = await self._reign.blocking(self._location.newest, "commits")
        committed, head = self._committer.committed_batch, self._batches.head
        if committed < min(newest, head):
            msg = (
                "the last commit did not become durable, a restart will replay from the one before:"
                f" committed={committed} delivered={head}"
            )
            raise StateBackupError(msg)

    async def hand_over(self, plan: HandOverPlan) -> Mapping[int, str]:
        """Let the tasks hand over by a Spark job of its own; return ``{partition: why not}``."""
        return await self._reign.blocking(self._jobs.hand_over, plan)

    async def _commit_if_due(self) -> None:
        if self._committer.open_batch is not None:
            await self._committer.void_if_overdue()
            return
        if self._committer.final_error is not None:
            raise self._committer.final_error
        if not self._committer.is_due():
            return
        try:
            await self._commit_newest(is_forced=False)
        except (TaskFencedError, CommitFailedError):
            raise
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("commit of the idle stream failed: error=%s", exc)

    async def _commit_newest(self, *, is_forced: bool) -> None:
        """Hand over the newest batch whose ``commits/`` file is there."""
        newest = await self._reign.blocking(self._location.newest, "commits")
        batch = min(self._batches.head, newest)
        if batch <= self._committer.committed_batch:
            return
        versions = self._batches.versions(batch)
        plan = await self._committer.prepare(batch, versions, is_forced=is_forced)
        if plan is None:
            return
        try:
            errors = await self.hand_over(plan)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            errors = dict.fromkeys(plan.versions, f"{type(exc).__name__}: {exc}")
        await self._committer.handed_over(plan, errors)

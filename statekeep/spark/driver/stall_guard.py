"""Cancels anchored jobs that wait for an executor that is gone, so that they run again elsewhere.

A task that was sent to an executor which then dies goes back to that executor's own queue, and
Spark lets it wait there for ``spark.locality.wait`` before it tries another one. Anchored tasks need
that wait to be long; so after a loss, a job of which nothing runs any more is cancelled by its tag,
and whoever started it starts it again with the locations as they are then.
"""

# The JVM's objects have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false, reportOptionalCall=false
# pyright: reportCallIssue=false, reportOptionalMemberAccess=false

import logging
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statekeep.clock import Clock

logger = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_DRIVER_ALONE: Final = 1
_IDLE_POLLS: Final = 3
"""Polls in a row at which nothing of a job runs: Spark needs a moment to send tasks again."""


class StallGuard:
    """Watches the executors and jobs of one session for one job; on the commit thread's loop."""

    def __init__(self, spark: SparkSession, tag: str, clock: Clock) -> None:
        """Take what to watch.

        Args:
            spark: The session.
            tag: Carried by every Spark job of the stateful job.
            clock: For polling.
        """
        self._context = spark.sparkContext
        self._tag = tag
        self._clock = clock
        self._executors = self._alive()
        self._idle_polls: dict[int, int] = {}
        self._is_suspicious = False

    async def watch(self) -> None:
        """Poll until cancelled; each poll is a few look-ups in the driver's own memory."""
        while True:
            await self._clock.sleep(_POLL_S)
            try:
                self.poll()
            except (Py4JError, PySparkException, OSError) as exc:
                logger.warning("executors could not be looked at: error=%s", exc)

    def poll(self) -> None:
        """Look once; cancel the tagged jobs if one of them has stalled after a loss."""
        alive = self._alive()
        if self._executors - alive:
            logger.warning("executors lost: %s", ",".join(sorted(self._executors - alive)))
            self._is_suspicious = True
            self._idle_polls.clear()
        if alive - self._executors:
            logger.info(
                "executors added, they get tasks when another one goes or the query starts again: %s",
                ",".join(sorted(alive - self._executors)),
            )
        self._executors = alive
        if not self._is_suspicious:
            return
        if len(alive) <= _DRIVER_ALONE:
            # There is nowhere else to run: the cluster manager may still give new executors.
            self._idle_polls.clear()
            return
        stalled = self._stalled_jobs()
        if stalled is None:
            self._is_suspicious = False
        elif stalled:
            logger.warning(
                "jobs wait for an executor that is gone, they run again: jobs=%s", stalled
            )
            self._context.cancelJobsWithTag(self._tag)
            self._idle_polls.clear()

    def _stalled_jobs(self) -> list[int] | None:
        """Return the jobs of which nothing has run for some polls; None when no job is active."""
        active = self._context.statusTracker().getActiveJobsIds()
        if not active:
            return None
        self._idle_polls = {
            job: self._idle_polls.get(job, 0) + 1 for job in active if not self._is_running(job)
        }
        return [job for job, polls in self._idle_polls.items() if polls >= _IDLE_POLLS]

    def _is_running(self, job: int) -> bool:
        tracker = self._context.statusTracker()
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else [])]
        return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)

    def _alive(self) -> frozenset[str]:
        status: Any = self._context._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001
        names = status.keySet().toSeq()
        return frozenset(str(names.apply(index)) for index in range(names.size()))

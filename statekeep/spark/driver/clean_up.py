"""Release what is no longer worth keeping, delete what only that reaches, trim the log (R8)."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView, usable_checkpoint
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import CommitRecord, ReleaseRecord, UnpinRecord
from statekeep.clock import Clock
from statekeep.commit.clean_up_failures import CleanUpFailing, CleanUpFailures, is_damage
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.commit.retention import (
    ReachingCommits,
    closed_attempts,
    commits_in_reach,
    commits_to_release,
    expired_pins,
)
from statekeep.errors import CheckpointCorruptError, TaskFencedError
from statekeep.fault_points import fault_point
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import JobSpec

logger = logging.getLogger(__name__)

_TASKS_AT_ONCE: Final = 8
"""Enough to overlap waiting; a job may have hundreds of tasks, and each needs clients."""
_RUNS_A_LOOK: Final = 100
"""A look at all entries passes over the events of all reigns, which a long reign has many of."""


class CleanUp:
    """Runs after each commit, off its path, on the commit thread's loop; one run at a time.

    A run that fails or is cut off is made up for by the next one, also by the next driver: what
    is released or void stays in the log until its blobs are gone. Damage, such as a lost index of a
    pinned commit, stops the deletions of its own task only. They are made up for once it is
    mended: each run also takes what attempts have left that the log no longer names.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        partitions: int,
        factories: Mapping[BackendName, StateBackendFactory],
        writer: LogSession,
        checkpoints: CheckpointStore,
        executor: BlockingExecutor,
        clock: Clock,
        note: Note = no_note,
    ) -> None:
        self._spec = spec
        self._writer = writer
        self._checkpoints = checkpoints
        self._partitions = range(partitions)
        self._factories = factories
        self._executor = executor
        self._clock = clock
        self._note = note
        self._failures = CleanUpFailures(clock, note)
        self._running = asyncio.Lock()
        self._runs = 0
        """How many have ended well."""
        self.is_waiting = False
        """Whether a run is to begin once the one before it has ended: it does for all commits."""
        self._places = asyncio.Semaphore(_TASKS_AT_ONCE)

    async def run(self) -> None:
        """Release, delete, trim; a failure is a warning and is retried after the next commit."""
        self.is_waiting = True
        async with self._running:
            self.is_waiting = False
            try:
                await self._run()
            except TaskFencedError as exc:
                logger.warning("clean-up stopped, another driver has taken over: error=%s", exc)
            except Exception as exc:  # noqa: BLE001 - whatever a plug-in raises: the next one repeats it
                self._failures.failed(exc)

    @property
    def failing(self) -> CleanUpFailing | None:
        """As `CleanUpFailures.failing`."""
        return self._failures.failing

    async def _run(self) -> None:
        view = self._writer.view
        now_ms = self._clock.time_ns() // 1_000_000
        for name in expired_pins(view, now_ms):
            await self._writer.append(UnpinRecord(name=name))
        positions = commits_to_release(view, self._spec.config.checkpoint, now_ms)
        if positions:
            # A fenced driver finds out here, before anything is deleted.
            fault_point("release_record.before")
            await self._writer.append(ReleaseRecord(positions=positions))
            fault_point("release_record.after")
        closed = closed_attempts(view)
        if not closed:
            return
        damage = await self._clean_up_tasks(view, closed)
        for epoch, attempt in {*closed, *await self._late_attempts()}:
            if (epoch, attempt) <= closed[-1]:
                await self._checkpoints.delete(f"{epoch}-{attempt}")
        view.forget_collected(closed)
        fault_point("log_trim.before")
        await self._writer.trim(view.lowest_needed)
        self._runs += 1
        logger.info("clean-up done: attempts=%d released=%d", len(closed), len(positions))
        self._note("clean-up", attempts=len(closed), released=len(positions))
        if damage is None:
            self._failures.ended_well()
        else:
            self._failures.failed(damage)

    async def _late_attempts(self) -> Collection[tuple[int, int]]:
        """Return all attempts with entries: late writers leave some that nobody names any more.

        In the first run and then now and again; none in the others.
        """
        if self._runs % _RUNS_A_LOOK:
            return ()
        return await self._checkpoints.attempts()

    async def _clean_up_tasks(
        self, view: LogView, closed: Sequence[tuple[int, int]]
    ) -> ExceptionGroup[Exception] | None:
        """Clean up every task, whatever goes wrong with others; return what is damaged, if anything.

        Raises:
            ExceptionGroup: What went wrong, if some of it is no damage.
        """
        # All of one view: commits may come while the first tasks are cleaned up.
        newest = view.last_commit
        reaching = await commits_in_reach(view, closed, self._writer.read_commits)
        sweeps = [_TaskSweep.of(reaching, newest, partition) for partition in self._partitions]
        done = await asyncio.gather(
            *(self._clean_up_task(p, sweeps[p], closed) for p in self._partitions),
            return_exceptions=True,
        )
        errors = [error for error in done if error is not None]
        if not errors:
            return None
        damage = [e for e in errors if isinstance(e, Exception) and is_damage(e)]
        if len(damage) == len(errors):
            return ExceptionGroup("tasks have damaged backups", damage)
        raise BaseExceptionGroup("tasks could not be cleaned up", errors)

    async def _clean_up_task(
        self, partition: int, sweep: "_TaskSweep", closed: Sequence[tuple[int, int]]
    ) -> None:
        """Let the backends of one task delete; nothing of them is kept open between runs."""
        if sweep.damage is not None:
            raise sweep.damage
        async with self._places:
            pipeline = TaskCommitPipeline(
                self._spec.task(partition),
                {STATE_STORE: self._spec.config.store(STATE_STORE)},
                self._factories,
                executor=self._executor,
                clock=self._clock,
            )
            if sweep.newest is not None:
                pipeline.leave_out(sweep.newest)
            try:
                await pipeline.clean_up(sweep.retained, closed)
            finally:
                await pipeline.close()


@dataclass(frozen=True, slots=True)
class _TaskSweep:
    """What a view of the log says of one task."""

    retained: Sequence[CheckpointV2] = ()
    """Those in reach of what is closed."""
    newest: CheckpointV2 | None = None
    damage: CheckpointCorruptError | None = None
    """Why nothing can be said."""

    @classmethod
    def of(
        cls, reaching: ReachingCommits, newest: CommitRecord | None, partition: int
    ) -> "_TaskSweep":
        name = task_name(partition)
        try:
            return cls(
                reaching.checkpoints(name),
                None if newest is None else usable_checkpoint(newest, name, reaching.bad_markers),
            )
        except CheckpointCorruptError as exc:
            return cls(damage=exc)

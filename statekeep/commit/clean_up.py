"""What comes after a commit, off its path: release, deletion of what only that reaches, trim (R8)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.checkpoint.checkpoints import CheckpointV2, TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView, checkpoint_of, usable_checkpoint
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import CommitRecord, ReleaseRecord, UnpinRecord
from statekeep.clock import Clock
from statekeep.commit.clean_up_failures import CleanUpFailing, CleanUpFailures, is_damage
from statekeep.commit.clean_up_pace import CleanUpPace
from statekeep.commit.retention import (
    ReachingCommits,
    closed_attempts,
    commits_in_reach,
    commits_to_release,
    expired_pins,
)
from statekeep.config.model import CheckpointSettings
from statekeep.errors import CheckpointCorruptError, TaskFencedError
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_RUNS_A_LOOK: Final = 100
"""A look at all entries passes over the events of all reigns, which a long reign has many of."""

Attempts = Sequence[tuple[int, int]]
"""(epoch, attempt) of each, sorted."""


@dataclass(frozen=True, slots=True)
class TaskSweep:
    """What a view of the log says of one task."""

    task: TaskName
    closed: Attempts
    """Released or void: what only they reach is deleted."""
    retained: Sequence[CheckpointV2] = ()
    """Those in reach of what is closed."""
    newest: CheckpointV2 | None = None
    damage: CheckpointCorruptError | None = None
    """Why nothing can be said."""

    @classmethod
    def of(
        cls,
        task: TaskName,
        closed: Attempts,
        reaching: ReachingCommits,
        newest: CommitRecord | None,
    ) -> "TaskSweep":
        """Look at one task."""
        try:
            return cls(
                task,
                closed,
                reaching.checkpoints(task),
                None if newest is None else usable_checkpoint(newest, task, reaching.bad_markers),
            )
        except CheckpointCorruptError as exc:
            return cls(task, closed, damage=exc)


async def drop_nothing() -> None:
    """Drop no local versions: others do."""


class CleanUp:
    """Runs after commits on the event loop that makes them; one run at a time.

    Local versions are dropped after each commit. What costs requests is done at most once in
    ``checkpoint.clean.up.ms``, for the tasks of which a released commit held something else than the
    newest one does. It is done for all tasks where an attempt was void, in the first run, and now and
    then.

    A release record comes before any deletion: it fails for an owner that was fenced, who then
    deletes nothing. A run that fails or is cut off is made up for by the next one, also by the next
    owner: what is released or void stays in the log until its blobs are gone. Damage, such as a lost
    index of a pinned commit, stops the deletions of its own task only. They are made up for once it
    is mended: each run also takes what attempts have left that the log no longer names.
    """

    def __init__(
        self,
        log: LogSession,
        tasks: Sequence[TaskName],
        delete: Callable[[TaskSweep], Awaitable[bool]],
        retention: CheckpointSettings,
        clock: Clock,
        *,
        checkpoints: CheckpointStore | None = None,
        drop_versions: Callable[[], Awaitable[None]] = drop_nothing,
        trim_after: int = 0,
        on_fenced: Callable[[TaskFencedError], None] = lambda _: None,
        note: Note = no_note,
        subject: str = "",
    ) -> None:
        """Take what a run needs.

        Args:
            log: Says what is retained and what is closed.
            tasks: Of the log.
            delete: Deletes in the backends, for one task; False if it left one out.
            retention: Which commits stay.
            clock: For their age.
            checkpoints: Has an entry of each task for each attempt; None: there are none.
            drop_versions: Removes local versions that recovery does not need.
            trim_after: Records that may be dropped before a trim is worth its calls; 0: after each run
                that had something to delete.
            on_fenced: Told when another owner has taken over.
            note: Told of every run that had something to delete.
            subject: For logs: whose clean-up it is, as ``key=value``.
        """
        self._log = log
        self._tasks = tasks
        self._delete = delete
        self._retention = retention
        self._clock = clock
        self._checkpoints = checkpoints
        self._drop_versions = drop_versions
        self._trim_after = trim_after
        self._on_fenced = on_fenced
        self._note = note
        self._subject = subject
        self._failures = CleanUpFailures(clock, note, subject=subject)
        self._pace = CleanUpPace(clock, retention.clean_up_ms)
        self._to_sweep = set(tasks)
        """Those that may have something to delete."""
        self._is_forced = False
        """Whether the next run is made whether or not it is time."""
        self._runs: set[asyncio.Task[None]] = set()
        """At most two: one that runs and one that waits for it."""
        self._running = asyncio.Lock()
        self._ended_well = 0
        """How many runs."""
        self._trimmed_to = 0
        self._is_complete = True
        """Whether every backend took part in the run."""
        self.is_waiting = False
        """Whether a run is to begin once the one before it has ended: it does for all commits."""

    @property
    def failing(self) -> CleanUpFailing | None:
        """As `CleanUpFailures.failing`."""
        return self._failures.failing

    def start(self, *, is_forced: bool = False) -> None:
        """Begin a run, unless one waits for its turn already.

        Args:
            is_forced: Delete whether or not it is time.
        """
        self._is_forced |= is_forced
        if not self.is_waiting:
            self.is_waiting = True
            run = asyncio.create_task(self._run_in_turn(), name=f"clean-up {self._subject}")
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)

    async def wait(self) -> None:
        """Wait for the runs that were started."""
        if runs := set(self._runs):
            await asyncio.wait(runs)

    async def close(self, timeout_s: float) -> None:
        """Let what runs end, at most so long; what is cut off is made up for after the next start."""
        if runs := list(self._runs):
            await asyncio.wait(runs, timeout=timeout_s)
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)

    async def run(self) -> None:
        """Release, delete, trim; a failure is reported and is made up for after the next commit."""
        self._is_forced = self.is_waiting = True
        await self._run_in_turn()

    async def _run_in_turn(self) -> None:
        async with self._running:
            self.is_waiting = False
            is_due = self._is_forced or self._pace.is_due or self._log.is_trim_wanted
            self._is_forced = False
            try:
                if is_due:
                    self._pace.begin()
                    await self._run()
                    self._pace.end()
                else:
                    await self._drop_versions()
            except TaskFencedError as exc:
                logger.warning("clean-up stopped, another owner has taken over: error=%s", exc)
                self._on_fenced(exc)
            except Exception as exc:  # noqa: BLE001 - whatever a plug-in raises: the next one repeats it
                self._failures.failed(exc)

    async def _run(self) -> None:
        released = await self._release()
        await self._drop_versions()  # first: a backend that is away must not fill the disk
        view = self._log.view
        closed = closed_attempts(view)
        self._is_complete = True
        if view.orphans or self._is_look_due:
            self._to_sweep.update(self._tasks)
        damage = await self._delete_all(view, closed) if closed else None
        await self._delete_entries(closed)
        # A backend deletes what was made up to the newest: that one stands for all it was not asked for.
        view.forget_collected(closed if self._is_complete else closed[:-1])
        await self._trim(has_closed=bool(closed))
        if not closed:
            return
        self._ended_well += 1
        logger.info(
            "clean-up done: %s attempts=%d released=%d", self._subject, len(closed), released
        )
        self._note("clean-up", attempts=len(closed), released=released)
        if damage is None:
            self._failures.ended_well()
        else:
            self._failures.failed(damage)

    async def _release(self) -> int:
        """Release what is no longer worth keeping; return how many commits that were."""
        now_ms = self._clock.time_ns() // 1_000_000
        for name in expired_pins(self._log.view, now_ms):
            await self._log.append(UnpinRecord(name=name))
        positions = commits_to_release(self._log.view, self._retention, now_ms)
        if positions:
            self._to_sweep.update(self._changed_since(positions))
            # An owner that was fenced finds out here, before anything is deleted.
            fault_point("release.before")
            await self._log.append(ReleaseRecord(positions=positions))
            fault_point("release.after")
        return len(positions)

    def _changed_since(self, positions: Sequence[int]) -> Sequence[TaskName]:
        """Return the tasks of which a commit names other backups than the newest one.

        All of them where the record of one is no longer in memory.
        """
        view = self._log.view
        newest = view.last_commit
        older = [view.commit_records.get(position) for position in positions]
        if newest is None or None in older:
            return self._tasks
        records = [record for record in older if record is not None]
        return [task for task in self._tasks if any(_is_other(r, newest, task) for r in records)]

    async def _delete_all(self, view: LogView, closed: Attempts) -> Exception | None:
        """Clean up the tasks that may have something; return what is damaged, if anything.

        Whatever goes wrong with one keeps no other from it, and is tried again in the next run. Damage
        must not stop the trim of the log: what it stops from being deleted is found by a later run,
        once it is mended.

        Raises:
            ExceptionGroup: What went wrong, if some of it is no damage.
        """
        # All of one view: commits may come while the first tasks are cleaned up.
        newest = view.last_commit
        try:
            reaching = await commits_in_reach(view, closed, self._log.read_commits)
        except CheckpointCorruptError as exc:
            return exc
        sweeps = [TaskSweep.of(t, closed, reaching, newest) for t in sorted(self._to_sweep)]
        done = await asyncio.gather(*map(self._clean_up_task, sweeps), return_exceptions=True)
        errors = [error for error in done if error is not None]
        if not errors:
            return None
        damage = [e for e in errors if isinstance(e, Exception) and is_damage(e)]
        if len(damage) == len(errors):
            return ExceptionGroup("tasks have damaged backups", damage)
        raise BaseExceptionGroup("tasks could not be cleaned up", errors)

    async def _clean_up_task(self, sweep: TaskSweep) -> None:
        if sweep.damage is not None:
            raise sweep.damage
        if await self._delete(sweep):
            self._to_sweep.discard(sweep.task)
        else:
            self._is_complete = False

    async def _delete_entries(self, closed: Attempts) -> None:
        """Delete the tasks' entries of attempts, and those of late writers that nobody names any more."""
        if self._checkpoints is None or not closed:
            return
        late = await self._checkpoints.attempts() if self._is_look_due else ()
        await self._checkpoints.delete_all({*closed, *(a for a in late if a <= closed[-1])})

    @property
    def _is_look_due(self) -> bool:
        return self._ended_well % _RUNS_A_LOOK == 0

    async def _trim(self, *, has_closed: bool) -> None:
        floor = self._log.view.lowest_needed
        count = floor - self._trimmed_to
        if (has_closed and count >= self._trim_after) or (count > 0 and self._log.is_trim_wanted):
            fault_point("trim.before")
            await self._log.trim(floor)
            self._trimmed_to = floor


def _is_other(older: CommitRecord, newest: CommitRecord, task: TaskName) -> bool:
    """Return whether two commits name different backups of a task, as far as can be told."""
    if older.versions.get(task) != newest.versions.get(task):
        return True
    try:
        found = [checkpoint_of(commit, task) for commit in (older, newest)]
    except CheckpointCorruptError:
        return True
    markers = [None if one is None else one.state_markers for one in found]
    return markers[0] != markers[1]

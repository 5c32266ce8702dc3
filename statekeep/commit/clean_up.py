"""What comes after a commit, off its path: release, deletion of what only that reaches, trim (R8)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from statekeep.checkpoint.checkpoints import CheckpointV2, TaskName
from statekeep.checkpoint.error_summary import reasons_of, summary_of
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import (
    LogView,
    bad_markers_of,
    checkpoint_of,
    usable_checkpoint,
)
from statekeep.checkpoint.records import CommitRecord, KeptRecord, ReleaseRecord, UnpinRecord
from statekeep.clock import Clock
from statekeep.commit.retention import (
    ReachingCommits,
    closed_attempts,
    commits_in_reach,
    commits_to_release,
    expired_pins,
)
from statekeep.config.job_settings import CheckpointSettings
from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    StateBackupError,
    TaskFencedError,
)
from statekeep.events import CleanUpDone, CleanUpFailing, Report, report_nothing
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_FAR_BEHIND: Final = 1_000
"""Records that are kept for a pinned commit alone before it is written again: a start reads them all."""

_MOST_CLOSED: Final = 250
"""Closed attempts that memory and log keep while they cannot be deleted; of more, only the newest."""

_RUNS_A_CHECK: Final = 100
"""Listing all entries lists the events of all sessions too, and a long session has many of them."""

Attempts = Sequence[tuple[int, int]]
"""(epoch, attempt) of each, sorted."""


@dataclass(frozen=True, slots=True)
class TaskSweep:
    """What a view of the log says of one task."""

    task: TaskName
    closed: Attempts
    """Released or aborted: what only they reach is deleted."""
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
    newest one does. It is done for all tasks where an attempt was aborted, in the first run, and now and
    then.

    A release record comes before any deletion: it fails for an owner that was fenced, who then
    deletes nothing. A run that fails or is cut off is made up for by the next one, also by the next
    owner: each takes what all attempts up to the newest closed one have left, also of those that the log
    no longer names. Damage, such as a lost index of a pinned commit, stops the deletions of its own task
    only. They are made up for once it is mended.
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
        drop_pins: Callable[[], Awaitable[object]] = drop_nothing,
        trim_after: int = 0,
        on_fenced: Callable[[TaskFencedError], None] = lambda _: None,
        report: Report = report_nothing,
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
            drop_pins: Drops the pins of a clone that it needs no longer: see `OriginPins`.
            trim_after: Records that may be dropped before a trim is worth its calls; 0: after each run
                that had something to delete.
            on_fenced: Called when another owner has taken over.
            report: Gets every run that had something to delete, and found no damage.
            subject: For logs: whose clean-up it is, as ``key=value``.
        """
        self._log = log
        self._tasks = tasks
        self._delete = delete
        self._retention = retention
        self._clock = clock
        self._checkpoints = checkpoints
        self._drop_versions = drop_versions
        self._drop_pins = drop_pins
        self._trim_after = trim_after
        self._on_fenced = on_fenced
        self._report = report
        self._subject = subject
        self._failures = CleanUpFailures(clock, report, subject=subject)
        self._interval_ns = retention.clean_up_ms * 1_000_000
        self._next_ns = clock.monotonic_ns()
        """When the next run is due: each costs requests for every task that has changed."""
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
        """Release, delete, trim; a failure is reported, and made up for after the next commit or when due."""
        self._is_forced = self.is_waiting = True
        await self._run_in_turn()

    async def _run_in_turn(self) -> None:
        async with self._running:
            self.is_waiting = False
            began_ns = self._clock.monotonic_ns()
            is_due = self._is_forced or began_ns >= self._next_ns or self._log.is_trim_wanted
            self._is_forced = False
            try:
                if is_due:
                    if self.failing is not None:  # a repeat that fails too waits for its time
                        self._next_ns = began_ns + self._interval_ns
                    await self._run()
                    self._next_ns = began_ns + self._interval_ns
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
        if view.orphans or self._is_check_due:
            self._to_sweep.update(self._tasks)
        if closed and not released:
            # The release of an earlier run may have had no answer, and was not looked for since.
            await self._log.check_fence()
        try:
            damage = await self._delete_all(view, closed) if closed else None
        except ExceptionGroup:
            if len(closed) > _MOST_CLOSED:
                self._is_complete = False
                await self._forget(closed)
            raise
        await self._forget(closed)
        await self._drop_pins()
        if not closed:
            return
        self._ended_well += 1
        logger.info(
            "clean-up done: %s attempts=%d released=%d", self._subject, len(closed), released
        )
        if damage is None:
            self._report(CleanUpDone(len(closed), released))
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

    async def _forget(self, closed: Attempts) -> None:
        """Drop closed attempts from memory and log: all but the newest where a deletion is still to come.

        A backend deletes what was made up to the newest: that one stands for all it was not asked for.
        """
        await self._delete_entries(closed)
        self._log.view.forget_collected(closed if self._is_complete else closed[:-1])
        await self._trim(has_closed=bool(closed))

    async def _delete_entries(self, closed: Attempts) -> None:
        """Delete the tasks' entries of attempts, and those of late writers, which no record names any more."""
        if self._checkpoints is None or not closed:
            return
        late = await self._checkpoints.attempts() if self._is_check_due else ()
        await self._checkpoints.delete_all({*closed, *(a for a in late if a <= closed[-1])})

    @property
    def _is_check_due(self) -> bool:
        return self._ended_well % _RUNS_A_CHECK == 0

    async def _trim(self, *, has_closed: bool) -> None:
        if has_closed:
            await self._keep_pinned()
        floor = self._log.view.lowest_needed
        count = floor - self._trimmed_to
        if (has_closed and count >= self._trim_after) or (count > 0 and self._log.is_trim_wanted):
            fault_point("trim.before")
            await self._log.trim(floor)
            self._trimmed_to = floor

    async def _keep_pinned(self) -> None:
        """Write pinned commits again where the log is needed anyway, if much stands between."""
        view = self._log.view
        for position in view.pinned_behind(_FAR_BEHIND):
            try:
                commit = (await self._log.read_commits([position]))[position]
                bad_markers = bad_markers_of(commit, view.bad_markers)
            except CheckpointCorruptError as exc:
                logger.warning(
                    "a pinned commit cannot be read, the log is not trimmed before it: %s error=%s",
                    self._subject,
                    exc,
                )
                continue
            pins = view.pins_of(position)
            await self._log.append(
                KeptRecord(
                    position=position,
                    commit=commit,
                    pins=pins,
                    bad_markers=bad_markers,
                    clones=view.clones_of(position),
                )
            )


def _is_other(older: CommitRecord, newest: CommitRecord, task: TaskName) -> bool:
    """Return whether two commits name different backups of a task, as far as is known."""
    if older.versions.get(task) != newest.versions.get(task):
        return True
    try:
        found = [checkpoint_of(commit, task) for commit in (older, newest)]
    except CheckpointCorruptError:
        return True
    markers = [None if one is None else one.state_markers for one in found]
    return markers[0] != markers[1]


_MINUTE_NS: Final = 60 * 1_000_000_000
_LONG_NS: Final = 60 * _MINUTE_NS
"""An outage of minutes is made up for by the next clean-up; one of hours fills a store."""
_LONGEST_DISTANCE_NS: Final = 24 * 60 * _MINUTE_NS
_MOST_REASONS: Final = 8
"""Of one clean-up: hundreds of tasks may fail for one reason."""


class CleanUpFailures:
    """Reports a clean-up that fails, at growing distances for as long as it does.

    It fails again with each run. The first failure is a warning, as are those one minute later, two
    minutes after that, and so on. From an hour on they are errors and events.
    """

    def __init__(self, clock: Clock, report: Report, *, subject: str = "") -> None:
        """Start with none.

        Args:
            clock: For durations.
            report: Gets a failure that lasts.
            subject: For logs: whose clean-up it is, as ``key=value``.
        """
        self._clock = clock
        self._report = report
        self._subject = f"{subject} " if subject else ""
        self._since_ns: int | None = None
        self._error = ""
        self._next_ns = 0
        self._distance_ns = _MINUTE_NS
        self._is_long = False

    @property
    def failing(self) -> CleanUpFailing | None:
        """Since when clean-up fails, and why; None if the newest one ended well."""
        if self._since_ns is None:
            return None
        elapsed_ns = self._clock.monotonic_ns() - self._since_ns
        return CleanUpFailing(elapsed_ns // _MINUTE_NS, self._error)

    def ended_well(self) -> None:
        """Record that nothing is left to be deleted."""
        self._since_ns = None

    def failed(self, error: Exception) -> None:
        """Record that something is left, and report it if it is time to."""
        now_ns = self._clock.monotonic_ns()
        if self._since_ns is None:
            self._since_ns = self._next_ns = now_ns
            self._distance_ns, self._is_long = _MINUTE_NS, False
        self._error = summary_of(_first_of(error))
        is_long = now_ns - self._since_ns >= _LONG_NS
        if now_ns < self._next_ns and is_long == self._is_long:
            return
        self._is_long = is_long
        self._next_ns = now_ns + self._distance_ns
        self._distance_ns = min(2 * self._distance_ns, _LONGEST_DISTANCE_NS)
        if is_long:
            self._alarm()
        else:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        reasons = list(dict.fromkeys(reasons_of(error)))
        is_ours = isinstance(error, StateBackupError | OSError | ExceptionGroup)
        for reason in reasons[:_MOST_REASONS]:
            logger.warning(
                "clean-up failed and will be repeated: %serror=%s",
                self._subject,
                reason,
                exc_info=None if is_ours else error,
            )
        if len(reasons) > _MOST_REASONS:
            logger.warning(
                "clean-up failed for more reasons: count=%d", len(reasons) - _MOST_REASONS
            )

    def _alarm(self) -> None:
        failing = self.failing
        assert failing is not None  # noqa: S101 - it has just failed
        logger.error(
            "old backups are not deleted and fill the backend: %sfailing_minutes=%d error=%s "
            "(an outage: the job needs the backend, and permission to list and to delete there; a lost or "
            "damaged index: `statekeep verify COMMIT` shows which commit has it, `statekeep checkpoints "
            "unpin` releases it)",
            self._subject,
            failing.minutes,
            failing.error,
        )
        self._report(CleanUpFailing(failing.minutes, failing.error))


def is_damage(error: BaseException) -> bool:
    """Return whether an error, or each of a group, is of something that is lost or cannot be read.

    The clean-up of what it belongs to fails until a person mends it; that of the rest need not.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_damage, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, BlobNotFoundError | CheckpointCorruptError)


def _first_of(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error

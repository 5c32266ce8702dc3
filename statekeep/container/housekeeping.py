"""What comes after a commit, off its critical path: release, clean-up, trim, old local versions."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import ReleaseRecord, UnpinRecord
from statekeep.clock import Clock
from statekeep.commit.clean_up_failures import CleanUpFailing, CleanUpFailures, is_damage
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.commit.retention import (
    closed_attempts,
    commits_in_reach,
    commits_to_release,
    expired_pins,
)
from statekeep.config.model import CheckpointSettings
from statekeep.errors import CheckpointCorruptError, TaskFencedError
from statekeep.fault_points import fault_point

_TRIM_AFTER: Final = 64
"""Records that may be dropped before a trim is worth its calls: about twenty commits."""


class Housekeeper:
    """Lets go of old commits of one task, one round at a time, in an asyncio task that it owns.

    A release record comes before any deletion: it fails for a container that was fenced, which
    then deletes nothing. What a failed round leaves behind the next one collects.
    """

    def __init__(
        self,
        task_name: TaskName,
        *,
        log: LogSession,
        pipeline: TaskCommitPipeline,
        retention: CheckpointSettings,
        clock: Clock,
        drop_versions: Callable[[], Awaitable[None]],
        on_fenced: Callable[[TaskFencedError], None],
        note: Note = no_note,
    ) -> None:
        """Take what a round needs.

        Args:
            task_name: Whose log it is.
            log: Says what is retained and what is closed.
            pipeline: Deletes in the backends.
            retention: Which commits stay.
            clock: For their age.
            drop_versions: Removes local versions that recovery does not need.
            on_fenced: Told when the release record is refused.
            note: Told of every round that had something to delete.
        """
        self._task_name = task_name
        self._log = log
        self._pipeline = pipeline
        self._retention = retention
        self._clock = clock
        self._drop_versions = drop_versions
        self._on_fenced = on_fenced
        self._note = note
        self._failures = CleanUpFailures(clock, note, subject=f"task={task_name}")
        self._round: asyncio.Task[None] | None = None
        self._trimmed_to = 0

    def start(self) -> None:
        """Begin a round unless one is running; the next commit begins another one anyway."""
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._run(), name=f"housekeeping {self._task_name}")

    async def wait(self) -> None:
        """Wait for the running round, if there is one."""
        if self._round is not None:
            await asyncio.wait({self._round})

    async def close(self) -> None:
        """End the running round. Idempotent."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})

    @property
    def failing(self) -> CleanUpFailing | None:
        """As `CleanUpFailures.failing`."""
        return self._failures.failing

    async def _run(self) -> None:
        try:
            released = await self._release()
            await self._drop_versions()  # first: a backend that is away must not fill the disk
            closed = closed_attempts(self._log.view)
            damage = await self._clean_up(closed)
            self._log.view.forget_collected(closed)
            await self._trim()
            if closed:
                self._note("clean-up", attempts=len(closed), released=released)
            if damage is not None:
                self._failures.failed(damage)
            elif closed:
                self._failures.ended_well()
        except TaskFencedError as exc:
            self._on_fenced(exc)
        except Exception as exc:  # noqa: BLE001 - whatever a plug-in raises: the next one repeats it
            self._failures.failed(exc)

    async def _clean_up(self, closed: Sequence[tuple[int, int]]) -> Exception | None:
        """Let the backends delete; return what is damaged: it must not stop the trim of the log.

        What it stops from being deleted is found by a later round, once it is mended.
        """
        if not closed:
            return None
        try:
            reaching = await commits_in_reach(self._log.view, closed, self._log.read_commits)
            await self._pipeline.clean_up(reaching.checkpoints(self._task_name), closed)
        except (CheckpointCorruptError, ExceptionGroup) as exc:
            if not is_damage(exc):
                raise
            return exc
        return None

    async def _release(self) -> int:
        """Release what is no longer worth keeping; return how many commits that were."""
        now_ms = self._clock.time_ns() // 1_000_000
        for name in expired_pins(self._log.view, now_ms):
            await self._log.append(UnpinRecord(name=name))
        positions = commits_to_release(self._log.view, self._retention, now_ms)
        if positions:
            fault_point("release.before")
            await self._log.append(ReleaseRecord(positions=positions))
            fault_point("release.after")
        return len(positions)

    async def _trim(self) -> None:
        floor = self._log.view.lowest_needed
        count = floor - self._trimmed_to
        if count >= _TRIM_AFTER or (count > 0 and self._log.is_trim_wanted):
            fault_point("trim.before")
            await self._log.trim(floor)
            self._trimmed_to = floor

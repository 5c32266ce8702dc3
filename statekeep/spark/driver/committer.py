"""Job-wide commits: attempt record, hand-over, gathering of the tasks' checkpoints, commit record."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import (
    AttemptRecord,
    CommitRecord,
    JobIdentity,
    QueryState,
    VoidRecord,
)
from statekeep.checkpoint.serde import FinishedTask
from statekeep.clock import Clock
from statekeep.commit.gate import CommitGate, Decision
from statekeep.errors import CommitFailedError, StateBackupError, TaskFencedError
from statekeep.fault_points import fault_point
from statekeep.spark.driver.commit_records import (
    CommitRecords,
    FindOutdated,
    attempt_record,
    none_outdated,
)
from statekeep.spark.driver.commit_summary import CommitSummary
from statekeep.spark.driver.gathering import GatheredTasks, gather
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan

logger = logging.getLogger(__name__)

_NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class _Attempt:
    plan: HandOverPlan
    all_versions: Mapping[int, str]
    began_ns: int
    follower: asyncio.Task[None] | None = None
    bytes_uploaded: int = 0


class Committer:
    """Runs at most one commit at a time; every coroutine on the commit thread's loop.

    The batch thread asks `prepare` before each batch; what it gets back rides on the process job,
    whose answers it reports by `handed_over`. Idle streams and the end of a query do the same by a
    job of its own. An attempt ends exactly once, by a commit or a void record: both are written
    under one lock, by whoever finds the attempt still open.
    """

    def __init__(
        self,
        *,
        writer: LogSession,
        checkpoints: CheckpointStore,
        gate: CommitGate,
        clock: Clock,
        identity: JobIdentity,
        query_state: Callable[[int], Awaitable[QueryState]],
        on_commit: Callable[[CommitSummary], None],
        required_backends: Collection[str] = (),
        optional_backends: Collection[str] = (),
        find_outdated: FindOutdated = none_outdated,
        note: Note = no_note,
    ) -> None:
        """Wire the committer.

        Args:
            writer: The job log, taken over by this driver.
            checkpoints: Where containers put each task's entry.
            gate: Decides whether a commit may start.
            clock: For delays and polling.
            identity: What the commit record says of the job.
            query_state: Reads the query's files for the record of a batch.
            on_commit: Told of every commit, on the loop.
            required_backends: Names of the backends that every task must be in: a task that one of
                them lacks uploads again, though unchanged.
            optional_backends: Names of the others.
            find_outdated: Asked at each commit which backups a rotation of keys has left behind: those
                tasks upload again too.
            note: Told of every upload and of void attempts, on the loop.
        """
        self._writer = writer
        self._checkpoints = checkpoints
        self._gate = gate
        self._clock = clock
        self._records = CommitRecords(
            writer,
            identity,
            query_state,
            required_backends,
            optional_backends,
            find_outdated=find_outdated,
        )
        self._on_commit = on_commit
        self._note = note
        self._attempts = 0
        self._open: _Attempt | None = None
        self._ending = asyncio.Lock()
        self._fenced: TaskFencedError | None = None

    @property
    def committed_batch(self) -> int:
        """C: the batch of the newest commit; -1 before the first."""
        commit = self._writer.view.last_commit
        return -1 if commit is None else commit.batch

    @property
    def open_batch(self) -> int | None:
        """The batch of the open attempt, None if none is open."""
        return None if self._open is None else self._open.plan.batch

    @property
    def open_plan(self) -> HandOverPlan | None:
        """The plan of the open attempt once its tasks have handed over, else None.

        Handing it over again is safe: it makes up for containers that died meanwhile.
        """
        attempt = self._open
        return None if attempt is None or attempt.follower is None else attempt.plan

    @property
    def final_error(self) -> CommitFailedError | None:
        """The failure that used up the tolerance; `prepare` raises it."""
        return self._gate.final_error

    def is_due(self) -> bool:
        """Whether a commit should be asked for now."""
        return self._gate.is_due(self._clock.monotonic_ns())

    async def prepare(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> HandOverPlan | None:
        """Ask the gate for a commit of ``batch``; begin its attempt if it may start.

        Returns None where there is nothing to hand over now. Blocks (as a coroutine) where the
        gate says that processing must wait for the open commit.

        Args:
            batch: The newest batch whose ``commits/<batch>`` is there.
            versions: ``{partition: VersionId}`` after it.
            is_forced: Wait for an open commit and start this one whether it is due or not.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
        """
        self.raise_if_fenced()
        while batch > self.committed_batch:
            now = self._clock.monotonic_ns()
            if not (is_forced or self._gate.is_due(now)):
                return None
            match self._gate.request(now, is_forced=is_forced):
                case Decision.START:
                    return await self._begin(batch, versions)
                case Decision.SKIP:
                    return None
                case Decision.BLOCK:
                    await self._wait_for_open(self._gate.remaining_block_ns(now) / _NS_PER_S)
                    self.raise_if_fenced()
        return None

    async def handed_over(self, plan: HandOverPlan, errors: Mapping[int, str]) -> None:
        """Take note that the tasks have handed over; follow the attempt from now on.

        Args:
            plan: What `prepare` returned.
            errors: ``{partition: why}`` of tasks that could not hand over: the attempt is void. It
                counts as failed unless every reason is `VERSION_NOT_HERE`.
        """
        attempt = self._open
        if attempt is None or attempt.plan is not plan:
            return
        if errors:
            is_lost = {p: error.startswith(VERSION_NOT_HERE) for p, error in errors.items()}
            partition = min(errors, key=lambda p: (is_lost[p], p))
            reason = f"submit failed: task={task_name(partition)} {errors[partition]}"
            end = self._abandon if is_lost[partition] else self._fail
            await end(attempt, reason)
            return
        attempt.follower = asyncio.create_task(self._follow(attempt))
        attempt.follower.add_done_callback(_log_unexpected)

    async def settle(self, timeout_s: float) -> None:
        """Wait for the open attempt to end, for at most ``timeout_s``; then make it void."""
        if self._open is not None:
            await self._wait_for_open(timeout_s)
        self.raise_if_fenced()

    async def void_if_overdue(self) -> None:
        """Give the open attempt up once its time is over, or if nobody works on all of it.

        For an owner who is between two batches.
        """
        attempt = self._open
        if attempt is not None and (
            attempt.follower is None or self._gate.is_overdue(self._clock.monotonic_ns())
        ):
            await self._wait_for_open(0)

    async def void_if_lost(self, lost: Mapping[int, str]) -> None:
        """Make the open attempt void if it still has to upload a version that is lost.

        The commit stays due and is not counted as failed.
        """
        attempt = self._open
        if attempt is None:
            return
        for partition, version in lost.items():
            if version and attempt.plan.versions.get(partition) == version:
                await self._abandon(attempt, f"a version was lost: task={task_name(partition)}")
                return

    async def record_now(
        self, attempt_key: tuple[int, int], attempt: AttemptRecord, gathered: GatheredTasks
    ) -> CommitSummary:
        """Append the commit record of an attempt of an earlier driver: roll it forward (R5).

        Raises:
            CommitFailedError: A task's backup was found bad meanwhile.
        """
        versions = {partition_of(task): version for task, version in attempt.versions.items()}
        lacking = self._records.without_backup(versions, gathered.checkpoints.keys())
        if lacking:
            raise CommitFailedError(
                _found_bad(lacking), checkpoint_id=attempt.checkpoint_id, step="upload"
            )
        record = await self._records.build(
            attempt_key, attempt.batch, attempt.checkpoint_id, versions, gathered.checkpoints
        )
        fault_point("roll_forward.before")
        position = await self._writer.append(record)
        fault_point("roll_forward.after")
        return CommitSummary(
            attempt.checkpoint_id,
            attempt.batch,
            position,
            elapsed_ms=0,
            tasks_uploaded=len(gathered.checkpoints),
            bytes_uploaded=gathered.bytes_uploaded,
            was_rolled_forward=True,
            left_out=self._records.left_out(),
        )

    async def _begin(self, batch: int, versions: Mapping[int, str]) -> HandOverPlan:
        now_ns = self._clock.monotonic_ns()
        self._attempts += 1
        checkpoint_id = CheckpointId.at(self._clock.time_ns()).serialize()
        plan = await self._records.plan(self._attempts, checkpoint_id, batch, versions)
        fault_point("attempt_record.before")
        # Open from here on: a record whose append failed may be in the log all the same.
        self._gate.started(now_ns, checkpoint_id)
        self._open = _Attempt(plan, dict(versions), now_ns)
        await self._append(attempt_record(plan, versions))
        fault_point("attempt_record.after")
        return plan

    async def _append(self, record: AttemptRecord | VoidRecord | CommitRecord) -> int:
        try:
            return await self._writer.append(record)
        except TaskFencedError as exc:
            self._fenced = exc
            raise

    async def _follow(self, attempt: _Attempt) -> None:
        """Wait for the tasks' entries, then append the commit record."""
        try:
            gathered = await gather(
                attempt.plan, self._checkpoints, self._clock, on_finished=self._note_upload
            )
            await self._complete(attempt, gathered)
        except TaskFencedError as exc:
            self._fenced = exc
            self._open = None
        except StateBackupError as exc:
            await self._fail(attempt, str(exc))
        except (OSError, Py4JError) as exc:  # pyright: ignore[reportUnknownVariableType] # untyped
            await self._fail(attempt, _described(exc))
        except Exception as exc:
            await self._fail(attempt, _described(exc))
            raise

    def _note_upload(self, plan: HandOverPlan, task: TaskName, done: FinishedTask) -> None:
        self._note(
            "task-uploaded",
            task=task,
            attempt=plan.attempt,
            batch=plan.batch,
            bytes=done.bytes_uploaded,
            elapsed_ms=done.elapsed_ms,
        )

    async def _complete(self, attempt: _Attempt, gathered: GatheredTasks) -> None:
        plan = attempt.plan
        attempt.bytes_uploaded = gathered.bytes_uploaded
        key = (plan.epoch, plan.attempt)
        lacking = self._records.without_backup(attempt.all_versions, gathered.checkpoints.keys())
        if lacking:
            await self._abandon(attempt, _found_bad(lacking))
            return
        record = await self._records.build(
            key, plan.batch, plan.checkpoint_id, attempt.all_versions, gathered.checkpoints
        )
        async with self._ending:
            if self._open is not attempt:
                return
            fault_point("commit_record.before")
            position = await self._append(record)
            fault_point("commit_record.after")
            self._open = None
        self._succeeded(attempt, position)

    def _succeeded(self, attempt: _Attempt, position: int) -> None:
        plan, now_ns = attempt.plan, self._clock.monotonic_ns()
        self._gate.succeeded(now_ns)
        elapsed_ms = (now_ns - attempt.began_ns) // 1_000_000
        tasks = len(plan.versions)
        logger.info(
            "commit is durable: checkpoint_id=%s batch=%d position=%d tasks=%d bytes=%d "
            "elapsed_ms=%d",
            plan.checkpoint_id,
            plan.batch,
            position,
            tasks,
            attempt.bytes_uploaded,
            elapsed_ms,
        )
        self._on_commit(
            CommitSummary(
                plan.checkpoint_id,
                plan.batch,
                position,
                elapsed_ms,
                tasks,
                bytes_uploaded=attempt.bytes_uploaded,
                left_out=self._records.left_out(),
            )
        )

    async def _wait_for_open(self, timeout_s: float) -> None:
        """Wait until no attempt is open; make it void when the time is over."""
        attempt = self._open
        if attempt is None:
            return
        if attempt.follower is None:
            # Its batch was interrupted, or its record may not have landed: nobody works on it all.
            await self._abandon(attempt, "it was not submitted")
            return
        await asyncio.wait([attempt.follower], timeout=timeout_s)
        if await self._make_void(attempt, "timed out"):
            self._gate.timed_out(self._clock.monotonic_ns())

    async def _fail(self, attempt: _Attempt, reason: str) -> None:
        if await self._make_void(attempt, reason):
            checkpoint_id = attempt.plan.checkpoint_id
            error = CommitFailedError(reason, checkpoint_id=checkpoint_id, step="upload")
            self._gate.failed(self._clock.monotonic_ns(), error)

    async def abandon(self, reason: str) -> None:
        """Make the open attempt void, if there is one; whoever waits for its end goes on.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        if self._open is not None:
            await self._abandon(self._open, reason)

    async def _abandon(self, attempt: _Attempt, reason: str) -> None:
        if await self._make_void(attempt, reason):
            self._gate.abandoned(self._clock.monotonic_ns())

    async def _make_void(self, attempt: _Attempt, reason: str) -> bool:
        """End an attempt without a commit; False if it has ended already, or has a commit.

        The answer to its commit record may have been lost: the void record settles whether that
        had landed, and then has no effect itself.
        """
        plan = attempt.plan
        async with self._ending:
            if self._open is not attempt:
                return False
            record = VoidRecord(attempt_epoch=plan.epoch, attempt=plan.attempt, reason=reason)
            fault_point("void_record.before")
            await self._append(record)
            self._open = None
        view = self._writer.view
        if view.is_committed(plan.epoch, plan.attempt):
            self._succeeded(attempt, view.last_commit_position)
            return False
        logger.warning("commit was aborted: checkpoint_id=%s reason=%s", plan.checkpoint_id, reason)
        self._note(
            "void", attempt_epoch=plan.epoch, attempt=plan.attempt, batch=plan.batch, reason=reason
        )
        follower = attempt.follower
        if follower is not None and follower is not asyncio.current_task():
            follower.cancel()
        return True

    def raise_if_fenced(self) -> None:
        """Raise what an append has found out already, if anything; asks nobody.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        if self._fenced is not None:
            raise self._fenced


def _found_bad(partitions: Sequence[int]) -> str:
    return f"a backup that was to be kept was found bad: task={task_name(min(partitions))}"


def _described(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


def _log_unexpected(follower: asyncio.Task[None]) -> None:
    if not follower.cancelled() and follower.exception() is not None:
        logger.error("the follower of a commit failed", exc_info=follower.exception())

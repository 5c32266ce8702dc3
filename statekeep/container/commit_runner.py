"""Runs the commits of one task: gate, sync stage, async stage, and the clean-up after it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from statekeep.backends.base import CommitContext, TaskIdentity
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import CheckpointV2, SystemStreamPartition
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import checkpoint_of, version_of
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.checkpoint.version_id import VersionId
from statekeep.clock import Clock
from statekeep.commit.gate import CommitGate, Decision
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.container.housekeeping import Housekeeper
from statekeep.container.task_commit import TaskCommit
from statekeep.container.task_log import commit_of_task, versions_of_task
from statekeep.errors import CommitFailedError, StateBackupError, TaskFencedError
from statekeep.fault_points import fault_point
from statekeep.stores.version import SealedVersion

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000

Seal = Callable[[], Awaitable[SealedVersion]]


class CommitRunner:
    """Brings the sealed versions of one task to a commit record, one at a time.

    The sync stage runs while the task awaits `request`; the async stage is one asyncio task that
    the runner owns. What fails there is kept in `last_error`, given to ``on_failure`` at once, and
    raised by a later `request` if it is not tolerated. Used on the container's event loop.
    """

    def __init__(
        self,
        task: TaskIdentity,
        *,
        log: LogSession,
        identity: JobIdentity,
        pipeline: TaskCommitPipeline,
        gate: CommitGate,
        housekeeper: Housekeeper,
        metrics: CommitMetrics,
        clock: Clock,
        on_failure: Callable[[Exception], None],
        note: Note = no_note,
    ) -> None:
        self._task = task
        self._note = note
        self._log = log
        self._identity = identity
        self._pipeline = pipeline
        self._gate = gate
        self._housekeeper = housekeeper
        self._metrics = metrics
        self._clock = clock
        self._on_failure = on_failure
        self._requesting = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None
        self._open: TaskCommit | None = None
        self._fence: TaskFencedError | None = None
        self._last_id: CheckpointId | None = None
        self._began_ns = 0
        self._bytes_uploaded = 0
        self.last_error: Exception | None = None
        """Why the newest commit failed; None after a success."""

    def is_due(self) -> bool:
        """Return whether `request` should be called now."""
        return self._fence is not None or self._gate.is_due(self._clock.monotonic_ns())

    def is_near(self) -> bool:
        """Return whether a commit is soon to be due."""
        return self._gate.is_near(self._clock.monotonic_ns())

    async def request(
        self,
        seal: Seal,
        input_offsets: Mapping[SystemStreamPartition, str],
        *,
        is_forced: bool = False,
    ) -> TaskCommit:
        """Ask the gate and, if it lets us, seal a version and begin its upload.

        Concurrent callers are served one after the other.

        Args:
            seal: Makes the version; awaited once, only if the commit starts.
            input_offsets: What the version has taken in.
            is_forced: Wait for an open commit instead of skipping this one.

        Raises:
            CommitFailedError: The tolerance for failures is used up, or sealing failed.
            TaskFencedError: Another container has taken over the task.
        """
        async with self._requesting:
            if await self._pass_gate(is_forced=is_forced) is Decision.SKIP:
                self._metrics.count("commits-skipped")
                return TaskCommit.skipped()
            return await self._start(seal, dict(input_offsets))

    def fence(self, error: TaskFencedError) -> None:
        """Take note that another container has taken over: `request` raises from now on."""
        self._fence = self.last_error = error

    async def wait(self) -> None:
        """Wait until no commit is open; raises what the newest one failed with."""
        if self._open is not None:
            await self._open.wait()

    async def finish(self, timeout_ms: int) -> None:
        """Wait for the open commit, at most so long; then make it void."""
        if self._open is not None and not self._open.done():
            await self._await_open(timeout_ms * _NS_PER_MS)

    async def _pass_gate(self, *, is_forced: bool) -> Decision:
        """Return START or SKIP; a BLOCK is waited out here."""
        began_ns = self._clock.monotonic_ns()
        has_blocked = False
        while True:
            if self._fence is not None:
                raise self._fence
            now_ns = self._clock.monotonic_ns()
            decision = self._gate.request(now_ns, is_forced=is_forced)
            if decision is not Decision.BLOCK:
                break
            has_blocked = True
            await self._await_open(self._gate.remaining_block_ns(now_ns))
        if has_blocked:
            self._metrics.time("commit-block-ns", self._clock.monotonic_ns() - began_ns)
        return decision

    async def _await_open(self, timeout_ns: int) -> None:
        """Wait until the open commit ends, or give it up when its time is over."""
        running = self._running
        if running is None:
            return
        timer = asyncio.ensure_future(self._clock.sleep(timeout_ns / _NS_PER_S))
        try:
            await asyncio.wait({running, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.wait({timer})
        # Also if it was cancelled from outside, as by the end of the event loop.
        if not running.done() or (self._open is not None and not self._open.done()):
            await self._give_up(running)

    async def _give_up(self, running: asyncio.Task[None]) -> None:
        """End the open commit and make it void, so that the next one may start."""
        running.cancel()
        await asyncio.wait({running})
        commit = self._open
        if commit is None or commit.done():
            return
        if await self._close_attempt("timeout"):
            self._finish_well(commit)
            return
        self._metrics.count("commits-timed-out")
        self._gate.timed_out(self._clock.monotonic_ns())
        error = CommitFailedError(
            f"the commit did not end in time: task={self._task.task_name}",
            checkpoint_id=str(commit.checkpoint_id),
            step="timeout",
        )
        self._tell(commit, error)

    async def _start(
        self, seal: Seal, input_offsets: Mapping[SystemStreamPartition, str]
    ) -> TaskCommit:
        """The sync stage: the task waits for no more than the seal."""
        began_ns = self._clock.monotonic_ns()
        checkpoint_id = self._next_checkpoint_id()
        self._metrics.count("commit-calls")
        self._metrics.count("flush-calls")
        try:
            version = await seal()
        except (StateBackupError, OSError) as exc:
            raise CommitFailedError(
                f"the local version could not be sealed: task={self._task.task_name}",
                checkpoint_id=checkpoint_id.serialize(),
                step="snapshot",
            ) from exc
        sealed_ns = self._clock.monotonic_ns()
        self._metrics.time("store-checkpoint-ns", sealed_ns - began_ns)
        self._gate.started(began_ns, checkpoint_id.serialize())
        self._began_ns, self._bytes_uploaded = began_ns, 0
        commit = self._open = TaskCommit(checkpoint_id)
        self._running = asyncio.create_task(
            self._run(commit, version, input_offsets, began_ns),
            name=f"commit {self._task.task_name} {checkpoint_id}",
        )
        self._metrics.gauge("last-commit-ns", self._clock.time_ns())
        self._metrics.time("commit-sync-ns", self._clock.monotonic_ns() - began_ns)
        return commit

    async def _run(
        self,
        commit: TaskCommit,
        version: SealedVersion,
        input_offsets: Mapping[SystemStreamPartition, str],
        began_ns: int,
    ) -> None:
        """The async stage: attempt record, uploads, commit record."""
        async_began_ns = self._clock.monotonic_ns()
        try:
            await self._make_durable(commit, version, input_offsets)
        except Exception as exc:  # noqa: BLE001 - kept for the next commit and told at once
            await self._fail(commit, exc)
            return
        self._finish_well(commit)
        now_ns = self._clock.monotonic_ns()
        self._metrics.time("commit-async-ns", now_ns - async_began_ns)
        self._metrics.time("commit-ns", now_ns - began_ns)

    async def _make_durable(
        self,
        commit: TaskCommit,
        version: SealedVersion,
        input_offsets: Mapping[SystemStreamPartition, str],
    ) -> None:
        checkpoint_id = commit.checkpoint_id
        if checkpoint_id is None:
            raise RuntimeError("a skipped commit has nothing to make durable")
        version_id = version.id
        fault_point("attempt.before")
        attempt = await self._log.begin_attempt(
            version_id.batch, checkpoint_id, versions_of_task(self._task, version_id)
        )
        fault_point("attempt.after")
        base, base_version = self._base()
        context = CommitContext(
            checkpoint_id=checkpoint_id,
            epoch=self._log.epoch,
            attempt=attempt,
            version=version,
            base=base,
            base_version=base_version,
            count_bytes=self._count_bytes,
        )
        began_ns = self._clock.monotonic_ns()
        checkpoint = await self._pipeline.commit(context, input_offsets)
        self._note(
            "task-uploaded",
            task=self._task.task_name,
            attempt=attempt,
            batch=version_id.batch,
            bytes=self._bytes_uploaded,
            elapsed_ms=(self._clock.monotonic_ns() - began_ns) // _NS_PER_MS,
        )
        fault_point("record.before")
        await self._log.append(
            commit_of_task(
                self._task, self._identity, (self._log.epoch, attempt), version_id, checkpoint
            )
        )
        fault_point("record.after")

    def _base(self) -> tuple[CheckpointV2 | None, VersionId | None]:
        """Return what a commit may build on: the current commit, without bad markers."""
        current = self._log.view.last_commit
        if current is None:
            return None, None
        name = self._task.task_name
        return self._log.view.usable_checkpoint(current, name), version_of(current, name)

    def _count_bytes(self, size: int) -> None:
        self._bytes_uploaded += size

    def _finish_well(self, commit: TaskCommit) -> None:
        now_ns = self._clock.monotonic_ns()
        self._gate.succeeded(now_ns)
        self.last_error = None
        self._metrics.gauge("last-async-commit-timestamp", self._clock.time_ns())
        record, checkpoint = self._last_commit()
        commit.succeed(checkpoint)
        self._note(
            "commit",
            batch=record.batch,
            checkpoint_id=record.checkpoint_id,
            position=self._log.view.last_commit_position,
            elapsed_ms=(now_ns - self._began_ns) // _NS_PER_MS,
            tasks_uploaded=1,
            bytes_uploaded=self._bytes_uploaded,
            was_rolled_forward=False,
            left_out=self._pipeline.left_out_of(checkpoint),
        )
        self._housekeeper.start()

    async def _fail(self, commit: TaskCommit, exc: Exception) -> None:
        """Close the attempt; what it uploaded is an orphan that clean-up collects."""
        self._metrics.count("commit-exceptions")
        if isinstance(exc, TaskFencedError):
            self._fence = exc
        elif await self._close_attempt("failed"):
            self._finish_well(commit)
            return
        failure = self._as_commit_failure(commit, exc)
        self._gate.failed(self._clock.monotonic_ns(), failure)
        self._tell(commit, exc if self._fence is exc else failure)

    async def _close_attempt(self, reason: str) -> bool:
        """Void the open attempt; True if it turned out to be committed.

        If the log does not answer, the next attempt does it before anything else.
        """
        try:
            return await self._log.close_attempt(reason)
        except TaskFencedError as exc:
            self._fence = exc
        except StateBackupError as exc:
            logger.warning(
                "attempt is not yet aborted, the next commit aborts it: task=%s error=%s",
                self._task.task_name,
                exc,
            )
        except Exception:  # of a plug-in: whoever waits for the commit has to be told all the same
            logger.exception(
                "the job log fails by an error that is not one of ours, the next commit voids the"
                " attempt: task=%s",
                self._task.task_name,
            )
        return False

    def _as_commit_failure(self, commit: TaskCommit, exc: Exception) -> CommitFailedError:
        """Return the failure as the gate keeps it, whatever was raised."""
        if isinstance(exc, CommitFailedError):
            return exc
        error = CommitFailedError(
            f"the commit record could not be written: task={self._task.task_name}",
            checkpoint_id=str(commit.checkpoint_id),
            step="record",
        )
        error.__cause__ = exc
        return error

    def _tell(self, commit: TaskCommit, error: Exception) -> None:
        """Make a failure known: to the commit's waiter, to the callback, to the next commit."""
        self.last_error = error
        commit.fail(error)
        try:
            self._on_failure(error)
        except Exception:  # a callback of the program must not end the commit's own task
            logger.exception("failure callback failed: task=%s", self._task.task_name)

    def _last_commit(self) -> tuple[CommitRecord, CheckpointV2]:
        current = self._log.view.last_commit
        checkpoint = None if current is None else checkpoint_of(current, self._task.task_name)
        if current is None or checkpoint is None:
            raise RuntimeError("the log has no commit after one succeeded")
        return current, checkpoint

    def _next_checkpoint_id(self) -> CheckpointId:
        """Return an id that no earlier commit of this runner has, whatever the clock does."""
        checkpoint_id = CheckpointId.at(self._clock.time_ns())
        last = self._last_id
        if last is not None and checkpoint_id <= last:
            checkpoint_id = CheckpointId(last.millis + 1, checkpoint_id.nanos)
        self._last_id = checkpoint_id
        return checkpoint_id

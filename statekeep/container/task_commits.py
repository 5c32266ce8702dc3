"""The commits of one task in plain Python: seal, upload beside the processing, record, clean up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self

import msgspec
from typing_extensions import override

from statekeep.backends.base import CommitContext, TaskIdentity
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    SystemStreamPartition,
)
from statekeep.checkpoint.error_summary import summary_of
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import checkpoint_of, version_of
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp
from statekeep.commit.committer import Attempt, CommitListener, Committer
from statekeep.commit.gate import CommitGate, Decision
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.commit.task_log import commit_of_task, versions_of_task
from statekeep.errors import CommitFailedError, RetriableError, StateBackupError, TaskFencedError
from statekeep.events import (
    CommitBegan,
    CommitFailed,
    CommitSummary,
    Report,
    StoresSealed,
    TaskUploaded,
    report_nothing,
)
from statekeep.stores.version import SealedVersion

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000

Seal = Callable[[], Awaitable[tuple[int, SealedVersion]]]
"""Makes the version of a commit, or finds that the committed one still holds; gives the number of the
commit too."""


class TaskCommit:
    """One commit of a task: skipped, or started and then durable or failed.

    Used on the container's event loop. Nothing happens to the commit itself when its waiter is
    cancelled, and a commit without a waiter is no leak.
    """

    def __init__(self, checkpoint_id: CheckpointId | None) -> None:
        self.checkpoint_id = checkpoint_id
        """Id of the commit; None if it was skipped."""
        self._ended = asyncio.Event()
        self._checkpoint: CheckpointV2 | None = None
        self._error: Exception | None = None

    @classmethod
    def skipped(cls) -> Self:
        """Return the answer to a wish that came too early; processing just goes on."""
        commit = cls(None)
        commit._ended.set()
        return commit

    @property
    def is_started(self) -> bool:
        """Whether a commit was begun; if not, it was skipped and is due again later."""
        return self.checkpoint_id is not None

    def done(self) -> bool:
        """Return whether it has ended: durable, failed, or skipped in the first place."""
        return self._ended.is_set()

    async def wait(self) -> CheckpointV2 | None:
        """Wait until the commit has ended and return its checkpoint; None if it was skipped.

        Raises:
            CommitFailedError: It is not durable; the commit before it is still current.
            TaskFencedError: Another container has taken over the task: stop, never restart.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._checkpoint

    def succeed(self, checkpoint: CheckpointV2) -> None:
        """Record that it is durable; called by the one who runs it."""
        self._checkpoint = checkpoint
        self._ended.set()

    def fail(self, error: Exception) -> None:
        """Record that it failed; called by the one who runs it."""
        self._error = error
        self._ended.set()


class TaskCommits(CommitListener):
    """Brings the sealed versions of one task to a commit record, one at a time.

    The sync stage runs while the task awaits `request`; the rest is the work of the `Committer`,
    beside the processing. What fails there is kept in `last_error`, given to ``on_failure`` at
    once, and raised by a later `request` if it is not tolerated. Used on the container's event loop.
    """

    def __init__(
        self,
        task: TaskIdentity,
        *,
        log: LogSession,
        identity: JobIdentity,
        pipeline: TaskStorageCommitManager,
        gate: CommitGate,
        clean_up: CleanUp,
        clock: Clock,
        on_failure: Callable[[Exception], None],
        report: Report = report_nothing,
    ) -> None:
        self._task = task
        self._log = log
        self._identity = identity
        self._pipeline = pipeline
        self._clean_up = clean_up
        self._clock = clock
        self._on_failure = on_failure
        self._report = report
        self._committer = Committer(
            log,
            gate,
            clock,
            subject=f"task={task.task_name}",
            listener=self,
            find_left_out=self._find_left_out,
            report=report,
        )
        self._requesting = asyncio.Lock()
        self._newest: TaskCommit | None = None
        self._has_committed = False
        """Whether this process has: its first commit uploads, and so finds what has been lost."""
        self.last_error: Exception | None = None
        """Why the newest commit failed; None after a success."""

    def is_due(self) -> bool:
        """Return whether `request` should be called now."""
        return self._committer.is_due()

    def is_near(self) -> bool:
        """Return whether a commit is soon to be due."""
        return self._committer.is_near()

    async def request(
        self,
        seal: Seal,
        input_offsets: Mapping[SystemStreamPartition, str],
        *,
        is_forced: bool = False,
    ) -> TaskCommit:
        """Ask whether a commit may begin and, if so, seal a version and begin its upload.

        Concurrent callers are served one after the other.

        Args:
            seal: Makes the version; awaited once, only if the commit starts.
            input_offsets: What the version has taken in.
            is_forced: Wait for an open commit instead of skipping this one.

        Raises:
            CommitFailedError: The tolerance for failures is used up, or sealing failed, or the one
                before cannot be aborted.
            TaskFencedError: Another container has taken over the task.
        """
        async with self._requesting:
            if await self._ask(is_forced=is_forced) is Decision.SKIP:
                return TaskCommit.skipped()
            return await self._start(seal, dict(input_offsets), is_forced=is_forced)

    def fence(self, error: TaskFencedError) -> None:
        """Record that another container has taken over: `request` raises from now on."""
        self._committer.fence(error)
        self.last_error = error

    async def wait(self) -> None:
        """Wait until no commit is open; raises what the newest one failed with."""
        if self._newest is not None:
            await self._newest.wait()

    async def finish(self, timeout_ms: int) -> None:
        """Wait for the open commit, at most so long; then abort it, if the log still lets us."""
        try:
            await self._committer.resolve(timeout_ms / 1000)
        except StateBackupError as exc:
            logger.warning(
                "the end of the attempt could not be written to the job log: task=%s error=%s",
                self._task.task_name,
                exc,
            )
        finally:
            self._committer.leave()

    @override
    def committed(self, summary: CommitSummary) -> None:
        self.last_error = None
        self._has_committed = True
        checkpoint = self._current_checkpoint()
        if self._newest is not None and checkpoint is not None:
            self._newest.succeed(checkpoint)
        self._clean_up.start()

    @override
    def ended(self, attempt: Attempt, error: Exception) -> None:
        self.last_error = error
        if self._newest is not None:
            self._newest.fail(error)
        try:
            self._on_failure(error)
        except Exception:  # a callback of the program must not end the commit's own task
            logger.exception("failure callback failed: task=%s", self._task.task_name)

    async def _ask(self, *, is_forced: bool) -> Decision:
        """Return START or SKIP; a BLOCK is waited out here."""
        try:
            while (decision := await self._committer.ask(is_forced=is_forced)) is Decision.BLOCK:
                pass
        except RetriableError as exc:
            newest = None if self._newest is None else self._newest.checkpoint_id
            raise CommitFailedError(
                f"the commit before cannot be aborted: task={self._task.task_name}",
                checkpoint_id=str(newest),
                step="record",
            ) from exc
        return decision

    async def _start(
        self, seal: Seal, input_offsets: Mapping[SystemStreamPartition, str], *, is_forced: bool
    ) -> TaskCommit:
        """The sync stage: the task waits for no more than the seal."""
        began_ns = self._clock.monotonic_ns()
        checkpoint_id = self._committer.next_id()
        self._report(CommitBegan(checkpoint_id.serialize()))
        try:
            batch, version = await seal()
        except (StateBackupError, OSError) as exc:
            self._report(
                CommitFailed(
                    checkpoint_id=checkpoint_id.serialize(),
                    batch=-1,
                    step="snapshot",
                    error=summary_of(exc),
                    elapsed_ns=self._clock.monotonic_ns() - began_ns,
                )
            )
            raise CommitFailedError(
                f"the local version could not be sealed: task={self._task.task_name}",
                checkpoint_id=checkpoint_id.serialize(),
                step="snapshot",
            ) from exc
        self._report(StoresSealed(self._clock.monotonic_ns() - began_ns))
        current = self._current_checkpoint()
        if (
            not is_forced
            and current is not None
            and current.input_offsets == input_offsets
            and await self._is_backed_up(version)
        ):
            self._committer.pass_over()
            commit = TaskCommit(current.checkpoint_id)
            commit.succeed(current)
            return commit
        attempt = self._committer.begin(
            batch,
            checkpoint_id,
            versions_of_task(self._task, version.id),
            began_ns=began_ns,
        )
        attempt.pause_ms = round((self._clock.monotonic_ns() - began_ns) / _NS_PER_MS, 2)
        commit = self._newest = TaskCommit(checkpoint_id)
        self._committer.follow(attempt, lambda a: self._back_up(a, version, input_offsets))
        return commit

    async def _back_up(
        self,
        attempt: Attempt,
        version: SealedVersion,
        input_offsets: Mapping[SystemStreamPartition, str],
    ) -> CommitRecord:
        """Put an attempt on record and upload its version; return the commit record."""
        await self._committer.record(attempt)
        current, name = self._log.view.last_commit, self._task.task_name
        context = CommitContext(
            checkpoint_id=attempt.checkpoint_id,
            epoch=self._log.epoch,
            attempt=attempt.number,
            version=version,
            base=None if current is None else self._log.view.usable_checkpoint(current, name),
            base_version=None if current is None else version_of(current, name),
        )
        if await self._is_backed_up(version):
            checkpoint = await self._pipeline.carry_over(context, input_offsets)
        else:
            attempt.tasks_uploaded = 1
            checkpoint = await self._upload(attempt, context, input_offsets)
        return commit_of_task(
            self._task,
            self._identity,
            (self._log.epoch, attempt.number),
            version.id,
            checkpoint,
            batch=attempt.batch,
        )

    async def _upload(
        self,
        attempt: Attempt,
        context: CommitContext,
        input_offsets: Mapping[SystemStreamPartition, str],
    ) -> CheckpointV2:
        began_ns = self._clock.monotonic_ns()
        backed_up = await self._pipeline.commit(context, input_offsets)
        attempt.bytes_uploaded = backed_up.bytes_uploaded
        attempt.task_upload_ms = (self._clock.monotonic_ns() - began_ns) // _NS_PER_MS
        self._report(
            TaskUploaded(
                task=self._task.task_name,
                attempt=attempt.number,
                batch=attempt.batch,
                bytes=attempt.bytes_uploaded,
                elapsed_ms=attempt.task_upload_ms,
                uploads=msgspec.to_builtins(backed_up.uploads),
                changed_bytes=backed_up.changed_bytes,
                state_bytes=backed_up.state_bytes,
            )
        )
        return backed_up.checkpoint

    async def _is_backed_up(self, version: SealedVersion) -> bool:
        """Return whether the newest commit has the version, in every backend."""
        commit, name = self._log.view.last_commit, self._task.task_name
        if not self._has_committed or commit is None or version_of(commit, name) != version.id:
            return False
        checkpoint = self._log.view.usable_checkpoint(commit, name)
        return checkpoint is not None and await self._pipeline.has_all(checkpoint)

    def _current_checkpoint(self) -> CheckpointV2 | None:
        commit = self._log.view.last_commit
        return None if commit is None else checkpoint_of(commit, self._task.task_name)

    def _find_left_out(self, record: CommitRecord) -> list[BackendName]:
        checkpoint = checkpoint_of(record, self._task.task_name)
        return [] if checkpoint is None else self._pipeline.left_out_of(checkpoint)

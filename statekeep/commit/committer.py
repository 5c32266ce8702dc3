"""The commits of one log, one after the other: attempt record, work, commit record, or abort record."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.error_summary import first_line_of, summary_of
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import Clock
from statekeep.commit.gate import CommitGate, Decision
from statekeep.config.redact import redact_text
from statekeep.errors import CommitFailedError, RetriableError, StateBackupError, TaskFencedError
from statekeep.events import (
    CommitBlocked,
    CommitDone,
    CommitFailed,
    CommitPassedOver,
    CommitSkipped,
    CommitSubmitted,
    CommitSummary,
    Report,
    report_nothing,
)
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


class CommitAbandonedError(Exception):
    """Raised by a `CommitWork` when what it uploads is gone; not counted as a failure.

    The attempt is aborted, nothing counts as failed, and the commit is due again at once.
    """


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at a commit. It ends exactly once, by a commit record or by an abort record."""

    batch: int
    checkpoint_id: CheckpointId
    versions: Mapping[str, str]
    """``{task: VersionId}`` of all tasks; "" for empty state."""
    uploads: Sequence[str]
    """The tasks that upload."""
    began_ns: int
    pause_ms: float = 0
    """As in `CommitSummary`."""
    number: int = 0
    """Within the epoch; 0 until the attempt is on record."""
    tasks_uploaded: int = 0
    bytes_uploaded: int = 0
    task_upload_ms: int = 0
    """As in `CommitSummary`."""
    is_awaited: bool = False
    """A caller waits for its end."""
    work: asyncio.Task[None] | None = None
    """None as long as not all of it is being worked on."""
    step: str = "upload"
    """What goes on, for errors."""
    followed_ns: int = 0
    """When its work began."""
    uploaded_ns: int = 0
    """When its work was done."""
    end: "_End | None" = None
    """How it is to end without a commit; it is open until the log has the abort record."""
    is_reported: bool = False
    """Its waiter has the error of its end."""


@dataclass(frozen=True, slots=True)
class _End:
    reason: str
    """Without secrets: it goes to the log and to events."""
    report: Callable[[int], None]
    """Reports the end to the gate."""
    error: CommitFailedError | None = None
    """What a caller that waits for the commit gets; None where it does not count as failed."""


CommitWork = Callable[[Attempt], Awaitable[CommitRecord]]
"""Has the state of every task backed up, and returns the record that makes it count. Raises
`CommitFailedError`, or `CommitAbandonedError` where what was to be backed up is gone."""


class CommitListener(Protocol):
    """Called with the ends of attempts, on the event loop; must not wait."""

    def committed(self, summary: CommitSummary) -> None:
        """Record that the open attempt is a commit."""
        ...

    def ended(self, attempt: Attempt, error: Exception) -> None:
        """Record, once, why an attempt comes to nothing, as soon as that is known."""
        ...


class Committer:
    """Runs at most one attempt at a time; every method on one event loop.

    `ask` says whether a commit may begin; `begin` opens its attempt, `record` puts it on record,
    and `follow` runs the work beside the processing. An attempt whose work fails, or takes
    too long, is aborted. Where the log does not take the abort record, the attempt stays open, and
    `ask` resolves it before the next one begins: the answer to its commit record may have been lost.
    """

    def __init__(
        self,
        log: LogSession,
        gate: CommitGate,
        clock: Clock,
        *,
        subject: str,
        listener: CommitListener,
        find_left_out: Callable[[CommitRecord], Sequence[str]],
        report: Report = report_nothing,
    ) -> None:
        """Wire the committer.

        Args:
            log: Taken over by this process.
            gate: Decides whether a commit may start.
            clock: For durations.
            subject: Whose commits they are, for people: ``task=...`` or ``job=...``.
            listener: Called with the ends of attempts.
            find_left_out: Returns the optional backends that lack the state of some task.
            report: Gets how commits go.
        """
        self._log = log
        self._gate = gate
        self._clock = clock
        self._subject = subject
        self._listener = listener
        self._find_left_out = find_left_out
        self._report = report
        self._open: Attempt | None = None
        self._ending = asyncio.Lock()
        self._fenced: TaskFencedError | None = None
        self._last_id: CheckpointId | None = None
        self._skips_reported = 0
        self._blocked_ns = 0
        """Since the newest commit."""

    @property
    def committed_batch(self) -> int:
        """The batch of the newest commit; -1 before the first."""
        commit = self._log.view.last_commit
        return -1 if commit is None else commit.batch

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt that has not ended, None if there is none."""
        return self._open

    @property
    def final_error(self) -> CommitFailedError | None:
        """The failure that used up the tolerance; `ask` raises it."""
        return self._gate.final_error

    def is_due(self) -> bool:
        """Whether a commit should be asked for now."""
        return self._fenced is not None or self._gate.is_due(self._clock.monotonic_ns())

    def note_changes(self, size: int) -> None:
        """Count bytes of state that have changed; between two commits, on any thread."""
        self._gate.note_changes(size)

    def is_near(self) -> bool:
        """Whether a commit is soon to be due."""
        return self._gate.is_near(self._clock.monotonic_ns())

    def fence(self, error: TaskFencedError) -> None:
        """Record that another owner has taken over: `ask` raises from now on."""
        self._fenced = error

    def raise_if_fenced(self) -> None:
        """Raise what an append has found out already, if anything; makes no request.

        Raises:
            TaskFencedError: Another owner has taken over.
        """
        if self._fenced is not None:
            raise self._fenced

    async def ask(self, *, is_forced: bool = False) -> Decision:
        """Ask for a commit. `Decision.BLOCK`: the open one was waited for, ask again.

        Args:
            is_forced: Wait for an open commit instead of skipping this one.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another owner has taken over.
            RetriableError: An earlier attempt cannot be resolved, as the log does not answer.
        """
        self.raise_if_fenced()
        if self._open is not None and self._open.end is not None:
            try:
                await self._resolve(self._open, self._open.end)
            except RetriableError as exc:
                if is_forced:
                    raise
                logger.warning(
                    "attempt is not yet aborted: %s reason=%s error=%s",
                    self._subject,
                    self._open.end.reason,
                    exc,
                )
        now_ns = self._clock.monotonic_ns()
        decision = self._gate.request(now_ns, is_forced=is_forced)
        if decision is Decision.SKIP:
            self._report(CommitSkipped())
        elif decision is Decision.BLOCK:
            try:
                await self.resolve(self._gate.remaining_block_ns(now_ns) / _NS_PER_S)
            finally:
                blocked_ns = self._clock.monotonic_ns() - now_ns
                self._blocked_ns += blocked_ns
                self._report(CommitBlocked(blocked_ns))
        return decision

    def next_id(self) -> CheckpointId:
        """Return an id that no earlier commit of this committer has, whatever the clock does."""
        checkpoint_id = CheckpointId.at(self._clock.time_ns())
        last = self._last_id
        if last is not None and checkpoint_id <= last:
            checkpoint_id = CheckpointId(last.millis + 1, checkpoint_id.nanos)
        self._last_id = checkpoint_id
        return checkpoint_id

    def pass_over(self) -> None:
        """Begin no attempt after `Decision.START`: the newest commit holds all that there is."""
        self._gate.passed_over(self._clock.monotonic_ns())
        self._report(CommitPassedOver())

    def begin(
        self,
        batch: int,
        checkpoint_id: CheckpointId,
        versions: Mapping[str, str],
        uploads: Sequence[str] = (),
        *,
        began_ns: int,
    ) -> Attempt:
        """Open an attempt, after `Decision.START`."""
        self._gate.started(began_ns, checkpoint_id.serialize())
        self._open = Attempt(batch, checkpoint_id, versions, uploads, began_ns)
        return self._open

    async def record(self, attempt: Attempt) -> None:
        """Put an attempt on record; nothing of it is uploaded before.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: Unknown whether the record landed; the attempt is to be aborted.
        """
        step, attempt.step = attempt.step, "record"
        fault_point("attempt_record.before")
        try:
            attempt.number = await self._log.begin_attempt(
                attempt.batch, attempt.checkpoint_id, attempt.versions, attempt.uploads
            )
        except TaskFencedError as exc:
            self._fenced = exc
            raise
        fault_point("attempt_record.after")
        attempt.step = step

    def follow(self, attempt: Attempt, work: CommitWork) -> None:
        """Let the work on an attempt run from now on; its end is the attempt's."""
        attempt.followed_ns = self._clock.monotonic_ns()
        attempt.work = asyncio.create_task(
            self._run(attempt, work), name=f"commit {self._subject} {attempt.checkpoint_id}"
        )
        elapsed_ns = attempt.followed_ns - attempt.began_ns
        self._report(CommitSubmitted(attempt.checkpoint_id.serialize(), attempt.batch, elapsed_ns))

    async def fail(self, reason: str) -> None:
        """Abort the open attempt, and count it as failed.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: The log does not answer: the attempt is open until it does.
        """
        attempt = self._open
        if attempt is not None:
            reason = redact_text(reason)
            error = CommitFailedError(
                reason, checkpoint_id=attempt.checkpoint_id.serialize(), step=attempt.step
            )
            await self._resolve(attempt, self._failed(reason, error))

    async def abandon(self, reason: str) -> None:
        """Abort the open attempt, if there is one, without counting it; waiters for its end go on.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: The log does not answer: the attempt is open until it does.
        """
        if self._open is not None:
            await self._resolve(self._open, _End(redact_text(reason), self._gate.abandoned))

    async def resolve(self, timeout_s: float) -> None:
        """Wait for the open attempt to end, for at most ``timeout_s``; then abort it.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: The log does not answer: the attempt is open until it does.
        """
        attempt = self._open
        if attempt is not None and attempt.work is None:
            # Its batch was interrupted, or its record may not have landed: not all of it is being worked on.
            await self.abandon("it was not submitted")
        elif attempt is not None and attempt.work is not None:
            attempt.is_awaited = True
            await self._wait_for(attempt.work, timeout_s)
            if self._open is attempt:
                await self._resolve(attempt, attempt.end or self._time_out(attempt))
        self.raise_if_fenced()

    async def abort_if_overdue(self) -> None:
        """Give up the open attempt once its time is over, or if not all of it is being worked on.

        For an owner who is between two batches.
        """
        attempt = self._open
        if attempt is not None and (
            attempt.work is None
            or attempt.end is not None
            or self._gate.is_overdue(self._clock.monotonic_ns())
        ):
            await self.resolve(0)

    def leave(self) -> None:
        """Report why the open attempt came to nothing, where the log has not taken that: the owner ends.

        The next owner finds it open, and no commit of this one follows that would report its end.
        """
        attempt = self._open
        if attempt is None or attempt.end is None:
            return
        self._open = None
        logger.warning(
            "attempt is left to the next owner: %s checkpoint_id=%s reason=%s",
            self._subject,
            attempt.checkpoint_id,
            attempt.end.reason,
        )
        self._report_end(attempt, attempt.end)

    async def _wait_for(self, work: asyncio.Task[None], timeout_s: float) -> None:
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait({work, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.wait({timer})

    async def _run(self, attempt: Attempt, work: CommitWork) -> None:
        try:
            record = await work(attempt)
            attempt.step, attempt.uploaded_ns = "record", self._clock.monotonic_ns()
            fault_point("commit_record.before")
            await self._log.append(record)
            fault_point("commit_record.after")
        except TaskFencedError as exc:
            self._end_fenced(attempt, exc)
        except CommitAbandonedError as exc:
            await self._resolve_beside(attempt, _End(redact_text(str(exc)), self._gate.abandoned))
        except Exception as exc:  # kept for the next commit, and reported at once
            if not isinstance(exc, (StateBackupError, OSError)):
                logger.exception("the work of a commit failed unexpectedly: %s", self._subject)
            await self._resolve_beside(attempt, self._failure(attempt, exc))
        else:
            self._succeeded(attempt)

    async def _resolve_beside(self, attempt: Attempt, end: _End) -> None:
        """Abort an attempt by its own work; if the log does not answer, `ask` does it later."""
        try:
            await self._resolve(attempt, end)
        except TaskFencedError:
            pass  # `ask` raises it
        except StateBackupError as exc:
            logger.warning(
                "attempt is not yet aborted, the next commit aborts it: %s reason=%s error=%s",
                self._subject,
                (attempt.end or end).reason,
                exc,
            )
        except Exception:  # of a plug-in; the waiters of the commit get its error all the same
            logger.exception(
                "unexpected error of the job log, the next commit aborts the attempt: %s reason=%s",
                self._subject,
                (attempt.end or end).reason,
            )

    async def _resolve(self, attempt: Attempt, end: _End) -> None:
        """End an attempt by an abort record, unless its commit record turns out to have landed.

        Where the log does not answer, the attempt stays open. Its waiter gets the error all the same;
        the event of its end follows once the log has said which end it is.
        """
        attempt.end = attempt.end or end
        work = attempt.work
        if work is not None and work is not asyncio.current_task():
            work.cancel()
            await asyncio.wait({work})
        async with self._ending:
            if self._open is not attempt:
                return
            fault_point("abort_record.before")
            try:
                has_commit = await self._log.close_attempt(attempt.end.reason)
            except TaskFencedError as exc:
                self._end_fenced(attempt, exc)
                raise
            except Exception:
                self._give_error(attempt, attempt.end)
                raise
            if self._open is not attempt:
                return  # it was left meanwhile
            self._open = None
        if has_commit:
            self._succeeded(attempt)
            return
        logger.warning(
            "commit was aborted: %s checkpoint_id=%s reason=%s",
            self._subject,
            attempt.checkpoint_id,
            attempt.end.reason,
        )
        attempt.end.report(self._clock.monotonic_ns())
        self._report_end(attempt, attempt.end)
        self._give_error(attempt, attempt.end)

    def _succeeded(self, attempt: Attempt) -> None:
        self._open = None
        now_ns = self._clock.monotonic_ns()
        self._gate.succeeded(now_ns)
        record, position = self._log.view.last_commit, self._log.view.last_commit_position
        if record is None:
            raise RuntimeError("the log has no commit after one succeeded")
        summary = CommitSummary(
            attempt.batch,
            attempt.checkpoint_id.serialize(),
            position,
            (now_ns - attempt.began_ns) // _NS_PER_MS,
            attempt.tasks_uploaded,
            bytes_uploaded=attempt.bytes_uploaded,
            left_out=self._find_left_out(record),
            pause_ms=attempt.pause_ms,
            wait_ms=(attempt.followed_ns - attempt.began_ns) // _NS_PER_MS,
            upload_ms=(attempt.uploaded_ns - attempt.followed_ns) // _NS_PER_MS,
            record_ms=(now_ns - attempt.uploaded_ns) // _NS_PER_MS,
            task_upload_ms=attempt.task_upload_ms,
            skipped=self._gate.skips - self._skips_reported,
            blocked_ms=self._blocked_ns // _NS_PER_MS,
        )
        self._skips_reported, self._blocked_ns = self._gate.skips, 0
        logger.info(
            "commit is durable: %s checkpoint_id=%s batch=%d position=%d tasks=%d bytes=%d "
            "elapsed_ms=%d",
            self._subject,
            summary.checkpoint_id,
            summary.batch,
            position,
            summary.tasks_uploaded,
            summary.bytes_uploaded,
            summary.elapsed_ms,
        )
        self._listener.committed(summary)
        self._report(
            CommitDone(
                **asdict(summary),
                elapsed_ns=now_ns - attempt.began_ns,
                background_ns=now_ns - attempt.followed_ns,
            )
        )

    def _failure(self, attempt: Attempt, exc: Exception) -> _End:
        """Return the end by an error of the work, as the gate and the waiter get it."""
        if isinstance(exc, CommitFailedError):
            text = str(exc) if exc.__cause__ is None else f"{exc}: {exc.__cause__!r}"
            return self._failed(redact_text(text), exc)
        is_ours = isinstance(exc, StateBackupError)
        reason = redact_text(str(exc) if is_ours else f"{type(exc).__name__}: {exc}")
        error = CommitFailedError(
            f"the commit failed: {self._subject} {reason}",
            checkpoint_id=attempt.checkpoint_id.serialize(),
            step=attempt.step,
        )
        error.__cause__ = exc
        return self._failed(reason, error)

    def _failed(self, reason: str, error: CommitFailedError) -> _End:
        return _End(reason, lambda now_ns: self._gate.failed(now_ns, error), error)

    def _time_out(self, attempt: Attempt) -> _End:
        error = CommitFailedError(
            f"the commit did not end in time: {self._subject}",
            checkpoint_id=attempt.checkpoint_id.serialize(),
            step="timeout",
        )
        return _End("timed out", self._gate.timed_out, error)

    def _end_fenced(self, attempt: Attempt, error: TaskFencedError) -> None:
        self._fenced = error
        if self._open is attempt:
            self._open = None
            self._gate.abandoned(self._clock.monotonic_ns())
            self._report_failure(attempt, "fenced", summary_of(error))
            self._listener.ended(attempt, error)

    def _give_error(self, attempt: Attempt, end: _End) -> None:
        """Give the error of an end to the waiter of the attempt, once."""
        if end.error is not None and not attempt.is_reported:
            attempt.is_reported = True
            self._listener.ended(attempt, end.error)

    def _report_end(self, attempt: Attempt, end: _End) -> None:
        if end.error is not None:
            error = first_line_of(f"{type(end.error).__name__}: {end.reason}")
            self._report_failure(attempt, end.error.step, error)

    def _report_failure(self, attempt: Attempt, step: str, error: str) -> None:
        self._report(
            CommitFailed(
                checkpoint_id=attempt.checkpoint_id.serialize(),
                batch=attempt.batch,
                step=step,
                error=error,
                elapsed_ns=self._clock.monotonic_ns() - attempt.began_ns,
            )
        )

"""The commits of one log, one after the other: attempt record, work, commit record, or void record."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Protocol

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import CommitRecord
from statekeep.clock import Clock
from statekeep.commit.gate import CommitGate, Decision
from statekeep.errors import CommitFailedError, RetriableError, StateBackupError, TaskFencedError
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit that is durable, for people and for ``lastCommit``."""

    checkpoint_id: str
    batch: int
    position: int
    elapsed_ms: int
    tasks_uploaded: int
    bytes_uploaded: int = 0
    """By all tasks to all backends, as far as backends count."""
    was_rolled_forward: bool = False
    left_out: Sequence[str] = ()
    """Optional backends that lack the state of some task at this commit."""


class CommitAbandonedError(Exception):
    """Raised by a `CommitWork` where nobody is to blame: what it works on is gone.

    The attempt is void, nothing counts as failed, and the commit is due again at once.
    """


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at a commit. It ends exactly once, by a commit record or by a void record."""

    batch: int
    checkpoint_id: CheckpointId
    versions: Mapping[str, str]
    """``{task: VersionId}`` of all tasks; "" for empty state."""
    uploads: Sequence[str]
    """The tasks that upload."""
    began_ns: int
    number: int = 0
    """Within the epoch; 0 until the attempt is on record."""
    tasks_uploaded: int = 0
    bytes_uploaded: int = 0
    work: asyncio.Task[None] | None = None
    """None as long as nobody works on all of it."""
    step: str = "upload"
    """What goes on, for errors."""
    end: "_End | None" = None
    """How it is to end without a commit; it is open until the log has the void record."""


@dataclass(frozen=True, slots=True)
class _End:
    reason: str
    report: Callable[[int], None]
    """Tells the gate."""
    error: Exception | None = None
    """What whoever waits for the commit is told; None where nobody is to blame."""


CommitWork = Callable[[Attempt], Awaitable[CommitRecord]]
"""Has the state of every task backed up, and returns the record that makes it count. Raises
`CommitFailedError`, or `CommitAbandonedError` where what was to be backed up is gone."""


class CommitListener(Protocol):
    """Told how attempts end, on the event loop; must not wait."""

    def committed(self, summary: CommitSummary) -> None:
        """Take note that the open attempt is a commit."""
        ...

    def ended(self, attempt: Attempt, error: Exception) -> None:
        """Take note, once, why an attempt comes to nothing, as soon as that is known."""
        ...


class Committer:
    """Runs at most one attempt at a time; every method on one event loop.

    `ask` says whether a commit may begin; `begin` opens its attempt, `record` puts it on record,
    and `follow` lets the work run beside whoever processes. An attempt whose work fails, or takes
    too long, is made void. Where the log does not take the void record, the attempt stays open, and
    `ask` settles it before the next one begins: the answer to its commit record may have been lost.
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
        note: Note = no_note,
    ) -> None:
        """Wire the committer.

        Args:
            log: Taken over by this process.
            gate: Decides whether a commit may start.
            clock: For durations.
            subject: Whose commits they are, for people: ``task=...`` or ``job=...``.
            listener: Told how attempts end.
            find_left_out: Returns the optional backends that lack the state of some task.
            note: Told of commits.
        """
        self._log = log
        self._gate = gate
        self._clock = clock
        self._subject = subject
        self._listener = listener
        self._find_left_out = find_left_out
        self._note = note
        self._open: Attempt | None = None
        self._ending = asyncio.Lock()
        self._fenced: TaskFencedError | None = None
        self._last_id: CheckpointId | None = None

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

    def is_near(self) -> bool:
        """Whether a commit is soon to be due."""
        return self._gate.is_near(self._clock.monotonic_ns())

    def fence(self, error: TaskFencedError) -> None:
        """Take note that another owner has taken over: `ask` raises from now on."""
        self._fenced = error

    def raise_if_fenced(self) -> None:
        """Raise what an append has found out already, if anything; asks nobody.

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
            RetriableError: An attempt of before cannot be settled, as the log does not answer.
        """
        self.raise_if_fenced()
        if self._open is not None and self._open.end is not None:
            try:
                await self._settle(self._open, self._open.end)
            except RetriableError as exc:
                if is_forced:
                    raise
                logger.warning("attempt is not yet aborted: %s error=%s", self._subject, exc)
        now_ns = self._clock.monotonic_ns()
        decision = self._gate.request(now_ns, is_forced=is_forced)
        if decision is Decision.BLOCK:
            await self.settle(self._gate.remaining_block_ns(now_ns) / _NS_PER_S)
        return decision

    def next_id(self) -> CheckpointId:
        """Return an id that no earlier commit of this committer has, whatever the clock does."""
        checkpoint_id = CheckpointId.at(self._clock.time_ns())
        last = self._last_id
        if last is not None and checkpoint_id <= last:
            checkpoint_id = CheckpointId(last.millis + 1, checkpoint_id.nanos)
        self._last_id = checkpoint_id
        return checkpoint_id

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
            RetriableError: Unknown whether the record landed; the attempt is to be made void.
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
        attempt.work = asyncio.create_task(
            self._run(attempt, work), name=f"commit {self._subject} {attempt.checkpoint_id}"
        )

    async def fail(self, reason: str) -> None:
        """Make the open attempt void, and count it as failed.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: The log does not answer: the attempt is open until it does.
        """
        attempt = self._open
        if attempt is not None:
            error = CommitFailedError(
                reason, checkpoint_id=attempt.checkpoint_id.serialize(), step=attempt.step
            )
            await self._settle(attempt, self._failed(reason, error))

    async def abandon(self, reason: str) -> None:
        """Make the open attempt void, if there is one, uncounted; whoever waits for its end goes on.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: The log does not answer: the attempt is open until it does.
        """
        if self._open is not None:
            await self._settle(self._open, _End(reason, self._gate.abandoned))

    async def settle(self, timeout_s: float) -> None:
        """Wait for the open attempt to end, for at most ``timeout_s``; then make it void.

        Raises:
            TaskFencedError: Another owner has taken over.
            RetriableError: The log does not answer: the attempt is open until it does.
        """
        attempt = self._open
        if attempt is not None and attempt.work is None:
            # Its batch was interrupted, or its record may not have landed: nobody works on it all.
            await self.abandon("it was not submitted")
        elif attempt is not None and attempt.work is not None:
            await self._wait_for(attempt.work, timeout_s)
            if self._open is attempt:
                await self._settle(attempt, attempt.end or self._time_out(attempt))
        self.raise_if_fenced()

    async def void_if_overdue(self) -> None:
        """Give the open attempt up once its time is over, or if nobody works on all of it.

        For an owner who is between two batches.
        """
        attempt = self._open
        if attempt is not None and (
            attempt.work is None
            or attempt.end is not None
            or self._gate.is_overdue(self._clock.monotonic_ns())
        ):
            await self.settle(0)

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
            attempt.step = "record"
            fault_point("commit_record.before")
            await self._log.append(record)
            fault_point("commit_record.after")
        except TaskFencedError as exc:
            self._end_fenced(attempt, exc)
        except CommitAbandonedError as exc:
            await self._settle_beside(attempt, _End(str(exc), self._gate.abandoned))
        except Exception as exc:  # kept for the next commit, and told at once
            if not isinstance(exc, (StateBackupError, OSError)):
                logger.exception("the work of a commit failed unexpectedly: %s", self._subject)
            await self._settle_beside(attempt, self._failure(attempt, exc))
        else:
            self._succeeded(attempt)

    async def _settle_beside(self, attempt: Attempt, end: _End) -> None:
        """Make an attempt void by its own work; if the log does not answer, `ask` does it later."""
        try:
            await self._settle(attempt, end)
        except TaskFencedError:
            pass  # `ask` raises it
        except StateBackupError as exc:
            logger.warning(
                "attempt is not yet aborted, the next commit aborts it: %s error=%s",
                self._subject,
                exc,
            )
        except Exception:  # of a plug-in: whoever waits for the commit has to be told all the same
            logger.exception(
                "the job log fails by an error that is not one of ours, the next commit aborts the"
                " attempt: %s",
                self._subject,
            )

    async def _settle(self, attempt: Attempt, end: _End) -> None:
        """End an attempt by a void record, unless its commit record turns out to have landed.

        Where the log does not answer, the attempt stays open; its waiter is told all the same.
        """
        attempt.end = attempt.end or end
        work = attempt.work
        if work is not None and work is not asyncio.current_task():
            work.cancel()
            await asyncio.wait({work})
        async with self._ending:
            if self._open is not attempt:
                return
            fault_point("void_record.before")
            try:
                has_commit = await self._log.close_attempt(attempt.end.reason)
            except TaskFencedError as exc:
                self._end_fenced(attempt, exc)
                raise
            except Exception:
                self._tell(attempt, attempt.end)
                raise
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
        self._tell(attempt, attempt.end)

    def _succeeded(self, attempt: Attempt) -> None:
        self._open = None
        now_ns = self._clock.monotonic_ns()
        self._gate.succeeded(now_ns)
        record, position = self._log.view.last_commit, self._log.view.last_commit_position
        if record is None:
            raise RuntimeError("the log has no commit after one succeeded")
        summary = CommitSummary(
            attempt.checkpoint_id.serialize(),
            attempt.batch,
            position,
            (now_ns - attempt.began_ns) // _NS_PER_MS,
            attempt.tasks_uploaded,
            bytes_uploaded=attempt.bytes_uploaded,
            left_out=self._find_left_out(record),
        )
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
        self._note("commit", **asdict(summary))

    def _failure(self, attempt: Attempt, exc: Exception) -> _End:
        """Return the end by an error of the work, as the gate and the waiter get it."""
        if isinstance(exc, CommitFailedError):
            return self._failed(str(exc), exc)
        reason = str(exc) if isinstance(exc, StateBackupError) else f"{type(exc).__name__}: {exc}"
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
            self._listener.ended(attempt, error)

    def _tell(self, attempt: Attempt, end: _End) -> None:
        """Tell the error of an end, once."""
        if end.error is not None:
            attempt.end = replace(end, error=None)
            self._listener.ended(attempt, end.error)

"""Job-wide commits: the tasks hand over, their checkpoints are gathered, the commit record follows."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from typing_extensions import override

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.note import Note, no_note
from statekeep.checkpoint.records import AttemptRecord, CommitRecord, JobIdentity, QueryState
from statekeep.checkpoint.serde import (
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_checkpoint_v2,
    encode_checkpoint_v2,
)
from statekeep.clock import Clock
from statekeep.commit.committer import (
    Attempt,
    CommitAbandonedError,
    CommitListener,
    CommitSummary,
    Committer,
)
from statekeep.commit.gate import CommitGate, Decision
from statekeep.errors import CommitFailedError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.driver.commit_records import CommitRecords, FindOutdated, none_outdated
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan

logger = logging.getLogger(__name__)

_FIRST_POLL_S: Final = 0.05
_SLOWER: Final = 3
_LONGEST_POLL_S: Final = 0.5
"""Where an attempt takes long, a quarter of the time that it has taken: each poll costs a request."""


@dataclass(slots=True)
class GatheredTasks:
    """What the containers have written for the tasks of one attempt."""

    checkpoints: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """``{partition: CheckpointV2 in JSON}``"""
    bytes_uploaded: int = 0
    """By all of them, to all backends."""


class EntriesLackError(CommitFailedError):
    """Raised when the deadline is over and a task has no entry: it may still come."""


async def gather(
    plan: HandOverPlan,
    checkpoints: CheckpointStore,
    clock: Clock,
    *,
    deadline_ns: int | None = None,
    on_finished: Callable[[HandOverPlan, TaskName, FinishedTask], None] | None = None,
) -> GatheredTasks:
    """Return the tasks' checkpoints once every task of the plan has an entry.

    Polls with growing pauses, and reads what it has found only once.

    Args:
        plan: The attempt.
        checkpoints: Where the containers write.
        clock: For the pauses.
        deadline_ns: Monotonic time at which an entry that lacks is waited for no longer; None
            waits for ever.
        on_finished: Told of each entry as it is found.

    Raises:
        CommitFailedError: A task reports a failure, or its entry does not follow the newest commit.
        EntriesLackError: The deadline is over.
        CheckpointCorruptError: An entry cannot be read.
    """
    found = GatheredTasks()
    known: set[TaskName] = set()
    began_ns, pause_s = clock.monotonic_ns(), _FIRST_POLL_S
    while True:
        name = f"{plan.epoch}-{plan.attempt}"
        for task, data in (await checkpoints.read(name, known=known)).items():
            entry = _finished(data, task, plan)
            if entry is not None:
                found.checkpoints[partition_of(task)] = encode_checkpoint_v2(entry.checkpoint)
                found.bytes_uploaded += entry.bytes_uploaded
                known.add(task)
                if on_finished is not None:
                    on_finished(plan, task, entry)
        if len(found.checkpoints) >= len(plan.versions):
            return found
        if deadline_ns is not None and clock.monotonic_ns() >= deadline_ns:
            absent = min(plan.versions.keys() - found.checkpoints.keys())
            msg = f"a task's backup is not finished: task={task_name(absent)}"
            raise EntriesLackError(msg, checkpoint_id=plan.checkpoint_id, step="timeout")
        await clock.sleep(pause_s)
        passed_s = (clock.monotonic_ns() - began_ns) / 1e9
        pause_s = min(_SLOWER * pause_s, max(_LONGEST_POLL_S, passed_s / 4))


def _finished(data: bytes, task: TaskName, plan: HandOverPlan) -> FinishedTask | None:
    """Return a task's entry; None if it is of another version than the plan's."""
    entry = decode_attempt_entry(data, where=f"attempt={plan.epoch}-{plan.attempt} task={task}")
    if isinstance(entry, FailedTask):
        raise CommitFailedError(
            f"a task could not back up its state: task={task} error={entry.error}",
            checkpoint_id=plan.checkpoint_id,
            step=entry.step,
        )
    if str(entry.version_id) != plan.versions.get(partition_of(task)):
        return None
    _check_chain(entry, task, plan)
    return entry


def _check_chain(entry: FinishedTask, task: TaskName, plan: HandOverPlan) -> None:
    """Refuse an entry of another commit, or one that builds on another base than the plan's.

    An increment on any other base restores what was never committed.
    """
    found = entry.checkpoint.checkpoint_id.serialize()
    if found != plan.checkpoint_id:
        raise CommitFailedError(
            f"a task's checkpoint is another commit's: task={task} found={found}",
            checkpoint_id=plan.checkpoint_id,
            step="chain",
        )
    if entry.base_id is None:
        return
    _, document = plan.bases.get(partition_of(task), ("", b""))
    base = decode_checkpoint_v2(document, f"base of {task}").checkpoint_id if document else None
    if entry.base_id != base:
        raise CommitFailedError(
            "a task's backup builds on another commit than the newest: "
            f"task={task} base={entry.base_id} newest={base}",
            checkpoint_id=plan.checkpoint_id,
            step="chain",
        )


class JobCommits(CommitListener):
    """Runs at most one commit at a time; every coroutine on the commit thread's loop.

    The batch thread asks `prepare` before each batch; what it gets back rides on the process job,
    whose answers it reports by `handed_over`. Idle streams and the end of a query do the same by a
    job of its own. The rest is the work of the `Committer`.
    """

    def __init__(
        self,
        *,
        log: LogSession,
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
        """Wire it.

        Args:
            log: Taken over by this driver.
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
            note: Told of every upload and commit, on the loop.
        """
        self._log = log
        self._checkpoints = checkpoints
        self._clock = clock
        self._records = CommitRecords(
            log,
            identity,
            query_state,
            required_backends,
            optional_backends,
            find_outdated=find_outdated,
        )
        self._on_commit = on_commit
        self._note = note
        self._committer = Committer(
            log,
            gate,
            clock,
            subject=f"job={identity.job_name}",
            listener=self,
            find_left_out=lambda _: self._records.left_out(),
            note=note,
        )
        self._plan: HandOverPlan | None = None
        """Of the newest attempt."""

    @property
    def committed_batch(self) -> int:
        """C: the batch of the newest commit; -1 before the first."""
        return self._committer.committed_batch

    @property
    def open_batch(self) -> int | None:
        """The batch of the open attempt, None if none is open."""
        attempt = self._committer.open_attempt
        return None if attempt is None else attempt.batch

    @property
    def open_plan(self) -> HandOverPlan | None:
        """The plan of the open attempt once its tasks have handed over, else None.

        Handing it over again is safe: it makes up for containers that died meanwhile.
        """
        attempt = self._committer.open_attempt
        return None if attempt is None or attempt.work is None else self._plan

    @property
    def final_error(self) -> CommitFailedError | None:
        """The failure that used up the tolerance; `prepare` raises it."""
        return self._committer.final_error

    def is_due(self) -> bool:
        """Whether a commit should be asked for now."""
        return self._committer.is_due()

    def raise_if_fenced(self) -> None:
        """Raise what an append has found out already, if anything; asks nobody.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        self._committer.raise_if_fenced()

    async def prepare(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> HandOverPlan | None:
        """Ask for a commit of ``batch``; begin its attempt if it may start.

        Returns None where there is nothing to hand over now. Blocks (as a coroutine) where
        processing must wait for the open commit.

        Args:
            batch: The newest batch whose ``commits/<batch>`` is there.
            versions: ``{partition: VersionId}`` after it.
            is_forced: Wait for an open commit and start this one whether it is due or not.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
        """
        self.raise_if_fenced()
        while batch > self.committed_batch and (is_forced or self.is_due()):
            match await self._committer.ask(is_forced=is_forced):
                case Decision.START:
                    return await self._begin(batch, versions)
                case Decision.SKIP:
                    return None
                case Decision.BLOCK:
                    self.raise_if_fenced()
        return None

    async def handed_over(self, plan: HandOverPlan, errors: Mapping[int, str]) -> None:
        """Take note that the tasks have handed over; follow the attempt from now on.

        Args:
            plan: What `prepare` returned.
            errors: ``{partition: why}`` of tasks that could not hand over: the attempt is void. It
                counts as failed unless every reason is `VERSION_NOT_HERE`.
        """
        attempt = self._committer.open_attempt
        if attempt is None or self._plan is not plan:
            return
        if errors:
            is_lost = {p: error.startswith(VERSION_NOT_HERE) for p, error in errors.items()}
            partition = min(errors, key=lambda p: (is_lost[p], p))
            reason = f"submit failed: task={task_name(partition)} {errors[partition]}"
            end = self._committer.abandon if is_lost[partition] else self._committer.fail
            await end(reason)
            return
        self._committer.follow(attempt, lambda attempt: self._back_up(attempt, plan))

    async def settle(self, timeout_s: float) -> None:
        """Wait for the open attempt to end, for at most ``timeout_s``; then make it void."""
        await self._committer.settle(timeout_s)

    async def void_if_overdue(self) -> None:
        """Give the open attempt up once its time is over, or if nobody works on all of it.

        For an owner who is between two batches.
        """
        await self._committer.void_if_overdue()

    async def void_if_lost(self, lost: Mapping[int, str]) -> None:
        """Make the open attempt void if it still has to upload a version that is lost.

        The commit stays due and is not counted as failed.
        """
        if self._plan is None:
            return
        for partition, version in lost.items():
            if version and self._plan.versions.get(partition) == version:
                await self.abandon(f"a version was lost: task={task_name(partition)}")
                return

    async def abandon(self, reason: str) -> None:
        """Make the open attempt void, if there is one; whoever waits for its end goes on.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        await self._committer.abandon(reason)

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
        position = await self._log.append(record)
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

    def tell(self, summary: CommitSummary) -> None:
        """Tell of a commit that was rolled forward."""
        self._on_commit(summary)
        self._note("commit", **asdict(summary))

    async def _back_up(self, attempt: Attempt, plan: HandOverPlan) -> CommitRecord:
        """Wait for the tasks' entries; return the commit record."""
        all_versions = {partition_of(task): v for task, v in attempt.versions.items()}
        try:
            gathered = await gather(
                plan, self._checkpoints, self._clock, on_finished=self._note_upload
            )
            attempt.tasks_uploaded = len(plan.versions)
            attempt.bytes_uploaded = gathered.bytes_uploaded
            lacking = self._records.without_backup(all_versions, gathered.checkpoints.keys())
            if lacking:
                raise CommitAbandonedError(_found_bad(lacking))
            return await self._records.build(
                (plan.epoch, plan.attempt),
                plan.batch,
                plan.checkpoint_id,
                all_versions,
                gathered.checkpoints,
            )
        except Py4JError as exc:  # pyright: ignore[reportUnknownVariableType] # untyped
            raise StateBackupError(f"{type(exc).__name__}: {exc}") from exc

    @override
    def committed(self, summary: CommitSummary) -> None:
        self._on_commit(summary)

    @override
    def ended(self, attempt: Attempt, error: Exception) -> None:
        """Nobody waits: the next `prepare` raises what is not tolerated."""

    async def _begin(self, batch: int, versions: Mapping[int, str]) -> HandOverPlan:
        began_ns = self._clock.monotonic_ns()
        checkpoint_id = self._committer.next_id()
        plan = await self._records.plan(checkpoint_id.serialize(), batch, versions)
        # Open from here on: a record whose append failed may be in the log all the same.
        attempt = self._committer.begin(
            batch,
            checkpoint_id,
            {task_name(partition): version for partition, version in versions.items()},
            [task_name(partition) for partition in plan.versions],
            began_ns=began_ns,
        )
        self._plan = plan
        await self._committer.record(attempt)
        self._plan = replace(plan, attempt=attempt.number)
        return self._plan

    def _note_upload(self, plan: HandOverPlan, task: TaskName, done: FinishedTask) -> None:
        self._note(
            "task-uploaded",
            task=task,
            attempt=plan.attempt,
            batch=plan.batch,
            bytes=done.bytes_uploaded,
            elapsed_ms=done.elapsed_ms,
        )


def _found_bad(partitions: Sequence[int]) -> str:
    return f"a backup that was to be kept was found bad: task={task_name(min(partitions))}"

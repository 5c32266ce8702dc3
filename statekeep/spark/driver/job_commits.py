"""Job-wide commits: the tasks submit, their checkpoints are gathered, the commit record and a clean-up follow."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Final

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.error_summary import text_of
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import AttemptRecord, CommitRecord, JobIdentity, QueryState
from statekeep.checkpoint.serde import (
    AttemptEntry,
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    decode_checkpoint_v2,
    decode_events,
    encode_checkpoint_v2,
)
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp, TaskSweep
from statekeep.commit.committer import (
    Attempt,
    CommitAbandonedError,
    CommitListener,
    Committer,
)
from statekeep.commit.gate import CommitGate, Decision
from statekeep.commit.origins import OriginLogs, OriginPins
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.errors import CommitFailedError, StateBackupError
from statekeep.events import (
    CommitBegan,
    CommitDone,
    CommitSummary,
    Report,
    TaskUploaded,
    report_nothing,
)
from statekeep.fault_points import fault_point
from statekeep.spark.driver.commit_records import (
    Backends,
    CommitRecords,
    FindOutdated,
    none_outdated,
)
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, JobSpec, SubmitPlan

logger = logging.getLogger(__name__)

_FIRST_POLL_S: Final = 0.05
_GROWTH: Final = 3
"""A pause between two polls is at most so many times the time that has passed."""
_FIRST_AWAITED_POLL_S: Final = 0.03
_GROWTH_AWAITED: Final = 0.5
"""The same while a caller waits for the commit."""
_NO_BACKENDS: Final[Backends] = MappingProxyType({})
_LONGEST_POLL_S: Final = 0.5
"""Where an attempt takes long, a quarter of the time that it has taken: each poll costs a request."""


@dataclass(slots=True)
class GatheredTasks:
    """What the sidecars have written for the tasks of one attempt."""

    checkpoints: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """``{partition: CheckpointV2 in JSON}``"""
    bytes_uploaded: int = 0
    """By all of them, to all backends."""
    task_upload_ms: int = 0
    """What they took for it, all together."""


class EntriesLackError(CommitFailedError):
    """Raised when the deadline is over and a task has no entry: it may still come."""


async def gather(
    plan: SubmitPlan,
    checkpoints: CheckpointStore,
    clock: Clock,
    *,
    is_awaited: Callable[[], bool] = lambda: True,
    deadline_ns: int | None = None,
    on_finished: Callable[[SubmitPlan, TaskName, FinishedTask], None] | None = None,
    report: Report = report_nothing,
) -> GatheredTasks:
    """Return the tasks' checkpoints once every task of the plan has an entry.

    Polls with growing pauses, and reads what it has found only once.

    Args:
        plan: The attempt.
        checkpoints: Where the sidecars write.
        clock: For the pauses.
        is_awaited: Whether a caller waits for the entries: then pauses are shorter.
        deadline_ns: Monotonic time at which an entry that lacks is waited for no longer; None
            sets no limit.
        on_finished: Called with each entry as it is found.
        report: Gets what the sidecars have seen.

    Raises:
        CommitFailedError: A task reports a failure, or its entry does not follow the newest commit.
        EntriesLackError: The deadline is over.
        CheckpointCorruptError: An entry cannot be read.
    """
    found = GatheredTasks()
    known: set[TaskName] = set()
    began_ns = clock.monotonic_ns()
    while True:
        name = f"{plan.epoch}-{plan.attempt}"
        for task, data in (await checkpoints.read(name, known=known)).items():
            entry = _finished(data, task, plan, report)
            if entry is not None:
                found.checkpoints[partition_of(task)] = encode_checkpoint_v2(entry.checkpoint)
                found.bytes_uploaded += entry.bytes_uploaded
                found.task_upload_ms += entry.elapsed_ms
                known.add(task)
                if on_finished is not None:
                    on_finished(plan, task, entry)
        if len(found.checkpoints) >= len(plan.versions):
            return found
        now_ns = clock.monotonic_ns()
        if deadline_ns is not None and now_ns >= deadline_ns:
            absent = min(plan.versions.keys() - found.checkpoints.keys())
            msg = f"a task's backup is not finished: task={task_name(absent)}"
            raise EntriesLackError(msg, checkpoint_id=plan.checkpoint_id, step="timeout")
        pause_s = _pause_s((now_ns - began_ns) / 1e9, is_awaited=is_awaited())
        if deadline_ns is not None:
            pause_s = min(pause_s, (deadline_ns - now_ns) / 1e9)
        await clock.sleep(pause_s)


def _pause_s(passed_s: float, *, is_awaited: bool) -> float:
    """Return how long to wait for the next poll, after polling for ``passed_s``."""
    first_s, growth = (
        (_FIRST_AWAITED_POLL_S, _GROWTH_AWAITED) if is_awaited else (_FIRST_POLL_S, _GROWTH)
    )
    return max(first_s, min(growth * passed_s, max(_LONGEST_POLL_S, passed_s / 4)))


def _finished(data: bytes, task: TaskName, plan: SubmitPlan, report: Report) -> FinishedTask | None:
    """Return a task's entry; None if it is of another version than the plan's."""
    entry = decode_attempt_entry(data, where=f"attempt={plan.epoch}-{plan.attempt} task={task}")
    if isinstance(entry, FailedTask):
        _report_all(entry, report)
        raise CommitFailedError(
            f"a task could not back up its state: task={task} error={entry.error}",
            checkpoint_id=plan.checkpoint_id,
            step=entry.step,
        )
    if str(entry.version_id) != plan.versions.get(partition_of(task)):
        return None
    _check_chain(entry, task, plan)
    _report_all(entry, report)
    return entry


def _report_all(entry: AttemptEntry, report: Report) -> None:
    for event in decode_events(entry.events):
        report(event)


def _check_chain(entry: FinishedTask, task: TaskName, plan: SubmitPlan) -> None:
    """Refuse an entry of another commit, or one that builds on another base than the plan's.

    An increment on any other base restores what was never committed.
    """
    found = entry.checkpoint.checkpoint_id.serialize()
    if found != plan.checkpoint_id:
        raise CommitFailedError(
            f"a task's checkpoint belongs to another commit: task={task} found={found}",
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
    whose answers it reports by `submitted`. Idle streams and the end of a query do the same by a
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
        required_backends: Backends = _NO_BACKENDS,
        optional_backends: Backends = _NO_BACKENDS,
        find_outdated: FindOutdated = none_outdated,
        report: Report = report_nothing,
        is_observed: bool = False,
    ) -> None:
        """Wire it.

        Args:
            log: Taken over by this driver.
            checkpoints: Where sidecars put each task's entry.
            gate: Decides whether a commit may start.
            clock: For delays and polling.
            identity: What the commit record says of the job.
            query_state: Reads the query's files for the record of a batch.
            on_commit: Called with every commit, on the loop.
            required_backends: The backends that every task must be in, with all stores that it gets:
                a task that one of them lacks uploads again, though unchanged.
            optional_backends: The others.
            find_outdated: Asked at each commit which backups a rotation of keys has left behind: those
                tasks upload again too.
            report: Gets every upload and commit, on the loop.
            is_observed: Whether it wants to know, too, what sidecars see.
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
        self._report = report
        self._is_observed = is_observed
        self._committer = Committer(
            log,
            gate,
            clock,
            subject=f"job={identity.job_name}",
            listener=self,
            find_left_out=lambda _: self._records.left_out(),
            report=report,
        )
        self._plan: SubmitPlan | None = None
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
    def open_plan(self) -> SubmitPlan | None:
        """The plan of the open attempt once its tasks have submitted, else None.

        Submitting it again is safe: it makes up for sidecars that died meanwhile.
        """
        attempt = self._committer.open_attempt
        return None if attempt is None or attempt.work is None else self._plan

    @property
    def final_error(self) -> CommitFailedError | None:
        """The failure that used up the tolerance; `prepare` raises it."""
        return self._committer.final_error

    def forget_shares(self) -> None:
        """As `CommitRecords.forget_shares`."""
        self._records.forget_shares()

    def is_due(self) -> bool:
        """Whether a commit should be asked for now."""
        return self._committer.is_due()

    def note_changes(self, size: int) -> None:
        """Count bytes of state that a batch has changed; on the batch thread, which has the turn."""
        self._committer.note_changes(size)

    def raise_if_fenced(self) -> None:
        """Raise what an append has found out already, if anything; makes no request.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        self._committer.raise_if_fenced()

    async def prepare(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> SubmitPlan | None:
        """Ask for a commit of ``batch``; begin its attempt if it may start.

        Returns None where there is nothing to submit now. Blocks (as a coroutine) where
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
                    return await self._begin(batch, versions, is_awaited=is_forced)
                case Decision.SKIP:
                    return None
                case Decision.BLOCK:
                    self.raise_if_fenced()
        return None

    async def submitted(self, plan: SubmitPlan, errors: Mapping[int, str]) -> None:
        """Record that the tasks have submitted; follow the attempt from now on.

        Args:
            plan: What `prepare` returned.
            errors: ``{partition: why}`` of tasks that could not submit: the attempt is aborted. It
                counts as failed unless every reason is `VERSION_NOT_HERE`.
        """
        attempt = self._committer.open_attempt
        if attempt is None or self._plan is not plan:
            return
        if errors:
            lost = lost_by(errors)
            partition = min(errors, key=lambda p: (p in lost, p))
            reason = f"submit failed: task={task_name(partition)} {errors[partition]}"
            end = self._committer.abandon if partition in lost else self._committer.fail
            await end(reason)
            return
        self._committer.follow(attempt, lambda attempt: self._back_up(attempt, plan))

    async def resolve(self, timeout_s: float) -> None:
        """Wait for the open attempt to end, for at most ``timeout_s``; then abort it."""
        await self._committer.resolve(timeout_s)

    async def abort_if_overdue(self) -> None:
        """Give up the open attempt once its time is over, or if not all of it is being worked on.

        For an owner who is between two batches.
        """
        await self._committer.abort_if_overdue()

    async def abort_if_lost(self, lost: Mapping[int, str]) -> None:
        """Abort the open attempt if it still has to upload a version that is lost.

        The commit stays due and is not counted as failed.
        """
        if self._plan is None:
            return
        for partition, version in lost.items():
            if version and self._plan.versions.get(partition) == version:
                await self.abandon(f"a version was lost: task={task_name(partition)}")
                return

    async def abandon(self, reason: str) -> None:
        """Abort the open attempt, if there is one; waiters for its end go on.

        Raises:
            TaskFencedError: Another driver has taken over.
        """
        await self._committer.abandon(reason)

    async def leave(self) -> None:
        """Report why the open attempt failed, where the log has not taken that: the driver ends."""
        self._committer.leave()

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
            attempt.batch,
            attempt.checkpoint_id,
            position,
            elapsed_ms=0,
            tasks_uploaded=len(gathered.checkpoints),
            bytes_uploaded=gathered.bytes_uploaded,
            task_upload_ms=gathered.task_upload_ms,
            was_rolled_forward=True,
            left_out=self._records.left_out(),
        )

    def report_rolled_forward(self, summary: CommitSummary) -> None:
        """Report a commit that was rolled forward."""
        self._on_commit(summary)
        self._report(CommitDone(**asdict(summary)))

    async def _back_up(self, attempt: Attempt, plan: SubmitPlan) -> CommitRecord:
        """Wait for the tasks' entries; return the commit record."""
        all_versions = {partition_of(task): v for task, v in attempt.versions.items()}
        try:
            gathered = await gather(
                plan,
                self._checkpoints,
                self._clock,
                is_awaited=lambda: attempt.is_awaited,
                on_finished=self._report_upload,
                report=self._report,
            )
            attempt.tasks_uploaded = len(plan.versions)
            attempt.bytes_uploaded = gathered.bytes_uploaded
            attempt.task_upload_ms = gathered.task_upload_ms
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
        except Py4JError as exc:
            raise StateBackupError(f"{type(exc).__name__}: {exc}") from exc

    @override
    def committed(self, summary: CommitSummary) -> None:
        self._on_commit(summary)

    @override
    def ended(self, attempt: Attempt, error: Exception) -> None:
        """Do nothing: the next `prepare` raises what is not tolerated."""

    async def _begin(
        self, batch: int, versions: Mapping[int, str], *, is_awaited: bool
    ) -> SubmitPlan:
        began_ns = self._clock.monotonic_ns()
        checkpoint_id = self._committer.next_id()
        self._report(CommitBegan(checkpoint_id.serialize()))
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
        self._plan = replace(
            plan,
            attempt=attempt.number,
            is_awaited=is_awaited,
            is_observed=self._is_observed,
        )
        return self._plan

    def _report_upload(self, plan: SubmitPlan, task: TaskName, done: FinishedTask) -> None:
        self._report(
            TaskUploaded(
                task=task,
                attempt=plan.attempt,
                batch=plan.batch,
                bytes=done.bytes_uploaded,
                elapsed_ms=done.elapsed_ms,
                uploads=msgspec.to_builtins(done.uploads),
                changed_bytes=done.changed_bytes,
                state_bytes=done.state_bytes,
            )
        )


def _found_bad(partitions: Sequence[int]) -> str:
    return f"a backup that was to be kept was found bad: task={task_name(min(partitions))}"


SubmitVersions = Callable[[SubmitPlan], Mapping[int, str]]
"""Lets the tasks submit the versions of a plan; returns ``{partition: why not}``."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of one request to commit."""

    checkpoint_id: str
    lost: frozenset[int]
    """The tasks whose version was not on their host: the attempt is aborted, and they are to be healed."""


class Submission:
    """Begins a commit, lets the tasks submit, and says how that went. Blocking.

    The submission rides on the process job of a batch, between `begin` and `end`, or has a Spark job
    of its own in `submit`.
    """

    def __init__(
        self, thread: CommitThread, commits: JobCommits, submit_versions: SubmitVersions
    ) -> None:
        self._thread = thread
        self._commits = commits
        self._submit_versions = submit_versions

    def begin(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> SubmitPlan | None:
        """Ask for a commit; see `JobCommits.prepare`."""
        return self._thread.run(self._commits.prepare(batch, versions, is_forced=is_forced))

    def end(self, plan: SubmitPlan, errors: Mapping[int, str]) -> Submitted:
        """Record how the tasks have submitted; see `JobCommits.submitted`."""
        self._thread.run(self._commits.submitted(plan, errors))
        return Submitted(plan.checkpoint_id, lost_by(errors))

    def submit(
        self, batch: int, versions: Mapping[int, str], *, is_forced: bool = False
    ) -> Submitted | None:
        """Do both, with a Spark job in between; None where there is nothing to submit now."""
        plan = self.begin(batch, versions, is_forced=is_forced)
        return None if plan is None else self.end(plan, self._submit_versions(plan))


def lost_by(errors: Mapping[int, str]) -> frozenset[int]:
    """Return the tasks that could not submit as their version is not on their host."""
    return frozenset(p for p, why in errors.items() if why.startswith(VERSION_NOT_HERE))


def submit_beside_batches(thread: CommitThread, jobs: TaskJobs) -> SubmitVersions:
    """Return a submit call for threads other than the batch thread: it may be given up, and never raises."""

    def submit_versions(plan: SubmitPlan) -> Mapping[int, str]:
        try:
            return thread.call(jobs.submit_versions, plan)
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            return dict.fromkeys(plan.versions, text_of(exc))

    return submit_versions


class Resubmission:
    """Submits the open attempt again if it takes long: its sidecar may have died.

    A sidecar ignores what it works on already or has finished; a new one begins.
    """

    def __init__(
        self,
        thread: CommitThread,
        commits: JobCommits,
        submit_versions: SubmitVersions,
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        """Take what to watch.

        Args:
            thread: Runs what the commits are asked.
            commits: Have the open attempt.
            submit_versions: Never raises.
            clock: Tells how long it takes.
            timeout_ms: How long an attempt is left alone, each time.
        """
        self._thread = thread
        self._commits = commits
        self._submit_versions = submit_versions
        self._clock = clock
        self._timeout_ns = timeout_ms * 1_000_000
        self._awaited: SubmitPlan | None = None
        self._repeat_at_ns = 0

    def poll(self) -> bool:
        """Check once; repeat the submission if the same attempt has been open for long.

        Returns:
            Whether a version that it needs was found lost: the attempt is aborted.

        Raises:
            RetriableError: The job log cannot be written.
            TaskFencedError: Another driver has taken over.
        """
        plan, now_ns = self._commits.open_plan, self._clock.monotonic_ns()
        if plan is not self._awaited:
            self._awaited, self._repeat_at_ns = plan, now_ns + self._timeout_ns
        if plan is None or now_ns < self._repeat_at_ns:
            return False
        self._repeat_at_ns = now_ns + self._timeout_ns
        logger.warning("commit takes long, its versions are submitted again: batch=%d", plan.batch)
        errors = self._submit_versions(plan)
        if errors:
            logger.warning("versions could not all be submitted again: tasks=%d", len(errors))
        lost = {p: plan.versions[p] for p in lost_by(errors)}
        self._thread.run(self._commits.abort_if_lost(lost))
        return bool(lost)


_TASKS_AT_ONCE: Final = 8
"""Enough to overlap waiting; a job may have hundreds of tasks, and each needs clients."""


def job_clean_up(
    spec: JobSpec,
    partitions: int,
    factories: Mapping[BackendName, StateBackendFactory],
    *,
    log: LogSession,
    checkpoints: CheckpointStore,
    executor: BlockingExecutor,
    clock: Clock,
    on_gone: Callable[[], None] = lambda: None,
    report: Report = report_nothing,
) -> CleanUp:
    """Return the clean-up of a job, on the commit thread's loop.

    Args:
        spec: The job.
        partitions: How many tasks it has.
        factories: Its backends.
        log: Taken over by this driver.
        checkpoints: Where sidecars put each task's entry.
        executor: For blocking calls.
        clock: For ages and durations.
        on_gone: Called once a clone uses nothing of other jobs any more.
        report: Gets what was done.
    """
    limit = asyncio.Semaphore(_TASKS_AT_ONCE)
    stores = {name: spec.config.store(name) for name in spec.stores}

    async def delete(sweep: TaskSweep) -> bool:
        """Let the backends of one task delete; nothing of them is kept open between runs."""
        async with limit:
            pipeline = TaskStorageCommitManager(
                spec.task(partition_of(sweep.task)),
                stores,
                factories,
                executor=executor,
                clock=clock,
                report=report,
            )
            if sweep.newest is not None:
                pipeline.leave_out(sweep.newest)
            try:
                return await pipeline.clean_up(sweep.retained, sweep.closed)
            finally:
                await pipeline.close()

    # Also those that the job had when it had more of them.
    named = {*range(partitions), *map(partition_of, log.view.tasks)}
    return CleanUp(
        log,
        [task_name(partition) for partition in sorted(named)],
        delete,
        spec.config.checkpoint,
        clock,
        checkpoints=checkpoints,
        drop_pins=OriginPins(
            log, factories, OriginLogs(factories, executor, clock), on_gone
        ).drop_unneeded,
        report=report,
        subject=f"job={spec.config.job.name}",
    )

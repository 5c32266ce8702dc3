"""The batch loop: process, deliver, record; heal what is lost in between (R3-R6)."""

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import JobIdentity
from statekeep.clock import Clock
from statekeep.commit.policy import CommitPolicy, Urgency
from statekeep.config.model import Config
from statekeep.errors import CommitFailedError, RestoreFailedError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.batch_token import BatchToken, delivering
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.history import VersionHistory, batch_record
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.new_query import first_commit, with_query
from statekeep.spark.driver.processing import (
    BatchProcessor,
    BatchResult,
    LocalState,
    clock_of,
)
from statekeep.spark.driver.recovery import Recovery
from statekeep.spark.driver.stopwatch import Stopwatch
from statekeep.spark.driver.submission import Submission
from statekeep.spark.driver.takeover import Resumption
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.driver.tick_rule import TickRule
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.runner import OperatorSpec, TimedOutcome
from statekeep.spark.tasks import STATE_STORE, partition_of, task_name
from statekeep.spark.worker.errands import MISSING_OUTPUT
from statekeep.spark.worker.job_spec import HandOverPlan

logger = logging.getLogger(__name__)

Sink = Callable[[DataFrame, int], None]

_MAX_ROUNDS: Final = 8
"""Each round of healing may find more executors lost; a cluster that loses some in every round is
failing."""


_FRESH_NS: Final = 1_000_000_000
"""How long the append of the batch record stands for a look for a successor. The append finds one, too,
and usually ends within this time, so that a look costs a request only where something took long. A
successor needs longer than this to take over, recover, and deliver a batch."""


class DeliveryFence:
    """Keeps a driver that was paused after it recorded a batch from delivering it; on the batch thread.

    A process can be stopped at any instruction: it may still be stopped after `check` and go on
    later. `statekeep.spark.current_batch` is for sinks that must refuse it even then.
    """

    def __init__(self, thread: CommitThread, log: LogSession, clock: Clock) -> None:
        self._thread = thread
        self._log = log
        self._clock = clock
        self._recorded_at_ns = self._now_ns()

    def begin(self) -> None:
        """Note the time: the record of the batch is appended next."""
        self._recorded_at_ns = self._now_ns()

    def check(self) -> None:
        """Read the end of the job log, unless the record was appended just now.

        Raises:
            TaskFencedError: Another driver has taken over.
            RetriableError: The job log does not answer.
        """
        # The monotonic clock may stand still while the machine is suspended. The wall clock catches
        # up then. Where it is wrong it can only bring about one more look.
        passed_ns = [
            abs(now - then) for now, then in zip(self._now_ns(), self._recorded_at_ns, strict=True)
        ]
        if max(passed_ns) > _FRESH_NS:
            self._thread.run(self._log.check_fence())

    def _now_ns(self) -> tuple[int, int]:
        return self._clock.monotonic_ns(), self._clock.time_ns()


@dataclass(slots=True)
class BatchStatistics:
    """What the newest batch did, for progress reports."""

    batch: int = -1
    rows_in: int = 0
    rows_out: int = 0
    changed_keys: int = 0
    timed: TimedOutcome = field(default_factory=TimedOutcome)
    pauses_ns: list[int] = field(default_factory=list[int])
    local: LocalState = field(default_factory=LocalState)
    """Hits and misses are the batch's; sizes are the newest that each task has told of."""


class BatchLoop:
    """Runs the batches of one query in order. Blocking, by one thread at a time.

    A batch is: hand over the commit that is due, process, deliver, record. Whatever gets lost on
    the way is recovered inside the waiting call, and only for the tasks that lost it.
    """

    def __init__(
        self,
        *,
        frame: DataFrame,
        operator: OperatorSpec,
        config: Config,
        location: CheckpointLocation,
        identity: JobIdentity,
        thread: CommitThread,
        log: LogSession,
        commits: JobCommits,
        jobs: TaskJobs,
        sink: Sink,
        events: EventList,
        clock: Clock,
        tick_rule: TickRule | None = None,
    ) -> None:
        self._operator = operator
        self._config = config
        self._location = location
        self._identity = identity
        self._thread = thread
        self._log = log
        self._commits = commits
        self._jobs = jobs
        self._sink = sink
        self._events = events
        self._clock = clock
        self._tick_rule = tick_rule
        self._is_new = True
        self._undeclared: set[str] = set()
        self.head = -1
        """H: the newest batch that is recorded."""
        self.last_batch = BatchStatistics()
        self._history = VersionHistory(identity.partitions)
        self._processor = BatchProcessor(jobs)
        self._fence = DeliveryFence(thread, log, clock)
        self._policy = CommitPolicy(config.task)
        self._submission = Submission(thread, commits, jobs.hand_over)
        self._recovery = Recovery(
            frame=frame,
            location=location,
            jobs=jobs,
            processor=self._processor,
            history=self._history,
            log=log,
            thread=thread,
            is_divergence_fatal=config.task.divergence == "error",
        )

    def resume(self, resumption: Resumption, stopwatch: Stopwatch) -> None:
        """Bring every task to the newest batch that counts, before the query starts."""
        self._is_new = resumption.is_new_query
        began_ns = self._clock.monotonic_ns()
        self._history.load(self._log.view, resumption.head)
        self.head = resumption.head
        everyone = range(self._identity.partitions)
        summary = self._recovery.recover(
            everyone, resumption.head, is_thorough=True, on_phase=stopwatch.lap
        )
        self._note_recovery(summary.__dict__, began_ns)

    def run(self, rows: DataFrame, batch: int) -> None:
        """Process one batch, record it, deliver its output.

        Raises:
            StateBackupError: The batch is not the next one, or cannot be processed exactly.
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
        """
        if self._is_new:
            self._begin()
        if batch <= self._commits.committed_batch:
            self._check_repeated(batch)
            return
        if batch > self.head + 1 and batch - 1 in self._log.view.overtaken_batches:
            self._catch_up(batch - 1)
        if batch != self.head + 1:
            msg = f"not the next batch: batch={batch} head={self.head}"
            raise StateBackupError(msg)
        offsets = self._location.require(f"offsets/{batch}")
        plan = self._prepare_commit()
        result = self._process_all(rows, batch, offsets, plan)
        self._deliver(rows, batch, offsets, result)
        self.head = batch
        if self._tick_rule is not None:
            self._tick_rule.note_batch(self._clock_of(batch, offsets), result.next_times)
        self._history.forget_below(min(self._retained_batches(), default=-1))
        self._note(batch, result)
        if self._policy.is_each_batch:
            self._commit_inside_call(batch)

    def versions(self, batch: int) -> dict[int, str]:
        """Return ``{partition: VersionId}`` after ``batch``."""
        return self._history.versions(batch)

    def _begin(self) -> None:
        """Write the commit with which a query begins, in its first batch call (R2).

        It is the empty one, unless the job's state is that of a query before.
        """
        began = CheckpointId.at(self._clock.time_ns())
        view = self._log.view
        first = first_commit(view.last_commit, self._identity, began.serialize(), self._log.epoch)
        record = with_query(first, self._location)
        fault_point("empty_commit.before")
        self._thread.run(self._log.append(record))
        fault_point("empty_commit.after")
        self._is_new = False

    def _catch_up(self, batch: int) -> None:
        """Take in a batch that Spark need not call: an older driver's query has ended it (R4).

        That driver had recorded it before this one took over, and wrote its ``commits/`` file
        after this one had looked: it was delivered, by versions that nobody may use.
        """
        self._location.require(f"commits/{batch}")
        logger.warning("an older driver has ended a batch, it is replayed: batch=%d", batch)
        began_ns = self._clock.monotonic_ns()
        everyone = range(self._identity.partitions)
        summary = self._recovery.recover(everyone, batch, is_thorough=False)
        self.head = batch
        self._note_recovery(summary.__dict__, began_ns)

    def _check_repeated(self, batch: int) -> None:
        """A batch that is committed already: Spark repeats it after a crash; nothing to do (R4)."""
        known = self._log.view.known_offsets(batch)
        if known is None or known != self._location.require(f"offsets/{batch}"):
            error = StateBackupError(
                f"Spark repeats a committed batch with other offsets: batch={batch}"
            )
            error.add_note("hint: put the checkpoint location back as it was at that batch")
            raise error

    def _prepare_commit(self) -> HandOverPlan | None:
        urgency = self._policy.before_batch(self.head - self._commits.committed_batch)
        if urgency is None:
            return None
        if urgency is Urgency.HOLDS_UP:
            self._commit_at_limit(self.head)
            return None
        is_forced = urgency is Urgency.WAITS_FOR_OPEN
        return self._submission.begin(self.head, self.versions(self.head), is_forced=is_forced)

    def _commit_inside_call(self, batch: int) -> None:
        """Commit the batch that is being called: the mode that commits every batch.

        Raises:
            CommitFailedError: It could not be committed, whatever is tolerated elsewhere: the next
                batch must not be delivered on top of it.
        """
        checkpoint_id = self._commit_now(batch)
        if self._commits.committed_batch < batch:
            msg = f"the batch could not be committed: batch={batch}"
            error = CommitFailedError(msg, checkpoint_id=checkpoint_id, step="record")
            # What it failed by names the task and the backend.
            raise self._commits.final_error or error

    def _commit_at_limit(self, batch: int) -> None:
        """Let no batch be processed before ``batch`` is committed: a replay could be impossible.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated.
        """
        limit = self._config.task.replay_max_batches
        logger.warning(
            "processing waits for a commit: head=%d committed=%d task.replay.max.batches=%d",
            batch,
            self._commits.committed_batch,
            limit,
        )
        try:
            while self._commits.committed_batch < batch:
                self._commit_now(batch)
        except CommitFailedError as exc:
            exc.add_note(
                f"hint: {limit} batches (task.replay.max.batches) are without a commit; mend the"
                " backend, or raise this together with spark.sql.streaming.minBatchesToRetain"
            )
            raise

    def _commit_now(self, batch: int) -> str:
        """Wait for the end of one attempt, which may fail; return its id."""
        timeout_s = self._config.task.commit_timeout_ms / 1000
        checkpoint_id = ""
        for _ in range(_MAX_ROUNDS):
            done = self._submission.submit(batch, self.versions(batch), is_forced=True)
            if done is None:
                return checkpoint_id
            checkpoint_id = done.checkpoint_id
            self._thread.run(self._commits.settle(timeout_s))
            if not done.lost:
                return checkpoint_id
            self.heal(done.lost, batch)
        msg = f"gave up after {_MAX_ROUNDS} recovery rounds, as versions were lost each time: batch={batch}"
        raise CommitFailedError(msg, checkpoint_id=checkpoint_id, step="upload")

    def _process_all(
        self,
        rows: DataFrame,
        batch: int,
        offsets: str,
        plan: HandOverPlan | None,
        *,
        only: frozenset[int] | None = None,
    ) -> BatchResult:
        """Process a batch in all tasks, healing those that lost their version meanwhile."""
        result = BatchResult()
        for _ in range(_MAX_ROUNDS):
            result.merge(self._process(rows, batch, offsets, only, plan))
            if plan is not None:
                self._submission.end(plan, result.hand_over_errors)
                plan = None
            if not result.missing:
                return result
            only = frozenset(result.missing)
            self.heal(only, batch - 1)
        msg = f"gave up after {_MAX_ROUNDS} recovery rounds, as versions were lost each time: batch={batch}"
        raise RestoreFailedError(
            msg, task_name=task_name(min(result.missing, default=0)), store_names=[STATE_STORE]
        )

    def _process(
        self,
        rows: DataFrame,
        batch: int,
        offsets: str,
        only: frozenset[int] | None,
        plan: HandOverPlan | None,
    ) -> BatchResult:
        clock = self._clock_of(batch, offsets)
        kept = {self._commits.committed_batch, self.head, batch - 1, *self._kept_commits()}
        open_batch = self._commits.open_batch
        if open_batch is not None:
            kept.add(open_batch)
        return self._processor.process_once(
            rows,
            batch,
            self.versions(batch - 1),
            clock,
            only,
            waiting=None if self._tick_rule is None else self._tick_rule.waiting(clock),
            hand_over=plan,
            keep=self._history.kept(kept),
            settled_batch=batch - 1,
            committed=self._committed_versions(),
            has_initial_state=self._history.begins_at(batch),
        )

    def _clock_of(self, batch: int, offsets: str) -> BatchClock:
        is_dropping = self._operator.time_mode is TimeMode.EVENT and batch > 0
        previous = self._location.require(f"offsets/{batch - 1}") if is_dropping else None
        return clock_of(batch, offsets, previous)

    def _record_beside(
        self, batch: int, offsets: str, result: BatchResult
    ) -> tuple[BatchToken, Future[int]]:
        """Begin to say in the log which versions a batch made; of several records the last counts.

        The sink waits for it: what was delivered has its boundaries on record, whatever the
        location loses; and a driver that was replaced delivers nothing.
        """
        self._history.put(batch, result.tasks)
        record = batch_record(self._location, batch, offsets, result.tasks)
        token = BatchToken(self._identity.job_uid, record.query_id, self._log.epoch, batch)
        fault_point("batch_record.before")
        self._fence.begin()
        return token, self._thread.submit(self._log.append(record))

    def _kept_commits(self) -> list[int]:
        """Return the batches of the newest commits, whose versions stay where they are."""
        batches = sorted(self._retained_batches())
        return batches[-self._config.checkpoint.local_retain_versions :]

    def _retained_batches(self) -> list[int]:
        """Return the batches of this query's commits that are not released."""
        return [commit.batch for commit in self._log.view.comparable_commits]

    def _committed_versions(self) -> dict[int, str]:
        commit = self._log.view.last_commit
        versions: Mapping[str, str] = {} if commit is None else commit.versions
        return {partition_of(task): version for task, version in versions.items()}

    def _deliver(self, rows: DataFrame, batch: int, offsets: str, result: BatchResult) -> None:
        """Give the sink the output of the chosen versions; heal those that get lost meanwhile."""
        for _ in range(_MAX_ROUNDS):
            token, recording = self._record_beside(batch, offsets, result)
            try:
                output = self._output_of(result)
            finally:
                recording.result()
                fault_point("batch_record.after")
            fault_point("sink.before")
            self._fence.check()
            try:
                with self._jobs.anchor.tagged(), delivering(token):
                    self._sink(output, batch)
            except Exception as exc:
                if MISSING_OUTPUT not in str(exc) and not self._jobs.anchor.was_stalled(exc):
                    raise
                self._heal_output(rows, batch, offsets, result)
            else:
                fault_point("sink.after")
                return
        msg = f"gave up after {_MAX_ROUNDS} recovery rounds, as output was lost each time: batch={batch}"
        raise RestoreFailedError(
            msg, task_name=task_name(min(result.missing, default=0)), store_names=[STATE_STORE]
        )

    def _output_of(self, result: BatchResult) -> DataFrame:
        """Return what the tasks have put out, in the order of tasks."""
        inline = [part for task in sorted(result.inline) for part in result.inline[task]]
        in_files = {task: result.tasks[task].version for task in result.in_files}
        return self._jobs.output(inline, in_files, self._operator.output_schema)

    def _heal_output(self, rows: DataFrame, batch: int, offsets: str, result: BatchResult) -> None:
        """Process the batch again in the tasks whose output is gone, and only there."""
        versions = {task: result.tasks[task].version for task in result.in_files}
        lost = frozenset(versions) - self._jobs.with_output(versions)
        self._events.add("healed-output", batch=batch, tasks=len(lost))
        if not lost:
            return
        self.heal(lost, batch - 1)
        result.in_files -= lost
        result.merge(self._process_all(rows, batch, offsets, None, only=lost))

    def heal(self, partitions: frozenset[int], head: int) -> None:
        """Recover tasks whose versions are lost, inside the waiting batch call or in its place (R6)."""
        began_ns = self._clock.monotonic_ns()
        logger.warning("tasks lost their state: count=%d head=%d", len(partitions), head)
        lost = {p: self._version_at_open(p) for p in partitions}
        self._thread.run(self._commits.void_if_lost(lost))
        summary = self._recovery.recover(partitions, head, is_thorough=False)
        self._note_recovery(summary.__dict__, began_ns)

    def _version_at_open(self, partition: int) -> str:
        open_batch = self._commits.open_batch
        if open_batch is None or open_batch not in self._history:
            return ""
        return self._history.of(open_batch)[partition].version

    def _warn_undeclared(self, names: Collection[str]) -> None:
        """Name state that the processor does not declare, once a variable."""
        new = sorted(set(names) - self._undeclared)
        if new:
            self._undeclared.update(new)
            self._events.add("undeclared-state", variables=",".join(new))
            logger.warning(
                "the state holds variables that the processor does not declare; they stay as they are,"
                " until deleteIfExists in init() deletes them: variables=%s",
                ",".join(new),
            )

    def _note(self, batch: int, result: BatchResult) -> None:
        self._warn_undeclared(result.undeclared)
        done = result.tasks.values()
        self.last_batch = BatchStatistics(
            batch=batch,
            rows_in=sum(task.rows_in for task in done),
            rows_out=sum(task.rows_out for task in done),
            changed_keys=result.changed_keys,
            timed=result.timed,
            pauses_ns=result.pauses_ns,
            local=LocalState(sizes=self.last_batch.local.sizes) + result.local,
        )
        self._events.add(
            "batch",
            batch=batch,
            rows_in=self.last_batch.rows_in,
            rows_out=self.last_batch.rows_out,
            max_pause_ms=round(max(result.pauses_ns, default=0) / 1e6, 2),
        )

    def _note_recovery(self, details: Mapping[str, Any], began_ns: int) -> None:
        elapsed_ms = (self._clock.monotonic_ns() - began_ns) // 1_000_000
        self._events.add("recovery", elapsed_ms=elapsed_ms, **details)

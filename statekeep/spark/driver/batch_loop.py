"""The batch loop: process, deliver, record; heal what is lost in between (R3-R6)."""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.records import BatchRecord, JobIdentity, TaskBatch
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.errors import RestoreFailedError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.batch_token import BatchToken, delivering
from statekeep.spark.driver.awaited_commits import AwaitedCommits
from statekeep.spark.driver.delivery_fence import DeliveryFence
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.history import VersionHistory
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.processing import (
    BatchProcessor,
    BatchResult,
    LocalState,
    clock_of,
)
from statekeep.spark.driver.recovery import Recovery
from statekeep.spark.driver.reign import Recording, Reign
from statekeep.spark.driver.replay_checks import REPLAY_MARGIN
from statekeep.spark.driver.stopwatch import Stopwatch
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
        reign: Reign,
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
        self._reign = reign
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
        self._fence = DeliveryFence(reign, clock)
        self._awaited_commits = AwaitedCommits(config.task, reign, jobs, self.versions, self._heal)
        self._recovery = Recovery(
            frame=frame,
            location=location,
            jobs=jobs,
            processor=self._processor,
            history=self._history,
            view=reign.view,
            on_replayed=self._record_replayed,
            on_bad_marker=reign.append,
            is_divergence_fatal=config.task.divergence == "error",
        )

    def resume(self, resumption: Resumption, stopwatch: Stopwatch) -> None:
        """Bring every task to the newest batch that counts, before the query starts."""
        self._is_new = resumption.is_new_query
        began_ns = self._clock.monotonic_ns()
        self._load_history(resumption)
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
        if batch <= self._reign.committer.committed_batch:
            self._check_repeated(batch)
            return
        if batch > self.head + 1 and batch - 1 in self._reign.view.overtaken_batches:
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
        self._history.forget_below(min(self._reign.retained_batches(), default=-1))
        self._note(batch, result)
        if self._config.task.is_commit_every_batch:
            self._awaited_commits.commit_inside_call(batch)

    def versions(self, batch: int) -> dict[int, str]:
        """Return ``{partition: VersionId}`` after ``batch``."""
        return self._history.versions(batch)

    def _begin(self) -> None:
        began = CheckpointId.at(self._clock.time_ns())
        self._reign.begin(self._identity, began.serialize())
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
        known = self._reign.view.known_offsets(batch)
        if known is None or known != self._location.require(f"offsets/{batch}"):
            error = StateBackupError(
                f"Spark repeats a committed batch with other offsets: batch={batch}"
            )
            error.add_note("hint: put the checkpoint location back as it was at that batch")
            raise error

    def _prepare_commit(self) -> HandOverPlan | None:
        committer = self._reign.committer
        if self._config.task.is_commit_every_batch:
            return None
        lag = self.head - committer.committed_batch
        limit = self._config.task.replay_max_batches
        if lag >= limit:
            self._awaited_commits.commit_at_limit(self.head)
            return None
        is_lagging = lag >= limit - REPLAY_MARGIN
        return self._reign.run(
            committer.prepare(self.head, self.versions(self.head), is_forced=is_lagging)
        )

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
                self._reign.run(self._reign.committer.handed_over(plan, result.hand_over_errors))
                plan = None
            if not result.missing:
                return result
            only = frozenset(result.missing)
            self._heal(only, batch - 1)
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
        committer = self._reign.committer
        kept = {committer.committed_batch, self.head, batch - 1, *self._kept_commits()}
        if committer.open_batch is not None:
            kept.add(committer.open_batch)
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
    ) -> tuple[BatchToken, Recording]:
        """Begin to say in the log which versions a batch made; of several records the last counts.

        The sink waits for it: what was delivered has its boundaries on record, whatever the
        location loses; and a driver that was replaced delivers nothing.
        """
        self._history.put(batch, result.tasks)
        record = self._record(batch, offsets, result.tasks)
        token = BatchToken(self._identity.job_uid, record.query_id, self._reign.epoch, batch)
        fault_point("batch_record.before")
        self._fence.begin()
        return token, self._reign.append_beside(record)

    def _kept_commits(self) -> list[int]:
        """Return the batches of the newest commits, whose versions stay where they are."""
        batches = sorted(self._reign.retained_batches())
        return batches[-self._config.checkpoint.local_retain_versions :]

    def _committed_versions(self) -> dict[int, str]:
        commit = self._reign.view.last_commit
        versions: Mapping[str, str] = {} if commit is None else commit.versions
        return {partition_of(task): version for task, version in versions.items()}

    def _deliver(self, rows: DataFrame, batch: int, offsets: str, result: BatchResult) -> None:
        """Give the sink the output of the chosen versions; heal those that get lost meanwhile."""
        for _ in range(_MAX_ROUNDS):
            token, recording = self._record_beside(batch, offsets, result)
            try:
                output = self._output_of(result)
            finally:
                recording.wait()
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
        self._heal(lost, batch - 1)
        result.in_files -= lost
        result.merge(self._process_all(rows, batch, offsets, None, only=lost))

    def _heal(self, partitions: frozenset[int], head: int) -> None:
        """Recover tasks whose versions are lost, inside the waiting batch call (R6)."""
        began_ns = self._clock.monotonic_ns()
        logger.warning("tasks lost their state: count=%d head=%d", len(partitions), head)
        self._reign.run(
            self._reign.committer.void_if_lost({p: self._version_at_open(p) for p in partitions})
        )
        summary = self._recovery.recover(partitions, head, is_thorough=False)
        self._note_recovery(summary.__dict__, began_ns)

    def _version_at_open(self, partition: int) -> str:
        open_batch = self._reign.committer.open_batch
        if open_batch is None or open_batch not in self._history:
            return ""
        return self._history.of(open_batch)[partition].version

    def _load_history(self, resumption: Resumption) -> None:
        """Learn from the log which version each task had after each batch that counts."""
        view = self._reign.view
        for commit in view.comparable_commits:
            if commit.versions:
                versions = commit.versions.items()
                self._history.put(
                    commit.batch,
                    {partition_of(task): TaskBatch(version=version) for task, version in versions},
                )
        for batch, record in sorted(view.trusted_batches.items()):
            if batch <= resumption.head:
                tasks = {partition_of(task): done for task, done in record.tasks.items()}
                self._history.put(batch, tasks)

    def _record(self, batch: int, offsets: str, tasks: Mapping[int, TaskBatch]) -> BatchRecord:
        previous = self._location.read(f"commits/{batch - 1}") if batch > 0 else None
        return BatchRecord(
            query_id=self._location.query_id() or "",
            batch=batch,
            offsets=offsets,
            previous_commit=previous,
            tasks={task_name(partition): done for partition, done in tasks.items()},
        )

    def _record_replayed(self, batch: int) -> None:
        """Append the record of a replayed batch: its new versions take the place of the old."""
        tasks = self._history.of(batch)
        known = self._reign.view.batches.get(batch)
        if known is None:
            known = self._record(batch, self._location.require(f"offsets/{batch}"), tasks)
        named = {str(task_name(partition)): done for partition, done in tasks.items()}
        self._reign.append(msgspec.structs.replace(known, tasks=named))

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

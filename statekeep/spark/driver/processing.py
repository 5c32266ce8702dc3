"""Process one batch on the anchored tasks and turn their receipts into what is recorded."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from pyspark.sql import DataFrame

from statekeep.checkpoint.records import TaskBatch
from statekeep.errors import StateBackupError
from statekeep.spark.driver.location import parse_batch_time
from statekeep.spark.driver.task_jobs import Answer, TaskJobs
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.operator.due import NextTimes
from statekeep.spark.operator.runner import TimedOutcome
from statekeep.spark.tasks import task_name
from statekeep.spark.worker.job_spec import BatchPlan, HandOverPlan, Receipt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalState:
    """How the versions on the tasks' hosts served a batch."""

    hits: int = 0
    """Tasks that had their base."""
    misses: int = 0
    """Tasks that had to be recovered first."""
    sizes: Mapping[int, "LocalSizes"] = field(default_factory=dict[int, "LocalSizes"])
    """Of each task that has told of them."""

    def __add__(self, other: "LocalState") -> "LocalState":
        """Return the counts of both, and the newest sizes."""
        sizes = dict(self.sizes)
        for task, newer in other.sizes.items():
            older = sizes.get(task)
            sizes[task] = newer if older is None else newer.or_as(older)
        return LocalState(self.hits + other.hits, self.misses + other.misses, sizes)


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """What one task has on its host after a batch."""

    state_bytes: int
    """Of its stores, files and memory."""
    versions: int
    """0 where they were not counted."""
    all_bytes: int
    """Of all versions; what they share is counted once."""

    def or_as(self, older: "LocalSizes") -> "LocalSizes":
        """Return these sizes, with the versions counted before where they were not this time."""
        if self.versions:
            return self
        return replace(self, versions=older.versions, all_bytes=older.all_bytes)


@dataclass(slots=True)
class BatchResult:
    """What came of processing a batch for some tasks."""

    tasks: dict[int, TaskBatch] = field(default_factory=dict[int, TaskBatch])
    """Of the tasks that are done."""
    missing: set[int] = field(default_factory=set[int])
    """Tasks that do not have their base version on their host."""
    inline: dict[int, Sequence[bytes]] = field(default_factory=dict[int, Sequence[bytes]])
    """Output that came along with the receipts: Arrow record batches."""
    in_files: set[int] = field(default_factory=set[int])
    """Tasks whose change set, made in this batch, holds output."""
    changed_keys: int = 0
    timed: TimedOutcome = field(default_factory=TimedOutcome)
    next_times: dict[int, NextTimes] = field(default_factory=dict[int, NextTimes])
    """Of each task that has told of them."""
    pauses_ns: list[int] = field(default_factory=list[int])
    hand_over_errors: dict[int, str] = field(default_factory=dict[int, str])
    key_ranges: dict[int, str] = field(default_factory=dict[int, str])
    """First and last grouping key of each task's rows, for messages."""
    undeclared: set[str] = field(default_factory=set[str])
    """State variables that some task holds and the processor does not declare."""
    local: LocalState = field(default_factory=LocalState)

    def merge(self, other: "BatchResult") -> None:
        """Add what came of another run of the same batch, for some of its tasks."""
        self.tasks |= other.tasks
        self.missing = (self.missing - other.tasks.keys()) | other.missing
        for task in other.tasks:
            self.inline.pop(task, None)
            self.in_files.discard(task)
        self.inline |= other.inline
        self.in_files |= other.in_files
        self.changed_keys += other.changed_keys
        self.timed += other.timed
        self.next_times |= other.next_times
        self.pauses_ns += other.pauses_ns
        self.hand_over_errors |= other.hand_over_errors
        self.key_ranges |= other.key_ranges
        self.undeclared |= other.undeclared
        self.local += other.local


class BatchProcessor:
    """Runs process jobs. Blocking, on the thread that runs batches."""

    def __init__(self, jobs: TaskJobs) -> None:
        self._jobs = jobs

    def process_once(
        self,
        rows: DataFrame,
        batch: int,
        bases: Mapping[int, str],
        clock: BatchClock,
        only: frozenset[int] | None,
        *,
        is_sorted: bool = False,
        waiting: frozenset[int] | None = None,
        hand_over: HandOverPlan | None = None,
        keep: Mapping[int, tuple[str, ...]] | None = None,
        settled_batch: int = -1,
        committed: Mapping[int, str] | None = None,
        has_initial_state: bool = False,
    ) -> BatchResult:
        """Run one batch for the given tasks; where a task is overrun, once more sorted by Spark.

        Raises:
            StateBackupError: Not every task answered.
        """
        plan = BatchPlan(
            batch=batch,
            epoch=0,
            bases=bases,
            clock=clock,
            only=only,
            is_sorted=is_sorted,
            waiting=waiting,
            hand_over=hand_over,
            keep=keep or {},
            settled_batch=settled_batch,
            committed=committed or {},
            has_initial_state=has_initial_state,
        )
        answers = self._jobs.process(rows, plan)
        expected = set(bases) if only is None else set(only)
        if answers.keys() != expected:
            absent = ",".join(task_name(p) for p in sorted(expected - answers.keys()))
            msg = f"tasks did not answer: batch={batch} tasks={absent}"
            raise StateBackupError(msg)
        result = _result(answers, bases, is_sorted=is_sorted)
        overrun = frozenset(
            p
            for p, answer in answers.items()
            if answer.receipt.is_overflow and not answer.receipt.is_missing
        )
        if overrun:
            logger.info("rows sorted by Spark: batch=%d tasks=%d", batch, len(overrun))
            again = self.process_once(
                rows,
                batch,
                bases,
                clock,
                overrun,
                is_sorted=True,
                waiting=waiting,
                has_initial_state=has_initial_state,
            )
            result.merge(again)
        return result


def clock_of(batch: int, offsets: str, previous_offsets: str | None) -> BatchClock:
    """Return the time of a batch, by what Spark recorded of it and of the batch before.

    Args:
        batch: Its number.
        offsets: The text of ``offsets/<batch>``.
        previous_offsets: The text of the batch before; None for the first one.

    Raises:
        CheckpointLocationError: A text is not what Spark writes.
    """
    time = parse_batch_time(offsets, f"offsets/{batch}")
    late_ms = 0
    if previous_offsets is not None:
        late_ms = parse_batch_time(previous_offsets, f"offsets/{batch - 1}").watermark_ms
    return BatchClock(time.processing_time_ms, time.watermark_ms, late_ms)


def _result(
    answers: Mapping[int, Answer], bases: Mapping[int, str], *, is_sorted: bool
) -> BatchResult:
    result = BatchResult()
    for partition, answer in answers.items():
        receipt = answer.receipt
        result.local += _local_state(receipt, has_base=bool(bases[partition]))
        if receipt.hand_over_error:
            result.hand_over_errors[partition] = receipt.hand_over_error
        if receipt.is_missing:
            result.missing.add(partition)
        elif not receipt.is_overflow:
            result.tasks[partition] = _task_batch(receipt, is_sorted=is_sorted)
            result.key_ranges[partition] = receipt.key_range
            result.changed_keys += receipt.changed_keys
            result.undeclared.update(receipt.undeclared)
            result.timed += _timed(receipt)
            if receipt.next_times is not None:
                result.next_times[partition] = NextTimes(**receipt.next_times)
            if receipt.is_output_in_file:
                result.in_files.add(partition)
            elif answer.output:
                result.inline[partition] = answer.output
        if receipt.pause_ns:
            result.pauses_ns.append(receipt.pause_ns)
    return result


def _timed(receipt: Receipt) -> TimedOutcome:
    return TimedOutcome(**{part.name: getattr(receipt, part.name) for part in fields(TimedOutcome)})


def _local_state(receipt: Receipt, *, has_base: bool) -> LocalState:
    sizes: dict[int, LocalSizes] = {}
    if receipt.state_bytes or receipt.local_versions:
        sizes[receipt.partition] = LocalSizes(
            receipt.state_bytes, receipt.local_versions, receipt.local_bytes
        )
    is_hit = has_base and not receipt.is_missing and not receipt.is_overflow
    return LocalState(int(is_hit), int(receipt.is_missing), sizes)


def _task_batch(receipt: Receipt, *, is_sorted: bool) -> TaskBatch:
    return TaskBatch(
        version=receipt.version,
        rows_in=receipt.rows_in,
        rows_out=receipt.rows_out,
        input_digest=receipt.input_digest,
        output_digest=receipt.output_digest,
        changes_digest=receipt.changes_digest,
        is_sorted=is_sorted,
    )

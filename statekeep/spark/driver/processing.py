"""Process one batch on the tasks; its receipts as records, and which version each task has after it."""

import logging
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import msgspec
from pyspark.sql import DataFrame

from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import BatchRecord, TaskBatch
from statekeep.errors import StateBackupError
from statekeep.spark.driver.location import CheckpointLocation, parse_batch_time
from statekeep.spark.driver.task_jobs import Answer, TaskJobs
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.operator.due import NextTimes
from statekeep.spark.operator.runner import TimedOutcome
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import BatchPlan, Receipt
from statekeep.spark.worker.task_functions import MISSING_OUTPUT

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalState:
    """How the versions on the tasks' hosts served a batch."""

    hits: int = 0
    """Tasks that had their base."""
    misses: int = 0
    """Tasks that had to be recovered first."""
    sizes: Mapping[int, "LocalSizes"] = field(default_factory=dict[int, "LocalSizes"])
    """Of each task that reported them."""

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

    state_bytes: int = 0
    """Of its stores, files and memory."""
    versions: int = 0
    """0 where they were not counted."""
    all_bytes: int = 0
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
    is_broken_off: bool = False
    """Whether an operator could not read the output of the one before: the batch begins again."""
    in_files: set[int] = field(default_factory=set[int])
    """Tasks whose change set, made in this batch, holds output."""
    changed_keys: int = 0
    changed_bytes: int = 0
    """Of the change sets that were made."""
    timed: TimedOutcome = field(default_factory=TimedOutcome)
    next_times: dict[int, NextTimes] = field(default_factory=dict[int, NextTimes])
    """Of each task that reported them."""
    pauses_ns: list[int] = field(default_factory=list[int])
    submit_errors: dict[int, str] = field(default_factory=dict[int, str])
    key_ranges: dict[int, str] = field(default_factory=dict[int, str])
    """First and last grouping key of each task's rows, for messages."""
    undeclared: set[str] = field(default_factory=set[str])
    """State variables that some task holds and the processor does not declare."""
    local: LocalState = field(default_factory=LocalState)
    followed: Counter[str] = field(default_factory=Counter[str])
    """What sidecars have told of the copies that they make, by the names of its fields."""
    by_operator: dict[int, "BatchResult"] = field(default_factory=dict[int, "BatchResult"])
    """The part of each operator; empty in a part."""

    @property
    def is_whole(self) -> bool:
        """Whether every task that was asked for is done."""
        return not self.missing and not self.is_broken_off

    def output_of(self, tasks: range) -> tuple[list[bytes], dict[int, str]]:
        """Return the output of some tasks, in the order of tasks, and the versions that have more."""
        inline = [part for task in tasks for part in self.inline.get(task, ())]
        return inline, {task: self.tasks[task].version for task in self.in_files if task in tasks}

    def merge(self, other: "BatchResult") -> None:
        """Add what came of another run of the same batch, for some of its tasks, or of its next stage."""
        self.tasks |= other.tasks
        self.missing = (self.missing - other.tasks.keys()) | other.missing
        for task in other.tasks:
            self.inline.pop(task, None)
            self.in_files.discard(task)
        self.inline |= other.inline
        self.in_files |= other.in_files
        self.changed_keys += other.changed_keys
        self.changed_bytes += other.changed_bytes
        self.timed += other.timed
        self.next_times |= other.next_times
        self.pauses_ns += other.pauses_ns
        self.submit_errors |= other.submit_errors
        self.key_ranges |= other.key_ranges
        self.undeclared |= other.undeclared
        self.local += other.local
        self.followed += other.followed
        for number, part in other.by_operator.items():
            self.by_operator.setdefault(number, BatchResult()).merge(part)


def process_batch(
    jobs: TaskJobs, rows: DataFrame, plan: BatchPlan, sorted_tasks: Collection[int] = ()
) -> BatchResult:
    """Run one batch, operator by operator. Blocking, on the thread that runs batches.

    It ends early where tasks miss their base, or the output that an operator reads.

    Args:
        jobs: Run the operators.
        rows: Those of the first operator.
        plan: What to do.
        sorted_tasks: Those whose rows Spark is to sort.

    Raises:
        StateBackupError: Not every task answered, or some of an operator are given and not all
            of the one before.
    """
    wanted = frozenset(plan.bases) if plan.only is None else plan.only
    result = BatchResult()
    for number, tasks in enumerate(jobs.tasks):
        here = wanted.intersection(tasks)
        if not here:
            continue
        before = jobs.tasks[number - 1] if number > 0 else range(0)
        if not wanted.issuperset(before):
            raise StateBackupError(f"an operator lacks rows of the one before: batch={plan.batch}")
        is_sorted = not here.isdisjoint(sorted_tasks)
        try:
            if number > 0:
                rows = jobs.rows_behind(number - 1, *result.output_of(before))
            done = _run_stage(jobs, number, rows, replace(plan, is_sorted=is_sorted), here)
            plan = replace(plan, follow_plan=None)  # one request is enough
            result.merge(done)
            result.by_operator[number] = done
        except Exception as exc:
            if number == 0 or MISSING_OUTPUT not in str(exc):
                raise
            _, in_files = result.output_of(before)
            logger.warning("output between two operators is lost: batch=%d", plan.batch)
            result.missing |= in_files.keys() - jobs.with_output(in_files)
            result.is_broken_off = True
        if not result.is_whole:
            break
    return result


def _run_stage(
    jobs: TaskJobs, number: int, rows: DataFrame, plan: BatchPlan, expected: frozenset[int]
) -> BatchResult:
    """Run one operator; where a task is overrun, once more sorted by Spark."""
    only = plan.only and expected
    answers = jobs.process(number, rows, replace(plan, only=only))
    if answers.keys() != expected:
        absent = ",".join(task_name(p) for p in sorted(expected - answers.keys()))
        msg = f"tasks did not answer: batch={plan.batch} tasks={absent}"
        raise StateBackupError(msg)
    result = _result(answers, plan.bases, is_sorted=plan.is_sorted)
    overrun = frozenset(
        p
        for p, answer in answers.items()
        if answer.receipt.is_overflow and not answer.receipt.is_missing
    )
    if overrun:
        logger.info("rows sorted by Spark: batch=%d tasks=%d", plan.batch, len(overrun))
        again = replace(plan, only=overrun, is_sorted=True, submit_plan=None, follow_plan=None)
        result.merge(_run_stage(jobs, number, rows, again, overrun))
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
        result.followed.update(receipt.followed or {})
        if receipt.submit_error:
            result.submit_errors[partition] = receipt.submit_error
        if receipt.is_missing:
            result.missing.add(partition)
        elif not receipt.is_overflow:
            result.tasks[partition] = _task_batch(receipt, is_sorted=is_sorted)
            result.key_ranges[partition] = receipt.key_range
            result.changed_keys += receipt.changed_keys
            result.changed_bytes += receipt.changed_bytes
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


EMPTY = TaskBatch(version="")
"""Before the first batch a task's state is empty, never missing."""


class VersionHistory:
    """The chosen version of each partition after each batch, from the oldest retained commit on.

    Owned by the thread that runs batches.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._batches: dict[int, dict[int, TaskBatch]] = {
            -1: dict.fromkeys(range(partitions), EMPTY)
        }

    def load(self, view: LogView, head: int) -> None:
        """Learn from the log which version each task had after each batch that counts."""
        for commit in view.comparable_commits:
            if commit.versions:
                versions = commit.versions.items()
                self.put(commit.batch, {partition_of(t): TaskBatch(version=v) for t, v in versions})
        for batch, record in sorted(view.trusted_batches.items()):
            if batch <= head:
                self.put(batch, {partition_of(task): done for task, done in record.tasks.items()})

    def __contains__(self, batch: int) -> bool:
        return batch in self._batches

    def put(self, batch: int, tasks: Mapping[int, TaskBatch]) -> None:
        """Set what the given tasks have after ``batch``; others keep what they had."""
        self._batches.setdefault(batch, {}).update(tasks)

    @contextmanager
    def unless_failed(self) -> Generator[None]:
        """Keep what is set inside, unless an error is raised there."""
        before = {batch: dict(tasks) for batch, tasks in self._batches.items()}
        try:
            yield
        except BaseException:
            self._batches = before
            raise

    def of(self, batch: int) -> dict[int, TaskBatch]:
        """Return what each task has after ``batch``; KeyError if that is not known."""
        return self._batches[batch]

    def versions(self, batch: int) -> dict[int, str]:
        """Return ``{partition: VersionId}`` after ``batch``."""
        return {partition: done.version for partition, done in self._batches[batch].items()}

    def begins_at(self, batch: int) -> bool:
        """Return whether ``batch`` is the first of a job whose state was empty before."""
        return batch == 0 and not any(self.versions(-1).values())

    def candidates(self, partition: int, head: int) -> list[tuple[int, str]]:
        """Return (batch, version) that a task could start from, newest first, each version once.

        The batch is the newest one after which the task has that version, whatever the version's
        own number: a task that did nothing keeps its version.
        """
        found: dict[str, int] = {}
        for batch in sorted((b for b in self._batches if b <= head), reverse=True):
            done = self._batches[batch].get(partition)
            if done is not None:
                found.setdefault(done.version, batch)
        return [(batch, version) for version, batch in found.items()]

    def forget_below(self, batch: int) -> None:
        """Drop the batches before ``batch``: no retained commit needs them."""
        for old in [old for old in self._batches if old < batch]:
            del self._batches[old]

    def kept(self, batches: Iterable[int]) -> dict[int, tuple[str, ...]]:
        """Return for each partition its versions after the given batches, without empty state."""
        known = [self._batches[batch] for batch in batches if batch in self._batches]
        return {
            partition: tuple(
                {tasks[partition].version for tasks in known if partition in tasks} - {""}
            )
            for partition in range(self.partitions)
        }


def batch_record(
    location: CheckpointLocation, batch: int, offsets: str, tasks: Mapping[int, TaskBatch]
) -> BatchRecord:
    """Return the record of a batch that is processed.

    Args:
        location: Of the query.
        batch: The batch.
        offsets: Text of its ``offsets/<batch>``.
        tasks: What each has done.
    """
    previous = location.read(f"commits/{batch - 1}") if batch > 0 else None
    return BatchRecord(
        query_id=location.query_id() or "",
        batch=batch,
        offsets=offsets,
        previous_commit=previous,
        tasks={task_name(partition): done for partition, done in tasks.items()},
    )


def replayed_record(
    location: CheckpointLocation, view: LogView, batch: int, tasks: Mapping[int, TaskBatch]
) -> BatchRecord:
    """Return the record of a replayed batch: its new versions take the place of the old."""
    known = view.batches.get(batch)
    if known is None:
        return batch_record(location, batch, location.require(f"offsets/{batch}"), tasks)
    named = {str(task_name(partition)): done for partition, done in tasks.items()}
    return msgspec.structs.replace(known, tasks=named)

"""A slot's part of a batch: its tasks run one after the other on stores that stay open."""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import BinaryIO, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.errors import StateBackupError
from statekeep.fault_points import fault_point
from statekeep.spark.initial_state import divide
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.due import NextTimes, next_times
from statekeep.spark.operator.grouping import GroupingOverflow, hold
from statekeep.spark.operator.runner import OperatorOutcome, OperatorSpec, run_operator
from statekeep.spark.placement import ANSWER_COLUMN, DIGEST_COLUMN, OUTPUT_COLUMN, TASK_COLUMN
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.executor_identity import executor_identity, local_disk
from statekeep.spark.worker.job_spec import BatchPlan, JobSpec, Receipt
from statekeep.spark.worker.open_tasks import freeze_garbage_collector, open_tasks
from statekeep.spark.worker.task_functions import (
    follow,
    is_version_lost,
    own_partition,
    submit,
)
from statekeep.stores.local_files import private_opener
from statekeep.stores.open_task import OpenTask

logger = logging.getLogger(__name__)

_TIDY_BATCHES: Final = 8
"""Change sets that a task makes before it looks for what is not needed any more."""
_BATCHES_A_CHECK: Final = 64
"""Batches between two looks at what tasks have left here that run on other hosts by now."""
_AWAY_NS: Final = 3600 * 1_000_000_000
"""A task whose directory has not changed for so long runs elsewhere, or does nothing."""


def process_slot(
    batches: Iterator[pa.RecordBatch],
    spec: JobSpec,
    plan: BatchPlan,
    slots: Sequence[Sequence[int]],
) -> Iterator[pa.RecordBatch]:
    """Process the rows of a slot's tasks and answer with a receipt, and maybe output, of each.

    Runs in a Spark task. Any number of attempts of one batch may run: each makes versions of its
    own, and none is overwritten. A task without its base answers *missing* instead of raising.

    Args:
        batches: The rows of all tasks of the slot; sorted by task and key where the plan says so.
        spec: The job.
        plan: What to do.
        slots: The tasks of each slot, of whatever operator.
    """
    number = own_partition()
    slot = slots[number]
    run = _SlotRun(spec, plan, [t for t in slot if spec.tasks is None or t in spec.tasks])
    run.submit()
    if plan.follow_plan is not None:
        run.followed = follow(spec, plan.follow_plan, number, epoch=plan.epoch)
    rows = (batch for batch in batches if batch.num_rows)
    if plan.is_sorted:
        for task, task_rows in _split_sorted(rows):
            run.process(task, task_rows)
        run.process_without_rows()
    else:
        try:
            held = hold(rows, spec.operator.grouping_max_bytes)
        except GroupingOverflow:
            for _ in batches:  # Spark waits for the worker to take it
                continue
            run.overflow()
        else:
            for task, part in _split(held) if held is not None else ():
                run.process(task, iter([part]))
            run.process_without_rows()
    fault_point("receipt.before")
    yield run.answers()
    run.tidy_others(time.time_ns())
    open_tasks.trim(spec, plan.epoch, plan.batch, 2 * len(slot))
    freeze_garbage_collector()


@dataclass(slots=True)
class _SlotRun:
    """One batch in one slot."""

    spec: JobSpec
    plan: BatchPlan
    tasks: Sequence[int]
    receipts: dict[int, Receipt] = field(default_factory=dict[int, Receipt])
    outputs: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    inline_bytes: int = 0
    """Of the output that goes along with the receipts."""
    sealed: set[int] = field(default_factory=set[int])
    processed: set[int] = field(default_factory=set[int])
    followed: Mapping[str, int] | None = None
    """What the sidecar has done for requests to follow, if it was asked."""

    def submit(self) -> None:
        """Submit the versions of the commit that rides along, before anything changes."""
        wanted = [t for t in self.tasks if self.plan.only is None or t in self.plan.only]
        self.receipts = {task: Receipt(task, self.plan.bases[task]) for task in wanted}
        if self.plan.submit_plan is None:
            return
        for task, done in submit(self.tasks, self.spec, self.plan.submit_plan).items():
            if done.pause_ns:
                self.sealed.add(task)
            if task in self.receipts:
                self.receipts[task] = replace(
                    self.receipts[task],
                    submit_error=done.error,
                    is_missing=is_version_lost(done.error),
                    pause_ns=done.pause_ns,
                )

    def overflow(self) -> None:
        """Answer for every task that Spark has to sort its rows first."""
        for task, receipt in self.receipts.items():
            self.receipts[task] = replace(receipt, is_overflow=True)

    def process_without_rows(self) -> None:
        """Process the tasks without rows whose timers or values have come to their time.

        Called after the tasks with rows.
        """
        if self.spec.operator.time_mode is TimeMode.NONE:
            return
        for task, receipt in self.receipts.items():
            if task in self.processed or not self._is_waiting(task):
                continue
            if receipt.version:
                self.process(task, iter(()), is_waiting=True)
            else:
                self.receipts[task] = _with_times(receipt, NextTimes())

    def _is_waiting(self, task: int) -> bool:
        return self.plan.waiting is None or task in self.plan.waiting

    def process(
        self, task: int, rows: Iterator[pa.RecordBatch], *, is_waiting: bool = False
    ) -> None:
        """Process the rows of one task; one that ``is_waiting`` only if its time has come."""
        self.processed.add(task)
        receipt = self.receipts[task]
        base = VersionId.parse(receipt.version) if receipt.version else None
        stores = open_tasks.get(self.spec, self.plan.epoch, task, self.plan.batch)
        if receipt.is_missing or not stores.go_to(base):
            self.receipts[task] = replace(receipt, is_missing=True)
            for _ in rows:
                continue
            return
        if is_waiting:
            times = self._next_times(stores)
            if not times.are_due(self.plan.clock, self.spec.operator.time_mode):
                self.receipts[task] = _with_times(receipt, times)
                return
        fault_point("process.before")
        try:
            with stores.batch():
                self.receipts[task] = self._process(task, stores, rows, receipt)
        except GroupingOverflow:
            self.receipts[task] = replace(receipt, is_overflow=True)

    def tidy_others(self, now_ns: int) -> None:
        """Remove what tasks that moved to other hosts have left here and do not need (R13)."""
        if self.plan.batch % _BATCHES_A_CHECK:
            return
        for task in self.plan.keep.keys() - set(self.tasks):
            directory = self.spec.directory(task)
            if directory.is_unused_since(now_ns - _AWAY_NS):
                keep = {VersionId.parse(name) for name in self.plan.keep[task]}
                try:
                    directory.retain(
                        keep, self.plan.resolved_batch, self.spec.stores, is_open=False
                    )
                    directory.sweep()
                except (StateBackupError, OSError) as exc:  # the next look finds it
                    logger.warning(
                        "leftover versions could not be removed: task=%s error=%s", task, exc
                    )

    def answers(self) -> pa.RecordBatch:
        """Return a row per task: its receipt in JSON, and its output as Arrow record batches."""
        job = self.spec.job
        executor = executor_identity().executor_id
        disk = local_disk(job.local_dir) if job.standby_copies > 1 else ""
        for first in list(self.receipts)[:1]:
            self.receipts[first] = replace(self.receipts[first], followed=self.followed)
        receipts = [
            # Escaped, as the text of an error may hold what is no UTF-8: a path, say.
            json.dumps(msgspec.to_builtins(replace(receipt, executor=executor, disk=disk)))
            for receipt in self.receipts.values()
        ]
        outputs = [self.outputs.get(task, []) for task in self.receipts]
        columns = [pa.array(receipts, pa.string()), pa.array(outputs, pa.list_(pa.binary()))]
        return pa.RecordBatch.from_arrays(columns, names=[ANSWER_COLUMN, OUTPUT_COLUMN])

    def _process(
        self, task: int, stores: OpenTask, rows: Iterator[pa.RecordBatch], receipt: Receipt
    ) -> Receipt:
        output = _Output(stores, self.spec.operator, self.plan.inline_bytes - self.inline_bytes)
        initial: Iterator[pa.RecordBatch] | None = None
        if self.plan.has_initial_state:
            initial, rows = divide(rows, DIGEST_COLUMN)
        try:
            outcome = run_operator(
                self._operator(),
                stores.store(STATE_STORE),
                rows,
                is_sorted=self.plan.is_sorted,
                clock=self.plan.clock,
                write_output=output.write,
                digest_column=DIGEST_COLUMN,
                initial=initial,
                others=stores.stores_but(STATE_STORE),
                session=str(self.plan.epoch),
            )
        finally:
            output.close()
        fault_point("process.after")
        done = _with_outcome(receipt, outcome)
        if self.spec.operator.time_mode is not TimeMode.NONE:
            done = _with_times(done, self._next_times(stores))
        if outcome.changed_keys == 0 and outcome.rows_out == 0:
            return done
        changes = stores.publish_changes(self.plan.batch)
        if output.is_in_file:
            done = replace(done, is_output_in_file=True)
        else:
            self.outputs[task] = [bytes(batch.serialize()) for batch in output.held]
            self.inline_bytes += output.held_bytes
        done = replace(
            done,
            version=str(changes.version),
            changed_bytes=changes.size_bytes(self.spec.lasting_stores),
            state_bytes=stores.size_bytes(),
        )
        return self._tidied(task, stores, done)

    def _next_times(self, stores: OpenTask) -> NextTimes:
        """Return when the task is due again: a cache has no say, as a replay finds it empty."""
        lasting = (stores.store(name) for name in self.spec.lasting_stores if name != STATE_STORE)
        return next_times(stores.store(STATE_STORE), self.spec.operator.time_mode, lasting)

    def _operator(self) -> OperatorSpec:
        """Return the operator with a processor of its own for each task, as on Spark."""
        return replace(self.spec.operator, processor=cloudpickle.loads(self.spec.processor))

    def _tidied(self, task: int, stores: OpenTask, receipt: Receipt) -> Receipt:
        """Remove local versions that are not needed any more, and dead work directories (R13)."""
        untidy = stores.untidy_batches
        if untidy is not None and untidy < _TIDY_BATCHES and task not in self.sealed:
            stores.untidy_batches = untidy + 1
            return receipt
        stores.untidy_batches = 0
        committed = self.plan.committed.get(task)
        stores.forget_changes(VersionId.parse(committed) if committed else None)
        keep = {VersionId.parse(name) for name in self.plan.keep.get(task, ())}
        stores.directory.retain(keep, self.plan.resolved_batch, self.spec.stores)
        stores.directory.sweep()
        usage = stores.directory.usage()
        return replace(receipt, local_versions=usage.versions, local_bytes=usage.size_bytes)


class _Output:
    """The output of one task: held up to a bound, then a file of the change set."""

    def __init__(self, stores: OpenTask, operator: OperatorSpec, max_held_bytes: int) -> None:
        self._path = stores.output_path
        self._schema = arrow_schema(operator.output_schema)
        self._max_held_bytes = max_held_bytes
        self._file: BinaryIO | None = None
        self._writer: pa.RecordBatchFileWriter | None = None
        self.held: list[pa.RecordBatch] = []
        self.held_bytes = 0

    @property
    def is_in_file(self) -> bool:
        return self._writer is not None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, which have the declared schema."""
        if self._writer is None:
            self.held.append(rows)
            self.held_bytes += rows.nbytes
            if self.held_bytes <= self._max_held_bytes:
                return
            self._file = open(self._path, "xb", opener=private_opener)  # noqa: SIM115 - see close
            self._writer = pa.ipc.new_file(self._file, self._schema)
            held, self.held = self.held, []
            for batch in held:
                self._writer.write_batch(batch)
        else:
            self._writer.write_batch(rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()


def _with_outcome(receipt: Receipt, outcome: OperatorOutcome) -> Receipt:
    return replace(
        receipt,
        rows_in=outcome.rows_in,
        rows_out=outcome.rows_out,
        changed_keys=outcome.changed_keys,
        has_output=outcome.rows_out > 0,
        input_digest=outcome.input_digest,
        output_digest=outcome.output_digest,
        changes_digest=outcome.changes_digest,
        key_range=outcome.key_range,
        undeclared=outcome.undeclared,
        variables=outcome.variables,
        **asdict(outcome.timed),
    )


def _with_times(receipt: Receipt, times: NextTimes) -> Receipt:
    return replace(receipt, next_times=asdict(times))


def _split(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each task, in their order."""
    tasks = rows.column(TASK_COLUMN).to_numpy()
    if (tasks[1:] < tasks[:-1]).any():
        order = np.argsort(tasks, kind="stable")
        rows, tasks = rows.take(pa.array(order)), tasks[order]
    starts = [0, *(np.flatnonzero(tasks[1:] != tasks[:-1]) + 1).tolist(), len(tasks)]
    for start, end in pairwise(starts):
        yield int(tasks[start]), rows.slice(start, end - start)


def _split_sorted(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield each task with its rows, which come sorted by task; take one to its end before the next."""
    parts = (part for batch in batches for part in _split(batch))
    ahead = next(parts, None)
    while ahead is not None:
        task = ahead[0]

        def rows_of(number: int = task) -> Iterator[pa.RecordBatch]:
            nonlocal ahead
            while ahead is not None and ahead[0] == number:
                batch = ahead[1]
                ahead = next(parts, None)
                yield batch

        rows = rows_of()
        yield task, rows
        for _ in rows:  # what the processor did not want
            continue

"""One anchored task of a process job: base version in, rows through the processor, version out."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from statekeep.checkpoint.version_id import VersionId
from statekeep.fault_points import fault_point
from statekeep.spark.anchor import DIGEST_COLUMN
from statekeep.spark.operator.grouping import GroupingOverflow
from statekeep.spark.operator.runner import OperatorOutcome, run_operator
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.errands import (
    answer,
    find_version,
    hand_over_version,
    own_partition,
)
from statekeep.spark.worker.executor_identity import executor_identity
from statekeep.spark.worker.job_spec import OUTPUT_FILE, BatchPlan, JobSpec, Receipt
from statekeep.stores.rocksdb import RocksDbOptions
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion


def process_partition(
    batches: Iterator[pa.RecordBatch], spec: JobSpec, plan: BatchPlan
) -> Iterator[pa.RecordBatch]:
    """Process the rows of this partition and answer with one receipt.

    Runs in a Spark task. Any number of attempts of one batch may run: each makes a version of its
    own, and none is overwritten. A task without its base answers *missing* instead of raising.
    """
    partition = own_partition()
    hand_over_error = ""
    if plan.hand_over is not None:
        hand_over_error = hand_over_version(spec, plan.hand_over, partition)
    if plan.only is not None and partition not in plan.only:
        _drain(batches)
        return
    receipt = _process(batches, spec, plan, partition)
    fields = asdict(receipt) | {
        "hand_over_error": hand_over_error,
        "executor": executor_identity().executor_id,
    }
    fault_point("receipt.before")
    yield answer(fields)


def _process(
    batches: Iterator[pa.RecordBatch], spec: JobSpec, plan: BatchPlan, partition: int
) -> Receipt:
    directory = spec.directory(partition)
    base_name = plan.bases[partition]
    base = find_version(directory, base_name) if base_name else None
    if base_name and base is None:
        _drain(batches)
        return Receipt(partition, base_name, is_missing=True)
    rows = next((batch for batch in batches if batch.num_rows), None)
    if rows is None:
        return Receipt(partition, base_name)
    attempt = _Attempt(
        directory=directory,
        spec=spec,
        plan=plan,
        base=base,
        base_name=base_name,
        partition=partition,
    )
    try:
        receipt = attempt.run(chain([rows], batches))
    except GroupingOverflow:
        _drain(batches)
        return Receipt(partition, base_name, is_overflow=True)
    _tidy(directory, plan, partition)
    if not receipt.state_bytes:
        return receipt
    usage = directory.usage()
    return replace(receipt, local_versions=usage.versions, local_bytes=usage.size_bytes)


class _Attempt:
    """One attempt to process one batch in one task, in a work directory of its own."""

    def __init__(
        self,
        *,
        directory: TaskDirectory,
        spec: JobSpec,
        plan: BatchPlan,
        base: SealedVersion | None,
        base_name: str,
        partition: int,
    ) -> None:
        self._partition = partition
        self._directory = directory
        self._spec = spec
        self._plan = plan
        self._base = base
        self._base_name = base_name

    def run(self, batches: Iterator[pa.RecordBatch]) -> Receipt:
        """Process, seal, and return the receipt."""
        uid = uuid.uuid4().hex
        settings = self._spec.config.store(STATE_STORE)
        with self._directory.begin(
            uid, self._base, [STATE_STORE], captured=self._spec.captured_stores
        ) as work:
            store = work.open_store(STATE_STORE, settings.factory, RocksDbOptions.of(settings))
            fault_point("process.before")
            with _OutputFile(work.file(OUTPUT_FILE), self._spec) as output:
                outcome = run_operator(
                    self._spec.operator,
                    store,
                    batches,
                    is_sorted=self._plan.is_sorted,
                    clock=self._plan.clock,
                    write_output=output.write,
                    digest_column=DIGEST_COLUMN,
                )
                fault_point("process.after")
            fault_point("output.after")
            began_ns = time.monotonic_ns()
            if outcome.changed_keys == 0 and outcome.rows_out == 0:
                return self._receipt(self._base_name, outcome, 0)
            fault_point("seal.before")
            version = work.seal(self._plan.batch, uid, self._base, committed=self._committed())
            pause_ns = time.monotonic_ns() - began_ns
            fault_point("seal.after")
        size = sum(file.size for file in version.store_files(STATE_STORE))
        return replace(self._receipt(str(version.id), outcome, pause_ns), state_bytes=size)

    def _committed(self) -> VersionId | None:
        name = self._plan.committed.get(self._partition)
        return VersionId.parse(name) if name else None

    def _receipt(self, version: str, outcome: OperatorOutcome, pause_ns: int) -> Receipt:
        return Receipt(
            partition=self._partition,
            version=version,
            rows_in=outcome.rows_in,
            rows_out=outcome.rows_out,
            changed_keys=outcome.changed_keys,
            has_output=outcome.rows_out > 0,
            input_digest=outcome.input_digest,
            output_digest=outcome.output_digest,
            changes_digest=outcome.changes_digest,
            key_range=outcome.key_range,
            pause_ns=pause_ns,
        )


class _OutputFile:
    """The output of a batch as an Arrow file, made with its first rows."""

    def __init__(self, path: Path, spec: JobSpec) -> None:
        self._path = path
        self._schema = to_arrow_schema(spec.operator.output_schema)
        self._writer: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> Self:
        return self

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, which have the declared schema."""
        if self._writer is None:
            self._writer = pa.ipc.new_file(str(self._path), self._schema)
        self._writer.write_batch(rows)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()


def _tidy(directory: TaskDirectory, plan: BatchPlan, partition: int) -> None:
    """Collect local versions that nobody needs any more, and dead work directories (R13)."""
    keep = {VersionId.parse(name) for name in plan.keep.get(partition, ())}
    directory.retain(keep, plan.settled_batch)
    directory.sweep()


def _drain(batches: Iterator[pa.RecordBatch]) -> None:
    """Read the rest of the input: Spark waits for the worker to take it."""
    for _ in batches:
        continue

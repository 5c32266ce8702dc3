"""One batch of one task: input batches in, state changed, output batches and digests out."""

# pyarrow and pandas ship no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from statekeep.spark.operator.changes import ChangeWriter
from statekeep.spark.operator.digests import RowHashSum
from statekeep.spark.operator.grouping import Grouping, KeyChunk
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.inputs import FrameInputs, Inputs, RowInputs
from statekeep.spark.operator.outputs import FrameOutputs, Outputs, RowOutputs
from statekeep.spark.operator.variables import KeyCursor, StateAccess
from statekeep.stores.base import KeyValueStore


@dataclass(frozen=True)
class OperatorSpec:
    """What the operator is: the same for every task and batch."""

    processor: StatefulProcessor
    """The user's; used for one batch, then done with."""
    key_columns: tuple[str, ...]
    """The grouping columns, by name, in the order of ``key_schema``."""
    key_schema: StructType
    row_schema: StructType
    """The columns given to the processor, the grouping columns among them."""
    output_schema: StructType
    is_pandas: bool
    """Whether the processor takes and yields pandas frames."""
    grouping_max_bytes: int
    """Most Arrow data that is grouped in memory."""
    time_zone: str = "UTC"
    """The session's time zone: in which naive timestamps of pandas frames are meant."""


@dataclass(frozen=True)
class BatchClock:
    """The time of a batch, in a replay that of its first run; -1 where it has none."""

    processing_time_ms: int
    watermark_ms: int


@dataclass(frozen=True)
class OperatorOutcome:
    """What a run did; two runs of one batch on one state give equal ones."""

    rows_in: int
    rows_out: int
    keys: int
    """Grouping keys that had rows."""
    changed_keys: int
    """Entries of the store that were put or deleted."""
    input_digest: str
    """Order-free; empty without a digest column."""
    output_digest: str
    changes_digest: str
    key_range: str = ""
    """The first and the last grouping key in the order of processing, for people."""


def run_operator(
    spec: OperatorSpec,
    store: KeyValueStore,
    batches: Iterator[pa.RecordBatch],
    *,
    is_sorted: bool,
    clock: BatchClock,
    write_output: Callable[[pa.RecordBatch], None],
    digest_column: str | None,
) -> OperatorOutcome:
    """Run the processor over all rows of one batch.

    Keys are processed in ascending order of their encoded form, each once; what the processor
    yields for a key is taken to its end before the next key begins. The store is written as the
    run goes on: after an error its content is undefined, and the caller discards it.

    Args:
        spec: The operator.
        store: The task's state as of the batch before; used by this call alone.
        batches: The rows, with the columns of ``spec.row_schema`` and maybe others.
        is_sorted: Whether rows come sorted by the grouping columns, ascending, nulls first: then
            memory is bounded whatever their number.
        clock: What the processor's ``TimerValues`` say.
        write_output: Called with each record batch of output, in order, on this thread.
        digest_column: A column of int64 hashes, one per row, that the input digest is made of.

    Returns:
        Counts and digests.

    Raises:
        GroupingOverflow: Rows that are not sorted take more than ``spec.grouping_max_bytes``;
            the processor has not been called.
        StateSchemaError: State or output does not fit what was declared.
        ConfigError: The processor uses what is not supported, or state outside its calls.
        Exception: Whatever the processor raises, with a note that names the grouping key.
    """
    return _Run(spec, store, clock, write_output).over(batches, digest_column, is_sorted=is_sorted)


class _Run:
    def __init__(
        self,
        spec: OperatorSpec,
        store: KeyValueStore,
        clock: BatchClock,
        write_output: Callable[[pa.RecordBatch], None],
    ) -> None:
        self._spec = spec
        self._processor = spec.processor
        self._timer_values = TimerValues(clock.processing_time_ms, clock.watermark_ms)
        self._cursor = KeyCursor()
        self._writer = ChangeWriter(store)
        self._handle = LocalHandle(StateAccess(store, self._cursor, self._writer), spec.key_schema)
        self._grouping = Grouping(spec.key_columns, spec.key_schema)
        self._inputs: Inputs
        self._outputs: Outputs
        if spec.is_pandas:
            self._inputs = FrameInputs(spec.time_zone)
            self._outputs = FrameOutputs(spec.output_schema, write_output, spec.time_zone)
        else:
            self._inputs = RowInputs(spec.row_schema)
            self._outputs = RowOutputs(spec.output_schema, write_output)
        self._rows_in = 0
        self._key_count = 0
        self._first_key: tuple[object, ...] | None = None
        self._last_key: tuple[object, ...] | None = None
        self._input_digest = RowHashSum()

    def over(
        self, batches: Iterator[pa.RecordBatch], digest_column: str | None, *, is_sorted: bool
    ) -> OperatorOutcome:
        incoming = self._incoming(batches, digest_column)
        if is_sorted:
            chunks = self._grouping.sorted_stream(incoming)
        else:
            chunks = self._grouping.in_memory(incoming, self._spec.grouping_max_bytes)
        # The first chunk is asked for before init: an overflow must not have called the processor.
        first = next(chunks, None)
        self._with_processor(first, chunks)
        return OperatorOutcome(
            rows_in=self._rows_in,
            rows_out=self._outputs.rows_out,
            keys=self._key_count,
            changed_keys=self._writer.changed_keys,
            input_digest="" if digest_column is None else self._input_digest.hexdigest(),
            output_digest=self._outputs.digest,
            changes_digest=self._writer.digest,
            key_range=self._key_range(),
        )

    def _key_range(self) -> str:
        if self._first_key is None:
            return ""
        return f"{self._first_key!r:.80}..{self._last_key!r:.80}"

    def _incoming(
        self, batches: Iterator[pa.RecordBatch], digest_column: str | None
    ) -> Iterator[pa.RecordBatch]:
        names = self._spec.row_schema.names
        for batch in batches:
            self._rows_in += batch.num_rows
            if digest_column is not None:
                self._input_digest.update(batch.column(digest_column))
            yield batch.select(names)

    def _with_processor(self, first: KeyChunk | None, chunks: Iterator[KeyChunk]) -> None:
        try:
            self._processor.init(self._handle)
            self._handle.seal()
            if first is not None:
                self._process(first)
            for chunk in chunks:
                self._process(chunk)
            self._writer.require_whole()
            self._outputs.finish()
        except BaseException as exc:
            self._handle.close()
            self._close_after(exc)
            raise
        try:
            self._processor.close()
        finally:
            self._handle.close()

    def _close_after(self, failure: BaseException) -> None:
        try:
            self._processor.close()
        except Exception as exc:  # noqa: BLE001 - the first error is the one to raise
            failure.add_note(f"close() of the processor failed too: {exc!r}")

    def _process(self, chunk: KeyChunk) -> None:
        cursor = self._cursor
        cursor.enter(chunk.key_columns, chunk.key_bytes)
        if self._first_key is None:
            self._first_key = tuple(column[0] for column in chunk.key_columns)
        self._last_key = tuple(column[-1] for column in chunk.key_columns)
        handle_rows = self._processor.handleInputRows
        take = self._outputs.add
        timer_values = self._timer_values
        keys = zip(*chunk.key_columns, strict=True)
        try:
            for index, (key, rows) in enumerate(zip(keys, self._inputs.of(chunk), strict=True)):
                cursor.index = index
                take(handle_rows(key, rows, timer_values))
        except Exception as exc:
            if not self._outputs.is_writing:
                exc.add_note(f"while processing grouping key {cursor.key!r}")
            raise
        self._handle.flush()
        cursor.leave()
        self._key_count += len(chunk.key_bytes)

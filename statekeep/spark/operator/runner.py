"""One batch of one task: input batches in, state changed, output batches and digests out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import chain
from operator import add

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)
from pyspark.sql.types import StructType

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.errors import StateSchemaError
from statekeep.spark.operator.arrow_function import ArrowProcessor
from statekeep.spark.operator.arrow_state import ChunkCursor
from statekeep.spark.operator.changes import ChangeWriter, RowHashSum
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.combiner import ROWS_COLUMN, Combiner
from statekeep.spark.operator.declarations import Declarations
from statekeep.spark.operator.grouping import Grouping, KeyChunk
from statekeep.spark.operator.handle import LocalHandle
from statekeep.spark.operator.inputs import FrameLimits, Inputs, RowInputs
from statekeep.spark.operator.outputs import ArrowOutputs, Outputs, RowOutputs
from statekeep.spark.operator.timers import DueTimers, Timers
from statekeep.spark.operator.variables import KeyCursor
from statekeep.spark.variable_stores import VariableStores
from statekeep.stores.base import KeyValueStore


@dataclass(frozen=True)
class InitialStateSpec:
    """The rows that the state begins with."""

    key_columns: tuple[str, ...]
    """Their grouping columns, in the order of the operator's ``key_schema``."""
    row_schema: StructType


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
    declared: Declarations = field(default_factory=Declarations)
    """What ``init`` declares."""
    frame_limits: FrameLimits = field(default_factory=FrameLimits)
    initial_state: InitialStateSpec | None = None
    is_int_taken_for_decimal: bool = False
    """Whether an integer that a frame holds fits a column of decimals, as a setting of Spark says."""
    is_widened: bool = True
    """Whether all integers of frames have 64 bits, and all floats."""
    name: str = MAIN_OPERATOR
    """Names the operator within its query."""
    time_mode: TimeMode = TimeMode.NONE
    event_time_column: str | None = None
    """The column of the watermark: a timestamp, or a window; None where there is none."""
    output_time_column: str | None = None
    """The column of the output that becomes the event time: its rows must be newer than the watermark."""
    combiner: Combiner | None = None
    """What puts rows together before they are routed; ``row_schema`` is that of combined rows."""
    variable_stores: VariableStores = field(default_factory=VariableStores)
    """Which state variables are in other stores than `STATE_STORE`."""


@dataclass(frozen=True)
class TimedOutcome:
    """What a run did because of its time; all zero in a time mode without timers."""

    late_rows: int = 0
    """Rows that were dropped as older than the watermark; they count as rows in."""
    registered_timers: int = 0
    deleted_timers: int = 0
    fired_timers: int = 0
    expired_values: int = 0

    def __add__(self, other: "TimedOutcome") -> "TimedOutcome":
        """Return the sums of both."""
        return TimedOutcome(*map(add, astuple(self), astuple(other)))


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
    undeclared: tuple[str, ...] = ()
    """State variables that the store holds and ``init`` has not declared."""
    variables: tuple[str, ...] | None = None
    """Those that ``init`` has declared or deleted, where it could not say so on the driver."""
    timed: TimedOutcome = field(default_factory=TimedOutcome)


def run_operator(
    spec: OperatorSpec,
    store: KeyValueStore,
    batches: Iterator[pa.RecordBatch],
    *,
    is_sorted: bool,
    clock: BatchClock,
    write_output: Callable[[pa.RecordBatch], None],
    digest_column: str | None,
    initial: Iterator[pa.RecordBatch] | None = None,
    others: Mapping[StoreName, KeyValueStore] | None = None,
    session: str = "",
) -> OperatorOutcome:
    """Run the processor over all rows of one batch.

    Keys are processed in ascending order of their encoded form, each once; what the processor
    yields for a key is taken to its end before the next key begins. Then the timers fire that are due,
    by time and then by key, those among them that this batch has registered; one that is registered
    while timers fire has to wait for the next batch. Then state is removed that has outlived its time.
    The store is written as the
    run goes on: after an error its content is undefined, and the caller discards it.

    The rows of an initial state come first, all of them; Spark has those of a key before the key's
    other rows, which is the same to a processor, as it sees the state of one key at a time.

    Args:
        spec: The operator.
        store: The task's `STATE_STORE` as of the batch before; used by this call alone.
        batches: The rows, with the columns of ``spec.row_schema`` and maybe others.
        is_sorted: Whether rows come sorted by the grouping columns, ascending, nulls first: then
            memory is bounded whatever their number.
        clock: When the batch takes place.
        write_output: Called with each record batch of output, in order, on this thread.
        digest_column: A column of int64 hashes, one per row, that the input digest is made of.
        initial: The rows of the initial state, in the order that ``is_sorted`` says too; read to
            their end before ``batches`` if they are sorted. None: there is none.
        others: The task's other stores.
        session: Of the driver: a cache that was filled in another one is emptied.

    Returns:
        Counts and digests.

    Raises:
        GroupingOverflow: Rows that are not sorted take more than ``spec.grouping_max_bytes``;
            the processor has not been called.
        StateSchemaError: State or output does not fit what was declared.
        ConfigError: The processor uses what is not supported, or state outside its calls.
        Exception: Whatever the processor raises, with a note that names the grouping key.
    """
    run = _Run(spec, store, clock, write_output, others=others, session=session)
    for _ in run.steps(batches, digest_column, initial, is_sorted=is_sorted):
        pass
    return run.outcome()


def stream_operator(
    spec: OperatorSpec,
    store: KeyValueStore,
    batches: Iterator[pa.RecordBatch],
    *,
    clock: BatchClock,
    initial: Iterator[pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield what `run_operator` writes over sorted rows, as it comes; the same errors."""
    written: list[pa.RecordBatch] = []
    run = _Run(spec, store, clock, written.append)
    for _ in run.steps(batches, None, initial, is_sorted=True):
        yield from written
        written.clear()
    yield from written


class _Run:
    def __init__(
        self,
        spec: OperatorSpec,
        store: KeyValueStore,
        clock: BatchClock,
        write_output: Callable[[pa.RecordBatch], None],
        *,
        others: Mapping[StoreName, KeyValueStore] | None = None,
        session: str = "",
    ) -> None:
        self._spec = spec
        self._processor = spec.processor
        self._clock = clock
        self._timer_values = (
            TimerValues()
            if spec.time_mode is TimeMode.NONE
            else TimerValues(clock.processing_time_ms, clock.watermark_ms)
        )
        self._function = spec.processor if isinstance(spec.processor, ArrowProcessor) else None
        self._cursor = (
            KeyCursor()
            if self._function is None
            else ChunkCursor(spec.key_columns, spec.key_schema)
        )
        self._handle = LocalHandle(
            store,
            self._cursor,
            ChangeWriter(store),
            spec.key_schema,
            time_mode=spec.time_mode,
            clock=clock,
            operator=spec.name,
            others=others,
            variable_stores=spec.variable_stores,
            session=session,
        )
        self._grouping = Grouping(spec.key_columns, spec.key_schema)
        self._inputs = self._inputs_of(spec.row_schema)
        self._outputs: Outputs
        if spec.output_time_column is not None:
            write_output = self._checked(spec.output_time_column, write_output)
        if self._function is not None:
            self._outputs = ArrowOutputs(spec.output_schema, write_output)
        elif spec.is_pandas:
            from statekeep.spark.operator.frames import FrameOutputs  # noqa: PLC0415  # loads pandas

            self._outputs = FrameOutputs(
                spec.output_schema,
                write_output,
                spec.time_zone,
                is_int_taken_for_decimal=spec.is_int_taken_for_decimal,
            )
        else:
            self._outputs = RowOutputs(spec.output_schema, write_output)
        self._rows_in = 0
        self._late_rows = 0
        self._fired_timers = 0
        self._expired_values = 0
        self._key_count = 0
        self._first_key: tuple[object, ...] | None = None
        self._last_key: tuple[object, ...] | None = None
        self._input_digest: RowHashSum | None = None

    def _inputs_of(self, schema: StructType) -> Inputs:
        if self._spec.is_pandas:
            from statekeep.spark.operator.frames import FrameInputs  # noqa: PLC0415  # loads pandas

            return FrameInputs(
                self._spec.time_zone, self._spec.frame_limits, is_widened=self._spec.is_widened
            )
        return RowInputs(schema)

    def steps(
        self,
        batches: Iterator[pa.RecordBatch],
        digest_column: str | None,
        initial: Iterator[pa.RecordBatch] | None,
        *,
        is_sorted: bool,
    ) -> Iterator[None]:
        """Process all rows; yield now and then, between two keys."""
        self._input_digest = None if digest_column is None else RowHashSum()
        chunks = self._chunks(
            self._grouping,
            self._counted(self._digested(batches, digest_column)),
            is_sorted=is_sorted,
        )
        begun = self._initial_chunks(initial, digest_column, is_sorted=is_sorted)
        if not is_sorted:
            # The first chunks are asked for before init: an overflow must not have called the processor.
            begun, chunks = _begun(begun), _begun(chunks)
        yield from self._with_processor(begun, chunks)

    def _initial_chunks(
        self, rows: Iterator[pa.RecordBatch] | None, digest_column: str | None, *, is_sorted: bool
    ) -> Iterator[KeyChunk]:
        spec = self._spec.initial_state
        if rows is None or spec is None:
            return iter(())
        grouping = Grouping(spec.key_columns, self._spec.key_schema)
        digested = self._digested(rows, digest_column)
        return self._chunks(
            grouping, (b.select(spec.row_schema.names) for b in digested), is_sorted=is_sorted
        )

    def _chunks(
        self, grouping: Grouping, batches: Iterator[pa.RecordBatch], *, is_sorted: bool
    ) -> Iterator[KeyChunk]:
        max_bytes = self._spec.grouping_max_bytes
        if self._function is not None:
            if is_sorted:
                return grouping.whole_keys_sorted(batches)
            return grouping.whole_keys_in_memory(batches, max_bytes)
        if is_sorted:
            return grouping.sorted_stream(batches)
        return grouping.in_memory(batches, max_bytes)

    def outcome(self) -> OperatorOutcome:
        """Return what all `steps` have done."""
        digest = self._input_digest
        return OperatorOutcome(
            rows_in=self._rows_in,
            rows_out=self._outputs.rows_out,
            keys=self._key_count,
            changed_keys=self._handle.changed_keys,
            input_digest="" if digest is None else digest.hexdigest(),
            output_digest=self._outputs.digest,
            changes_digest=self._handle.changes_digest,
            key_range=self._key_range(),
            undeclared=tuple(sorted(self._handle.undeclared)),
            variables=(
                tuple(sorted(self._handle.variables))
                if self._spec.declared.variables is None
                else None
            ),
            timed=self._timed(),
        )

    def _timed(self) -> TimedOutcome:
        timers = self._handle.timers
        return TimedOutcome(
            late_rows=self._late_rows,
            registered_timers=0 if timers is None else timers.registered,
            deleted_timers=0 if timers is None else timers.deleted,
            fired_timers=self._fired_timers,
            expired_values=self._expired_values,
        )

    def _key_range(self) -> str:
        if self._first_key is None:
            return ""
        return f"{self._first_key!r:.80}..{self._last_key!r:.80}"

    def _digested(
        self, batches: Iterator[pa.RecordBatch], digest_column: str | None
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._input_digest is not None:
                self._input_digest.update(batch.column(digest_column))
            yield batch

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = self._spec.row_schema.names
        for batch in batches:
            if self._spec.combiner is None:
                self._rows_in += batch.num_rows
            else:
                self._rows_in += int(batch.column(ROWS_COLUMN).to_numpy().sum())
            yield self._without_late(batch.select(names))

    def _without_late(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drop rows that are not newer than the watermark of the batch before, as Spark does."""
        name = self._spec.event_time_column
        if self._spec.time_mode is not TimeMode.EVENT or name is None:
            return batch
        kept = batch.filter(pc.invert(self._is_late(batch.column(name))))  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
        self._late_rows += batch.num_rows - kept.num_rows
        return kept

    def _is_late(self, times: pa.Array) -> pa.Array:
        """Return of each time, or window, whether the watermark of the batch before has reached it."""
        if pa.types.is_struct(times.type):
            times = pc.struct_field(times, "end")  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
        late = pc.less_equal(times.cast(pa.int64()), self._clock.late_watermark_ms * 1000)  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
        return late.fill_null(fill_value=False)

    def _checked(
        self, name: str, write_output: Callable[[pa.RecordBatch], None]
    ) -> Callable[[pa.RecordBatch], None]:
        """Return a function that refuses output which is late already, as Spark does."""

        def write(batch: pa.RecordBatch) -> None:
            times = batch.column(name)
            late = times.filter(self._is_late(times))
            if len(late):
                error = StateSchemaError(
                    "[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] the processor yielded a row that is "
                    f"not newer than the watermark: column={name} eventTime={late[0]} "
                    f"current_watermark_value={self._clock.late_watermark_ms}"
                )
                error.add_note(
                    "hint: yield rows whose event time is above the watermark of the batch before, or"
                    " leave eventTimeColumnName out"
                )
                raise error
            write_output(batch)

        return write

    def _with_processor(
        self, initial: Iterator[KeyChunk], chunks: Iterator[KeyChunk]
    ) -> Iterator[None]:
        try:
            self._processor.init(self._handle)
            self._handle.seal()
            for chunk in initial:
                self._begin_with(chunk)
            for chunk in chunks:
                self._process(chunk)
                yield
            if self._handle.timers is not None:
                self._fire(self._handle.timers)
            self._expired_values = self._handle.evict()
            self._handle.require_whole()
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

    def _begin_with(self, chunk: KeyChunk) -> None:
        """Give the processor initial state, row by row or frame by frame."""
        cursor = self._cursor
        cursor.enter(chunk.key_columns, chunk.key_bytes)
        begin = self._processor.handleInitialState
        timer_values = self._timer_values
        assert self._spec.initial_state is not None  # noqa: S101 - there are rows of it
        inputs = self._inputs_of(self._spec.initial_state.row_schema)
        keys = inputs.keys(chunk.key_columns)
        try:
            for index, (key, rows) in enumerate(zip(keys, inputs.of(chunk), strict=True)):
                cursor.index = index
                for given in rows:
                    begin(key, given, timer_values)
        except Exception as exc:
            exc.add_note(f"while taking the initial state of grouping key {cursor.key!r}")
            raise
        self._handle.flush()
        cursor.leave()

    def _process(self, chunk: KeyChunk) -> None:
        if self._first_key is None:
            self._first_key = tuple(column[0] for column in chunk.key_columns)
        self._last_key = tuple(column[-1] for column in chunk.key_columns)
        if self._function is None:
            self._process_keys(chunk)
        else:
            self._process_rows(chunk, self._function)
        self._handle.flush()
        self._cursor.leave()
        self._key_count += len(chunk.key_bytes)

    def _process_keys(self, chunk: KeyChunk) -> None:
        cursor = self._cursor
        cursor.enter(chunk.key_columns, chunk.key_bytes)
        handle_rows = self._processor.handleInputRows
        take = self._outputs.add
        timer_values = self._timer_values
        keys = self._inputs.keys(chunk.key_columns)
        try:
            for index, (key, rows) in enumerate(zip(keys, self._inputs.of(chunk), strict=True)):
                cursor.index = index
                take(handle_rows(key, rows, timer_values))
        except Exception as exc:
            if not self._outputs.is_writing:
                exc.add_note(f"while processing grouping key {cursor.key!r}")
            raise

    def _process_rows(self, chunk: KeyChunk, function: ArrowProcessor) -> None:
        assert isinstance(self._cursor, ChunkCursor)  # noqa: S101 - made for the function
        self._cursor.enter_chunk(chunk)
        try:
            self._outputs.add(function.handle_rows(chunk.rows))
        except Exception as exc:
            first, last = (tuple(column[at] for column in chunk.key_columns) for at in (0, -1))
            exc.add_note(f"while processing the grouping keys from {first!r} to {last!r}")
            raise

    def _fire(self, timers: Timers) -> None:
        for due in timers.due(self._clock.now_ms(self._spec.time_mode)):
            self._fire_due(due, timers)
            self._fired_timers += len(due.keys)

    def _fire_due(self, due: DueTimers, timers: Timers) -> None:
        cursor = self._cursor
        cursor.enter([list(column) for column in zip(*due.keys, strict=True)], due.key_bytes)
        try:
            for index, (key, time_ms) in enumerate(zip(due.keys, due.times_ms, strict=True)):
                cursor.index = index
                # By these names: Spark calls it so, and a processor may order them as it likes.
                self._outputs.add(
                    self._processor.handleExpiredTimer(
                        key=key,
                        timerValues=self._timer_values,
                        expiredTimerInfo=ExpiredTimerInfo(time_ms),
                    )
                )
                timers.remove_fired(time_ms)
        except Exception as exc:
            if not self._outputs.is_writing:
                exc.add_note(f"while a timer fired: grouping key {cursor.key!r}")
            raise
        self._handle.flush()
        cursor.leave()


def _begun(chunks: Iterator[KeyChunk]) -> Iterator[KeyChunk]:
    """Return the same chunks, with the first at hand already."""
    return chain([first] if (first := next(chunks, None)) is not None else [], chunks)

"""What the tests of the operator share: a store, a way to run batches, small processors."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.runner import (
    OperatorOutcome,
    OperatorSpec,
    run_operator,
)
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import MemoryStore

ROWS = "key string, v long"


def memory_store() -> MemoryStore:
    """An empty store; nothing is written to its directory but the directory itself."""
    with tempfile.TemporaryDirectory() as directory:
        return MemoryStore(StoreName("state"), Path(directory) / "image", is_new=True)


def record_batch(rows: Sequence[Sequence[Any]], schema: str = ROWS) -> pa.RecordBatch:
    row_types = arrow_schema(parse_schema(schema))
    columns: list[Any] = list(zip(*rows, strict=True)) or [[] for _ in row_types]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, row_types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=row_types)


class ByFunction(StatefulProcessor):
    """A processor made of two functions."""

    def __init__(
        self,
        init: Callable[[StatefulProcessorHandle], Any] = lambda handle: None,
        handle_rows: Callable[[Any, tuple[Any, ...], Iterator[Any]], Any] = lambda *_: iter(()),
    ) -> None:
        self._init = init
        self._handle_rows = handle_rows
        self.variable: Any = None
        self.timer_values: TimerValues | None = None
        self.calls: list[str] = []

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.calls.append("init")
        self.variable = self._init(handle)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Any:
        self.calls.append(f"rows of {key!r}")
        self.timer_values = timerValues
        return self._handle_rows(self.variable, key, rows)

    @override
    def close(self) -> None:
        self.calls.append("close")


def run(
    processor: StatefulProcessor,
    rows: Sequence[Sequence[Any]] | Sequence[pa.RecordBatch],
    *,
    store: KeyValueStore | None = None,
    schema: str = ROWS,
    key: str = "key string",
    output: str = "key string, n long",
    is_sorted: bool = False,
    is_pandas: bool = False,
    grouping_max_bytes: int = 1 << 30,
    digest_column: str | None = None,
    time_mode: TimeMode = TimeMode.NONE,
    clock: BatchClock | None = None,
    event_time_column: str | None = None,
    others: Mapping[StoreName, KeyValueStore] | None = None,
    session: str = "",
    **options: Any,
) -> tuple[OperatorOutcome, pa.Table]:
    """Run one batch; return its outcome and output. Options are those of the operator."""
    key_schema = parse_schema(key)
    output_schema = parse_schema(output)
    row_schema = parse_schema(schema)
    spec = OperatorSpec(
        processor=processor,
        key_columns=tuple(key_schema.names),
        key_schema=key_schema,
        row_schema=row_schema,
        output_schema=output_schema,
        is_pandas=is_pandas,
        grouping_max_bytes=grouping_max_bytes,
        time_mode=time_mode,
        event_time_column=event_time_column,
        **options,
    )
    is_arrow = bool(rows) and isinstance(rows[0], pa.RecordBatch)
    batches = list(rows) if is_arrow else [record_batch(rows, schema)]
    written: list[pa.RecordBatch] = []
    outcome = run_operator(
        spec,
        memory_store() if store is None else store,
        iter(batches),
        is_sorted=is_sorted,
        clock=clock or BatchClock(-1, -1),
        write_output=written.append,
        digest_column=digest_column,
        others=others,
        session=session,
    )
    return outcome, pa.Table.from_batches(written, arrow_schema(output_schema))

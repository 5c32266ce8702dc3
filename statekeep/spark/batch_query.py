"""The operator on a batch frame: empty state, or an initial one, that is dropped at the end."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.spark.initial_state import InitialState, divide, is_initial, with_initial_state
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.operator.runner import OperatorSpec, stream_operator
from statekeep.spark.placement import column, routed
from statekeep.spark.stage import combined
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.temporary_directory import temporary_directory


def transform_batch(
    frame: DataFrame,
    operator: OperatorSpec,
    processor: bytes,
    initial: InitialState | None,
    now_ms: int,
) -> DataFrame:
    """Return the output of a processor over all rows of a batch frame; runs when it is used.

    State lies on the local disk of each Spark task while it runs: neither it nor the rows have to
    fit into memory.

    Args:
        frame: The rows.
        operator: What to run.
        processor: The user's, pickled: each task gets one of its own.
        initial: What the state begins with.
        now_ms: The processing time of all rows. There is no watermark, for which Spark has -1: no row
            is late, and no timer in event time fires that is not before 1970.
    """
    clock = BatchClock(now_ms, watermark_ms=-1)
    has_initial = initial is not None

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spec = replace(operator, processor=cloudpickle.loads(processor))
        rows: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        begun: Iterator[pa.RecordBatch] | None = None
        if has_initial:
            begun, rows = divide(rows)
        with (
            temporary_directory("statekeep-batch-") as directory,
            closing(RocksDbStore(StoreName("state"), directory, is_new=True)) as store,
        ):
            yield from stream_operator(spec, store, rows, clock=clock, initial=begun)

    if operator.combiner is not None:
        frame = combined(frame, operator.combiner)
    if initial is not None:
        frame = with_initial_state(frame, operator, initial)
    order = [is_initial().desc()] if initial is not None else []
    routes = routed(operator.row_schema, operator.key_columns)
    sorted_rows = frame.repartition(*routes).sortWithinPartitions(
        *order, *map(column, operator.key_columns)
    )
    return sorted_rows.mapInArrow(run, operator.output_schema)

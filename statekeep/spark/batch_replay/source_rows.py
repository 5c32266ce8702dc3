"""The rows that the source gave in recorded batches, read again by Spark and kept in files here."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructType

from statekeep.spark.batch_replay.recorded import RecordedRun
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.replaying import replay
from statekeep.spark.initial_state import with_initial_column, with_initial_state
from statekeep.spark.operator.combiner import ROWS_COLUMN
from statekeep.spark.placement import (
    DIGEST_COLUMN,
    TASK_COLUMN,
    column,
    nth_task,
    row_digest,
)
from statekeep.spark.stage import QueryDefinition, combined


class SourceRows:
    """The rows of each batch, with the columns that a task of the runtime gets, in files of Arrow."""

    def __init__(self, run: RecordedRun, directory: Path) -> None:
        self._run = run
        self._directory = directory

    @property
    def has_initial_state(self) -> bool:
        """Whether the first of the batches begins with the initial state, if the query has one."""
        return self._run.batches.start == 0 and not any(self._run.commit.versions.values())

    def read_again(
        self, query: QueryDefinition, shadow: CheckpointLocation, only: int | None
    ) -> None:
        """Let Spark read all batches with their boundaries. Blocks; needs a session, and no sink.

        Args:
            query: Its source is read; the checkpoint location too, where Spark keeps what a source knows.
            shadow: A location of this call alone.
            only: The one task whose rows are kept; None: all.

        Raises:
            StateBackupError: The source cannot be read again.
            CheckpointLocationError: Boundaries are missing.
        """

        def keep(rows: DataFrame, batch: int) -> None:
            sent = self._columns(query, rows, batch)
            if only is not None:
                sent = sent.where(column(TASK_COLUMN) == only)
            frame = sent.mapInArrow(as_bytes, "data binary")
            self._write(batch, (bytes(row.data) for row in frame.collect()))

        batches = self._run.batches
        replay(
            query.source,
            query.location,
            self._run.boundaries,
            keep,
            start=batches.start - 1,
            end=batches[-1],
            shadow=shadow,
        )

    def tasks(self, batch: int) -> set[int]:
        """Return the tasks that have rows in a batch."""
        with self._opened(batch) as reader:
            return {
                task for rows in reader for task in rows.column(TASK_COLUMN).unique().to_pylist()
            }

    def of_task(self, batch: int, task: int) -> Sequence[pa.RecordBatch]:
        """Return the rows of one task in a batch."""
        with self._opened(batch) as reader:
            own = (rows.filter(pc.equal(rows.column(TASK_COLUMN), task)) for rows in reader)  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
            return [rows for rows in own if rows.num_rows]

    @contextmanager
    def _opened(self, batch: int) -> Generator[pa.RecordBatchStreamReader]:
        with pa.memory_map(str(self._path(batch))) as file, pa.ipc.open_stream(file) as reader:
            yield reader

    def _columns(self, query: QueryDefinition, rows: DataFrame, batch: int) -> DataFrame:
        """Return the frame that the runtime sends to tasks, but for where a task runs."""
        (stage,) = query.stages
        operator, schema = stage.operator, stage.operator.row_schema
        if batch == 0 and self.has_initial_state and stage.initial is not None:
            rows = with_initial_state(rows, operator, stage.initial)
            schema = with_initial_column(schema, stage.initial.spec)
        if operator.combiner is not None:
            rows = combined(rows, operator.combiner)
            schema = StructType([*schema.fields]).add(ROWS_COLUMN, LongType())
        digest = (
            column(DIGEST_COLUMN)
            if DIGEST_COLUMN in rows.columns
            else row_digest(schema, schema.names)
        )
        nth = nth_task(schema, operator.key_columns, self._run.partitions)
        return rows.select(*map(column, schema.names), digest, nth.alias(TASK_COLUMN))

    def _write(self, batch: int, parts: Iterator[bytes]) -> None:
        with self._path(batch).open("xb") as file:
            writer: pa.RecordBatchStreamWriter | None = None
            for part in parts:
                with pa.ipc.open_stream(part) as reader:
                    writer = writer or pa.ipc.new_stream(file, reader.schema)
                    for rows in reader:
                        writer.write_batch(rows)
            if writer is None:  # no task has a row
                writer = pa.ipc.new_stream(file, pa.schema([(TASK_COLUMN, pa.int32())]))
            writer.close()

    def _path(self, batch: int) -> Path:
        return self._directory / f"{batch}.arrow"


def as_bytes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch of rows as one value; runs on executors, which know the types as a task gets them."""
    for batch in batches:
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"data": [sink.getvalue().to_pybytes()]})

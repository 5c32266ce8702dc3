"""What a processor is given for each key: rows, as Spark gives them (frames: `frames`)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.types import Row, StructType
from typing_extensions import override

from statekeep.spark.operator.grouping import CHUNK_ROWS, KeyChunk
from statekeep.spark.operator.rows import row_maker

FRAME_ROWS: Final = 10_000
"""Most rows of one frame; Spark's default too (``arrow.maxRecordsPerBatch``)."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """How large a frame may be: what the settings of Spark's Arrow batches say."""

    rows: int = FRAME_ROWS
    size_bytes: int = (1 << 31) - 1

    def rows_of(self, rows: pa.RecordBatch) -> int:
        """Return how many of these rows a frame holds; it is the same whatever rows lie beside them."""
        size_bytes, row_count = int(rows.nbytes), int(rows.num_rows)
        if size_bytes <= self.size_bytes:
            return self.rows
        return max(1, min(self.rows, self.size_bytes * row_count // size_bytes))


class Inputs(Protocol):
    """Makes the inputs of one mode."""

    def of(self, chunk: KeyChunk) -> Iterable[Iterator[Any]]:
        """Yield one iterator for each key of ``chunk``, in order; each is used before the next."""
        ...

    def keys(self, columns: Sequence[Sequence[Any]]) -> Iterable[tuple[Any, ...]]:
        """Return the keys of a chunk as the processor gets them."""
        return zip(*columns, strict=True)


class RowInputs(Inputs):
    """Rows with all columns, whose values are those of Arrow's ``as_py``, as in Spark's Row mode.

    So a timestamp is aware, a struct a dict and a map a list of pairs.
    """

    def __init__(self, row_schema: StructType) -> None:
        self._make_row = row_maker(row_schema.names)

    @override
    def of(self, chunk: KeyChunk) -> Iterable[Iterator[Row]]:
        if len(chunk.key_bytes) == 1:
            return [self._lazily(chunk)]
        return self._by_key(chunk)

    def _by_key(self, chunk: KeyChunk) -> Iterator[Iterator[Row]]:
        # Rows are made one key at a time: many live objects would set off garbage collections.
        rows = self._rows(chunk.rows)
        for first, end in pairwise(chunk.starts):
            yield (rows_of_key := islice(rows, end - first))
            for _ in rows_of_key:
                pass  # what the processor did not want

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        values = zip(*[column.to_pylist() for column in batch.columns], strict=True)
        return map(self._make_row, values)

    def _lazily(self, chunk: KeyChunk) -> Iterator[Row]:
        for batch in chain([chunk.rows], chunk.rest):
            for part in parts_of(batch, CHUNK_ROWS):
                yield from self._rows(part)


def parts_of(batch: pa.RecordBatch, row_count: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of ``row_count`` rows; the last one is shorter."""
    for first in range(0, batch.num_rows, row_count):
        yield batch.slice(first, row_count)

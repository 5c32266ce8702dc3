"""What a processor is given for each key: rows, or pandas frames, as Spark gives them."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, Final, Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import Row, StructType
from typing_extensions import override

from statekeep.spark.operator.grouping import CHUNK_ROWS, KeyChunk
from statekeep.spark.operator.pandas_columns import to_pandas
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
            for part in _parts(batch, CHUNK_ROWS):
                yield from self._rows(part)


class FrameInputs(Inputs):
    """Frames with all columns, of the types that Spark's pandas mode gives.

    A frame's types depend on the rows of its own key alone: integers are float64 only where the
    same frame holds a null.
    """

    def __init__(
        self, time_zone: str, limits: FrameLimits | None = None, *, is_widened: bool = True
    ) -> None:
        self._time_zone = time_zone
        self._is_widened = is_widened
        self._limits = limits or FrameLimits()

    @override
    def of(self, chunk: KeyChunk) -> Iterable[Iterator[pd.DataFrame]]:
        if len(chunk.key_bytes) == 1:
            return [self._lazily(chunk)]
        is_cut = chunk.rows.nbytes > self._limits.size_bytes
        if is_cut or any(_is_widened_by_null(column) for column in chunk.rows.columns):
            spans = ((first, end - first) for first, end in pairwise(chunk.starts))
            return (self._cut(chunk.rows.slice(*span)) for span in spans)
        frame = self._frame(chunk.rows)
        return (_frames_of(frame, *span, self._limits.rows) for span in pairwise(chunk.starts))

    @override
    def keys(self, columns: Sequence[Sequence[Any]]) -> Iterable[tuple[Any, ...]]:
        return zip(*[map(self._key_part, column) for column in columns], strict=True)

    def _key_part(self, value: Any) -> Any:  # noqa: ANN401 - of any type
        """A time is what a frame holds: pandas' own, without a zone and in the session's."""
        if not isinstance(value, dt.datetime):
            return value
        time = pd.Timestamp(value)
        return time if time.tz is None else time.tz_convert(self._time_zone).tz_localize(None)

    def _frame(self, rows: pa.RecordBatch) -> pd.DataFrame:
        frame = pd.concat(to_pandas(rows, self._time_zone), axis=1)
        if not self._is_widened:
            return frame
        # Spark makes frames of a processor of Python values, which have one width only.
        widened = {
            name: _WIDENED[str(dtype)]
            for name, dtype in frame.dtypes.items()
            if str(dtype) in _WIDENED
        }
        return frame.astype(widened) if widened else frame

    def _lazily(self, chunk: KeyChunk) -> Iterator[pd.DataFrame]:
        for batch in chain([chunk.rows], chunk.rest):
            yield from self._cut(batch)

    def _cut(self, rows: pa.RecordBatch) -> Iterator[pd.DataFrame]:
        return map(self._frame, _parts(rows, self._limits.rows_of(rows)))


def _frames_of(frame: pd.DataFrame, first: int, end: int, row_count: int) -> Iterator[pd.DataFrame]:
    """Yield the rows from ``first`` to ``end``: of one key, even if they are read after its turn."""
    for at in range(first, end, row_count):
        yield frame.iloc[at : min(at + row_count, end)].reset_index(drop=True)


_WIDENED: Final = {"int8": "int64", "int16": "int64", "int32": "int64", "float32": "float64"}


def _is_widened_by_null(column: pa.Array) -> bool:
    kind = column.type
    return bool(column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)))


def _parts(batch: pa.RecordBatch, row_count: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, batch.num_rows, row_count):
        yield batch.slice(first, row_count)

"""Pandas mode: what a processor is given and what it yields are frames, as Spark makes and takes them.

Loaded for queries of that mode alone: pandas takes 0.2 s of processor time in each worker.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.grouping import KeyChunk
from statekeep.spark.operator.inputs import FrameLimits, Inputs, parts_of
from statekeep.spark.operator.outputs import OUTPUT_ROWS, BatchedOutputs, owned, rows_of
from statekeep.spark.operator.pandas_columns import from_pandas, to_pandas


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
        return map(self._frame, parts_of(rows, self._limits.rows_of(rows)))


def _frames_of(frame: pd.DataFrame, first: int, end: int, row_count: int) -> Iterator[pd.DataFrame]:
    """Yield the rows from ``first`` to ``end``: of one key, even if they are read after its turn."""
    for at in range(first, end, row_count):
        yield frame.iloc[at : min(at + row_count, end)].reset_index(drop=True)


_WIDENED: Final = {"int8": "int64", "int16": "int64", "int32": "int64", "float32": "float64"}


def _is_widened_by_null(column: pa.Array) -> bool:
    kind = column.type
    return bool(column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)))


class FrameOutputs(BatchedOutputs):
    """Output of pandas mode: frames, whose columns are taken by name, as Spark does.

    Frames are joined before they are converted where their types are the same; a conversion that
    would lose anything (but for what a float cannot hold) is refused.
    """

    def __init__(
        self,
        schema: StructType,
        write: Callable[[pa.RecordBatch], None],
        time_zone: str,
        *,
        is_int_taken_for_decimal: bool = False,
    ) -> None:
        super().__init__(schema, write)
        self._time_zone = time_zone
        self._is_int_taken_for_decimal = is_int_taken_for_decimal
        self._held: list[pd.DataFrame] = []
        self._kind: object = None
        self._held_rows = 0

    @override
    def add(self, results: Iterable[Any]) -> None:
        for frame in rows_of(results):
            if not isinstance(frame, pd.DataFrame):
                raise StateSchemaError(
                    f"output must be pandas frames: found={type(frame).__name__}"
                )
            if frame.empty:
                continue
            kind = (tuple(frame.columns), tuple(frame.dtypes))
            if kind != self._kind or self._held_rows >= OUTPUT_ROWS:
                self._convert_held()
                self._kind = kind
            self._held.append(owned_frame(frame, is_deep=self._holds_mutable))
            self._held_rows += len(frame)

    @override
    def finish(self) -> None:
        self._convert_held()
        self._emit_ready(least=1)

    def _convert_held(self) -> None:
        self.is_writing = True
        if self._held:
            batch = self._converted(pd.concat(self._held, ignore_index=True))
            self._held.clear()
            self._held_rows = 0
            self._take(batch)
        self.is_writing = False

    def _converted(self, frame: pd.DataFrame) -> pa.RecordBatch:
        missing = [name for name in self._schema.names if name not in frame.columns]
        if missing and any(isinstance(name, str) for name in frame.columns):
            raise StateSchemaError(
                f"output frame lacks columns: missing={','.join(missing)} "
                f"found={','.join(map(str, frame.columns))}"
            )
        if missing and len(frame.columns) != len(self._schema.names):
            raise StateSchemaError(
                "output frame has another number of columns: "
                f"expected={len(self._schema.names)} found={len(frame.columns)}"
            )
        arrays = [
            self._column(frame.iloc[:, i if missing else list(frame.columns).index(name)], i)
            for i, name in enumerate(self._schema.names)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def _column(self, series: "pd.Series[Any]", at: int) -> pa.Array:  # pyright: ignore[reportInvalidTypeArguments]  # only the stubs know its argument
        field = self._schema.fields[at]
        try:
            return from_pandas(
                series,
                field,
                self._arrow_schema.field(at).type,
                self._time_zone,
                is_int_taken_for_decimal=self._is_int_taken_for_decimal,
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
            raise StateSchemaError(
                f"output does not fit the declared type: column={field.name} "
                f"expected={field.dataType.simpleString()} found={series.dtype} ({exc})"
            ) from exc


def owned_frame(frame: pd.DataFrame, *, is_deep: bool) -> pd.DataFrame:
    """Return a copy of ``frame``; ``is_deep``: of the objects in it too."""
    copied = frame.copy()
    if is_deep:
        for at, kind in enumerate(copied.dtypes):
            if pd.api.types.is_object_dtype(kind):
                values = [owned(value) for value in copied.iloc[:, at]]
                copied.isetitem(at, pd.Series(values, index=copied.index, dtype=object))
    return copied

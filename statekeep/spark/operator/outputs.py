"""What a processor yields, as record batches of the declared types."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    Row,
    StructType,
    VariantType,
)
from typing_extensions import override

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.changes import ArrowDigest
from statekeep.spark.operator.columns import arrow_schema, fitted

OUTPUT_ROWS: Final = 8_192
"""Rows of every record batch but the last: fixed, so that a replay cuts at the same places."""

_STAGED_ROWS: Final = 128
"""Rows kept as the processor made them: few enough to set off no garbage collection, which goes
through all objects of the process. A divisor of `OUTPUT_ROWS`."""


def rows_of(results: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over what a call of the processor yields.

    Raises:
        StateSchemaError: It is nothing to iterate over.
    """
    try:
        return iter(results)
    except TypeError:
        raise _not_rows(results) from None


def _not_rows(results: object) -> StateSchemaError:
    error = StateSchemaError(f"rows of the output are not iterable: found={type(results).__name__}")
    error.add_note("hint: yield each row of the output; a call without output returns iter([])")
    return error


class Outputs(ABC):
    """Gathers the output of one batch, and writes it in record batches of `OUTPUT_ROWS`.

    Attributes:
        rows_out: Rows written.
        is_writing: Whether rows, of any key so far, are being converted and written.
    """

    def __init__(self, schema: StructType, write: Callable[[pa.RecordBatch], None]) -> None:
        self.rows_out = 0
        self.is_writing = False
        self._schema = schema
        self._arrow_schema = arrow_schema(schema)
        self._holds_mutable = holds_mutable(schema)
        self._write = write
        self._digest = ArrowDigest()

    @property
    def digest(self) -> str:
        """SHA-256 over all that was written, in order."""
        return self._digest.hexdigest()

    @abstractmethod
    def add(self, results: Iterable[Any]) -> None:
        """Take all that one call of the processor yields.

        Raises:
            StateSchemaError: Output, perhaps of an earlier call, does not fit the declared schema.
        """

    @abstractmethod
    def finish(self) -> None:
        """Write what is held. Called once, after the last `add`.

        Raises:
            StateSchemaError: It does not fit the declared schema.
        """

    def _emit(self, batch: pa.RecordBatch) -> None:
        for field, spark_field in zip(batch.schema, self._schema.fields, strict=True):
            if not spark_field.nullable and batch.column(field.name).null_count:
                raise StateSchemaError(
                    f"output column is declared not null: column={field.name} found=null"
                )
        self._digest.update(batch)
        self._write(batch)
        self.rows_out += batch.num_rows


class RowOutputs(Outputs):
    """Output of Row mode.

    A `Row` with names is read by name, as in Spark: a column that it lacks is null, a name that
    is no column is dropped; both in one row are taken for a spelling mistake and refused. A tuple
    without names is read by position.
    """

    def __init__(self, schema: StructType, write: Callable[[pa.RecordBatch], None]) -> None:
        super().__init__(schema, write)
        self._names = schema.names
        self._nested = [_nested_converter(f.dataType) for f in schema.fields]
        self._staged: list[Any] = []
        self._columns: list[list[Any]] = [[] for _ in schema.fields]

    @override
    def add(self, results: Iterable[Any]) -> None:
        try:
            iterator = map(owned, results) if self._holds_mutable else iter(results)
        except TypeError:
            raise _not_rows(results) from None
        staged = self._staged
        while True:
            staged.extend(islice(iterator, _STAGED_ROWS - len(staged)))
            if len(staged) < _STAGED_ROWS:
                return
            self.is_writing = True
            self._take_staged()
            if len(self._columns[0]) == OUTPUT_ROWS:
                self._emit_columns()
            self.is_writing = False

    @override
    def finish(self) -> None:
        self.is_writing = True
        if self._staged:
            self._take_staged()
        if self._columns[0]:
            self._emit_columns()

    def _take_staged(self) -> None:
        rows: Iterable[tuple[Any, ...]] = self._staged
        if not self._are_uniform(self._staged):
            rows = [self._aligned(row) for row in self._staged]
        # zip goes through a tuple natively, where Row's own subscription is a Python function.
        for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
            column.extend(values)
        self._staged.clear()

    def _emit_columns(self) -> None:
        arrays = [
            self._array(values, convert, field)
            for values, convert, field in zip(
                self._columns, self._nested, self._arrow_schema, strict=True
            )
        ]
        self._emit(pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema))
        for column in self._columns:
            column.clear()

    def _are_uniform(self, rows: list[Any]) -> bool:
        try:
            names = [row.__fields__ for row in rows]
        except AttributeError:
            return False
        return names.count(self._names) == len(rows) and set(map(len, rows)) == {len(self._names)}

    def _aligned(self, row: object) -> tuple[Any, ...]:
        if not isinstance(row, tuple):
            raise StateSchemaError(
                f"output must be rows: expected={self._schema.simpleString()} "
                f"found={type(row).__name__}"
            )
        names: list[str] | None = getattr(row, "__fields__", None)
        if names is None or len(names) != len(row):
            if len(row) != len(self._names):
                raise StateSchemaError(
                    "output row has another number of values: "
                    f"expected={len(self._names)} found={len(row)}"
                )
            return row
        given = dict(zip(names, row, strict=True))
        missing = [name for name in self._names if name not in given]
        unknown = [name for name in given if name not in self._names]
        if missing and unknown:
            raise StateSchemaError(
                f"output row has other columns: missing={','.join(missing)} "
                f"unknown={','.join(unknown)}"
            )
        return tuple(given.get(name) for name in self._names)

    def _array(
        self, values: list[Any], convert: Callable[[Any], Any] | None, field: pa.Field
    ) -> pa.Array:
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        try:
            return _to_arrow(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
            found = next((value for value in values if not _fits(value, field.type)), None)
            raise StateSchemaError(
                f"output does not fit the declared type: column={field.name} "
                f"expected={field.type} found={type(found).__name__} value={found!r}"
            ) from exc


class BatchedOutputs(Outputs):
    """Output that comes as record batches of any size."""

    def __init__(self, schema: StructType, write: Callable[[pa.RecordBatch], None]) -> None:
        super().__init__(schema, write)
        self._ready: list[pa.RecordBatch] = []
        self._ready_rows = 0

    def _take(self, batch: pa.RecordBatch) -> None:
        """Hold a batch of the declared types; write what is enough for one."""
        self._ready.append(batch)
        self._ready_rows += batch.num_rows
        self._emit_ready(least=OUTPUT_ROWS)

    def _emit_ready(self, *, least: int) -> None:
        if self._ready_rows < least:
            return
        table = pa.Table.from_batches(self._ready).combine_chunks()
        self._ready.clear()
        at = 0
        while table.num_rows - at >= least:
            for batch in table.slice(at, OUTPUT_ROWS).to_batches():
                self._emit(batch)
            at = min(at + OUTPUT_ROWS, table.num_rows)
            if at == table.num_rows:
                break
        self._ready_rows = table.num_rows - at
        if self._ready_rows:
            self._ready.extend(table.slice(at).to_batches())


class ArrowOutputs(BatchedOutputs):
    """Output of a function of record batches: batches or tables, whose columns are taken by name."""

    @override
    def add(self, results: Iterable[Any]) -> None:
        for rows in rows_of(results):
            if not isinstance(rows, pa.RecordBatch | pa.Table):
                raise StateSchemaError(
                    "output must be an iterable of record batches or tables: "
                    f"found={type(rows).__name__}"
                )
            if rows.num_rows:
                self.is_writing = True
                arrays = [self._column(rows, field) for field in self._arrow_schema]
                self._take(pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema))
                self.is_writing = False

    @override
    def finish(self) -> None:
        self._emit_ready(least=1)

    def _column(self, rows: pa.RecordBatch | pa.Table, field: pa.Field) -> pa.Array:
        if rows.schema.names.count(field.name) != 1:
            raise StateSchemaError(
                f"output needs each column once: missing={field.name} "
                f"found={','.join(rows.schema.names)}"
            )
        try:
            column = fitted(rows.column(field.name), field.type)
        except (TypeError, pa.ArrowException) as exc:
            raise StateSchemaError(
                f"output does not fit the declared type: column={field.name} "
                f"expected={field.type} ({exc})"
            ) from exc
        # A copy: the memory may be that of an array of NumPy, which the function may change.
        return column.take(pa.array(np.arange(len(column))))


def _to_arrow(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if pa.types.is_integer(arrow_type):
        # Given the type, Arrow would cut the fraction off a float without a word.
        found = pa.array(values)
        if pa.types.is_integer(found.type) or pa.types.is_floating(found.type):
            return found.cast(arrow_type)
    return pa.array(values, arrow_type)


def _fits(value: object, arrow_type: pa.DataType) -> bool:
    try:
        _to_arrow([value], arrow_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _nested_converter(data_type: DataType) -> Callable[[Any], Any] | None:
    """Return what turns rows and dicts within a value into what Arrow takes; None if nothing."""
    match data_type:
        case StructType():
            return _struct_converter(data_type)
        case ArrayType():
            element = _nested_converter(data_type.elementType)
            if element is None:
                return None
            return lambda items: [None if item is None else element(item) for item in items]
        case MapType():
            return _map_converter(data_type)
        case _:
            return None


def _struct_converter(data_type: StructType) -> Callable[[Any], Any]:
    names = data_type.names
    converters = [_nested_converter(f.dataType) for f in data_type.fields]

    def convert(value: object) -> object:
        if isinstance(value, Row) and hasattr(value, "__fields__"):
            value = value.asDict()
        if isinstance(value, dict):
            items = [value.get(name) for name in names]
        elif isinstance(value, tuple) and len(value) == len(names):
            items = list(value)
        else:
            return value  # Arrow refuses it, and the column is named
        return {
            name: item if nested is None or item is None else nested(item)
            for name, item, nested in zip(names, items, converters, strict=True)
        }

    return convert


def _map_converter(data_type: MapType) -> Callable[[Any], Any]:
    key = _nested_converter(data_type.keyType)
    value = _nested_converter(data_type.valueType)

    def convert(mapping: object) -> object:
        pairs: Any = mapping.items() if isinstance(mapping, dict) else mapping
        return [
            (
                k if key is None or k is None else key(k),
                v if value is None or v is None else value(v),
            )
            for k, v in pairs
        ]

    return convert


_IMMUTABLE: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime, timedelta}
)
_MUTABLE: Final = (ArrayType, BinaryType, MapType, StructType, VariantType)


def holds_mutable(schema: StructType) -> bool:
    """Return whether a value of one of the columns may be something that can change."""
    return any(isinstance(field.dataType, _MUTABLE) for field in schema.fields)


def owned(value: Any) -> Any:  # noqa: ANN401 - whatever a processor yields
    """Return ``value``, or an equal one that its maker cannot change.

    Output is held for many keys before it is converted, and a processor may change a list, a dict or a
    frame after it has yielded it. Spark converts a frame, and copies a row, when it takes it.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is list:
        return list(_owned_items(value))
    if kind is dict:
        return dict(zip(value, _owned_items(value.values()), strict=True))
    if not isinstance(value, tuple):
        return deepcopy(value)
    if _IMMUTABLE.issuperset(map(type, value)):
        return value
    copied = tuple.__new__(kind, map(owned, value))
    if hasattr(value, "__dict__"):
        vars(copied).update(vars(value))  # the names of a Row
    return copied


def _owned_items(values: Collection[Any]) -> Iterable[Any]:
    # Most hold nothing that can change: a copy of the outside is enough, and has no loop in Python.
    return values if _IMMUTABLE.issuperset(map(type, values)) else map(owned, values)

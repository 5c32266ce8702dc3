"""Rows of a batch put together by grouping key before the shuffle, on the executor that reads them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.types import (
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StructField,
    StructType,
)

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.columns import arrow_schema, fitted
from statekeep.spark.operator.folds import FOLDS, can_fold, fold
from statekeep.spark.operator.grouping import CALL_ROWS, Grouping

ROWS_COLUMN: Final = "_statekeep_rows"
"""How many rows of the stream a combined row stands for."""
_RESERVED: Final = "_statekeep_"
_COUNT: Final = "count"
_ANY: Final = "*"
_MOST_BYTES: Final = 64 << 20
"""Of rows that are put together at one time."""
_MOST_ROWS: Final = 4 * CALL_ROWS


@dataclass(frozen=True)
class Combiner:
    """What the rows of a key become."""

    key_columns: tuple[str, ...]
    key_schema: StructType
    columns: Mapping[str, tuple[str, str]]
    """``{name: (column of the stream, fold or count)}``"""
    schema: StructType
    """Of the combined rows: the grouping columns, and then ``columns``."""

    @classmethod
    def of(
        cls,
        columns: Mapping[str, tuple[str, str]],
        rows: StructType,
        key_columns: tuple[str, ...],
    ) -> "Combiner":
        """Check what the user has declared over rows of a schema.

        Raises:
            ConfigError: A column is not there, or is of a type that cannot be combined so.
        """
        reserved = [name for name in [*rows.names, *columns] if name.startswith(_RESERVED)]
        if reserved:
            raise ConfigError(f"column names are reserved: columns={','.join(reserved)}")
        key_schema = StructType([rows[name] for name in key_columns])
        fields = [_field(name, *_pair(name, of), rows) for name, of in columns.items()]
        names = [*key_columns, *columns]
        if len({name.casefold() for name in names}) < len(names):  # Spark does not tell them apart
            raise ConfigError(
                f"combined columns need names of their own: columns={','.join(names)}"
            )
        return cls(
            key_columns, key_schema, dict(columns), StructType([*key_schema.fields, *fields])
        )

    def combine(
        self, batches: Iterator[pa.RecordBatch], digest_column: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield combined rows, with the sum of their digests and their number.

        Runs in a Spark task. A key may come several times: only so many rows are held as memory allows.

        Raises:
            StateSchemaError: A sum does not fit.
        """
        held: list[pa.RecordBatch] = []
        row_count = size_bytes = 0
        for batch in batches:
            held.append(batch)
            row_count += batch.num_rows
            size_bytes += batch.nbytes
            if row_count >= _MOST_ROWS or size_bytes >= _MOST_BYTES:
                yield from self._all_combined(held, digest_column)
                held, row_count, size_bytes = [], 0, 0
        if row_count:
            yield from self._all_combined(held, digest_column)

    def _all_combined(
        self, batches: list[pa.RecordBatch], digest_column: str
    ) -> Iterator[pa.RecordBatch]:
        # Several pieces are left where a column has more than 2 GiB.
        for piece in pa.Table.from_batches(batches).combine_chunks().to_batches():
            yield self._combined(piece, digest_column)

    def _combined(self, batch: pa.RecordBatch, digest_column: str) -> pa.RecordBatch:
        rows, starts = Grouping(self.key_columns, self.key_schema).sorted(batch)
        first = pa.array(starts[:-1])
        arrays = [rows.column(name).take(first) for name in self.key_columns]
        types = arrow_schema(self.schema)
        for name, (column, how) in self.columns.items():
            try:
                arrays.append(_combined_column(rows, column, how, starts, types.field(name).type))
            except OverflowError as exc:
                raise StateSchemaError(
                    f"combined rows do not fit: column={name} found={how} out of range"
                ) from exc
        digests = rows.column(digest_column).to_numpy(zero_copy_only=False)
        # The digest of a batch is this sum, modulo 2**64, with or without a combiner.
        arrays.append(pa.array(np.add.reduceat(digests, starts[:-1])))
        arrays.append(pa.array(np.diff(starts)))
        return pa.RecordBatch.from_arrays(arrays, [*self.schema.names, digest_column, ROWS_COLUMN])


def _combined_column(
    rows: pa.RecordBatch, column: str, how: str, starts: NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    if column == _ANY:
        return pa.array(np.diff(starts))
    values = rows.column(column)
    if how == _COUNT:
        is_present = values.is_valid().to_numpy(zero_copy_only=False)
        return pa.array(np.add.reduceat(is_present.astype(np.int64), starts[:-1]))
    return fold(how, fitted(values, kind), starts)


def _pair(name: str, given: object) -> tuple[str, str]:
    """Return the column and the fold of a combined column.

    Raises:
        ConfigError: What was given is something else.
    """
    match given:
        case (str(column), str(how)):
            return column, how
        case _:
            raise ConfigError(
                f"a combined column is made of a column and a fold: combined={name} found={given!r}",
                hint=f'write {{"{name}": ("<column>", "sum")}}',
            )


def _field(name: str, column: str, how: str, rows: StructType) -> StructField:
    """Return the field of a combined column."""
    what = f"combined={name} column={column} found={how}"
    if how == _COUNT and (column == _ANY or column in rows.names):
        return StructField(name, LongType())
    if column not in rows.names:
        raise ConfigError(f"a column to combine is not in the stream: {what}")
    data_type = rows[column].dataType
    kind = arrow_schema(StructType([StructField(name, data_type)])).field(0).type
    if not can_fold(how, kind):
        raise ConfigError(
            f"rows cannot be combined like this: {what} type={data_type.simpleString()}",
            hint=f"use {', '.join(FOLDS)} of numbers, min and max of times, or count",
        )
    return StructField(name, _wide(data_type) if how == "sum" else data_type)


def _wide(data_type: DataType) -> DataType:
    """Return the type of a sum, which is that of Spark's."""
    if isinstance(data_type, IntegralType):
        return LongType()
    return DoubleType() if isinstance(data_type, FloatType) else data_type

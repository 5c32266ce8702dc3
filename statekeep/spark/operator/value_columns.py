"""Values of many keys as Arrow columns, with the bytes that `ValueCodec` gives each of them."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from statekeep.errors import CheckpointCorruptError
from statekeep.spark.operator.codec import ValueCodec
from statekeep.spark.operator.columns import arrow_schema, record_batch
from statekeep.spark.operator.scalars import MisfitError

_STORED_AS: Final[dict[type[DataType], pa.DataType]] = {
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float64(),
    DoubleType: pa.float64(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.int32(),
    TimestampType: pa.int64(),
    TimestampNTZType: pa.int64(),
}
"""The Arrow type whose Python values are what the codec stores. A type that is not here, such as a
decimal or an array, is converted by the codec, which takes several times as long."""

_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""The first day of the year 1 and the last one of 9999: Python has no others."""
_MARGIN_DAYS: Final = 2
"""A time so near to them may have no local time: the codec decides."""
_DAY_MICROS: Final = 86_400_000_000


class ValueColumns:
    """Encodes and decodes columns of values.

    Attributes:
        arrow_type: A struct of the fields; timestamps are in UTC.
    """

    def __init__(self, codec: ValueCodec) -> None:
        """Prepare for the schema of ``codec``."""
        self._codec = codec
        self.arrow_type = pa.struct(list(arrow_schema(codec.schema)))
        stored = [_STORED_AS.get(type(field.dataType)) for field in codec.schema.fields]
        self._stored: list[pa.DataType] | None = None if None in stored else stored

    def encode(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """Return an entry of the store for each row.

        Args:
            columns: Of the fields, with the types of `arrow_type`.

        Raises:
            MisfitError: A value could not be read again.
        """
        if self._stored is not None and all(map(_is_readable, columns)):
            stored = [
                column.cast(kind).to_pylist()
                for column, kind in zip(columns, self._stored, strict=True)
            ]
            return self._codec.encode_stored(zip(*stored, strict=True))
        values = map(_python_values, self._codec.schema.fields, columns)
        return list(map(self._codec.encode, zip(*values, strict=True)))

    def decode(self, entries: Iterable[bytes | None]) -> pa.StructArray:
        """Return the values of entries; null where there is none.

        Raises:
            CheckpointCorruptError: An entry is of no schema that the variable has had.
        """
        entries = list(entries)
        present = [entry for entry in entries if entry is not None]
        if not present:
            return pa.nulls(len(entries), self.arrow_type)
        values = pa.StructArray.from_arrays(self._decoded(present), fields=list(self.arrow_type))
        if len(present) == len(entries):
            return values
        positions = iter(range(len(present)))
        taken = [None if entry is None else next(positions) for entry in entries]
        return values.take(pa.array(taken, pa.int64()))

    def _decoded(self, entries: list[bytes]) -> list[pa.Array]:
        if self._stored is not None:
            try:
                rows = self._codec.decode_stored(entries)
                plain = [
                    pa.array(list(map(itemgetter(at), rows)), kind).cast(field.type)
                    for at, (kind, field) in enumerate(
                        zip(self._stored, self.arrow_type, strict=True)
                    )
                ]
                if all(map(_is_readable, plain)):
                    return plain
            except (CheckpointCorruptError, pa.ArrowException):
                pass  # some are of another schema, or of no schema: the codec finds out
        columns = list(zip(*map(self._codec.decode, entries), strict=True))
        found: list[pa.Array] = record_batch(self._codec.schema, columns).columns
        return found


def has_columns(data_type: DataType) -> bool:
    """Return whether `ValueColumns` can encode values of a type that a codec takes."""
    match data_type:
        case StructType():
            return all(has_columns(field.dataType) for field in data_type.fields)
        case ArrayType():
            return has_columns(data_type.elementType)
        case MapType():
            # Such a key is a dict, which cannot be the key of one.
            is_key = not isinstance(data_type.keyType, StructType)
            return is_key and has_columns(data_type.valueType)
        case _:
            return not isinstance(data_type, VariantType)


def _python_values(field: StructField, column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except (KeyError, ValueError, OverflowError) as exc:  # a key that comes twice, a time or text
        raise MisfitError(field.name, field.dataType, column, found=str(exc)) from exc
    return values


def _is_readable(column: pa.Array) -> bool:
    """Return whether Python surely has all the dates and times of a column."""
    if not pa.types.is_temporal(column.type):
        return True
    is_date = pa.types.is_date(column.type)
    unit = 1 if is_date else _DAY_MICROS
    numbers = column.drop_null().cast(pa.int32() if is_date else pa.int64()).to_numpy()
    first, last = (_FIRST_DAY + _MARGIN_DAYS) * unit, (_LAST_DAY - _MARGIN_DAYS) * unit
    return not len(numbers) or bool(first <= numbers.min() and numbers.max() <= last)

"""Rows of state as record batches of Arrow, with the types that Spark gives them."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from statekeep.spark.releases import RELEASE

_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if RELEASE >= (4, 2) else {}
"""Before 4.2, times are in UTC by default."""

BATCH_ROWS: Final = 8_192
"""Rows of every record batch but the last of a task."""

_DIRECT: Final = frozenset(
    {
        BinaryType,
        BooleanType,
        ByteType,
        DateType,
        DoubleType,
        FloatType,
        IntegerType,
        LongType,
        ShortType,
        StringType,
    }
)
"""Types whose values Arrow takes as they are; the others go through Spark's own conversion, which is
several times slower."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema; timestamps are in UTC."""
    return to_arrow_schema(schema, **_UTC)


def record_batch(schema: StructType, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return a record batch.

    Args:
        schema: All of it nullable.
        columns: The values of each column; of a struct, tuples of the values of its fields.
    """
    arrow = arrow_schema(schema)
    arrays = [
        _column(values, field.dataType, arrow.field(at).type)
        for at, (field, values) in enumerate(zip(schema.fields, columns, strict=True))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _column(values: Sequence[Any], data_type: DataType, arrow_type: pa.DataType) -> pa.Array:
    if isinstance(data_type, StructType) and data_type.fields:
        blank = (None,) * len(data_type.fields)
        fields = zip(*(blank if value is None else value for value in values), strict=True)
        children = [
            _column(part, field.dataType, arrow_type.field(at).type)
            for at, (field, part) in enumerate(zip(data_type.fields, fields, strict=True))
        ]
        absent = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(arrow_type), mask=absent)
    if type(data_type) in _DIRECT:
        return pa.array(values, arrow_type)
    rows = [(value,) for value in values]
    table = LocalDataToArrowConversion.convert(
        rows, StructType([StructField("value", data_type)]), use_large_var_types=False
    )
    return table.column(0).combine_chunks()


def fitted(column: pa.Array | pa.ChunkedArray, target: pa.DataType) -> pa.Array:
    """Return a column of the type ``target`` with the same values.

    Raises:
        TypeError: The types are of different kinds, such as a number and a text.
        pa.ArrowInvalid: A value does not fit.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type.equals(target):
        return column
    if not _is_of_kind(column.type, target):
        raise TypeError(f"{column.type} is not {target}")
    return column.cast(target)


def _is_of_kind(given: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(given):
        given = given.value_type
    if types.is_null(given):
        return True
    if given.id == target.id:
        if types.is_timestamp(given):
            # A time without a zone may be of any zone.
            return (given.tz is None) == (target.tz is None)
        return _are_parts_of_kind(given, target)
    if types.is_integer(given):
        return bool(types.is_integer(target) or types.is_floating(target))
    if types.is_floating(given):
        return bool(types.is_floating(target)) and given.bit_width < target.bit_width
    return any(given in kinds and target in kinds for kinds in _TEXTS)


def _are_parts_of_kind(given: pa.DataType, target: pa.DataType) -> bool:
    """Look into two types of one kind: a cast reads texts as numbers there, and lacks no field."""
    types = pa.types
    if types.is_struct(given):
        # By name, each once, as columns are taken.
        found = [given.get_all_field_indices(part.name) for part in target]
        return all(len(at) == 1 for at in found) and all(
            _is_of_kind(given.field(at).type, part.type)
            for [at], part in zip(found, target, strict=True)
        )
    if types.is_map(given):
        are_keys = _is_of_kind(given.key_type, target.key_type)
        return are_keys and _is_of_kind(given.item_type, target.item_type)
    return not types.is_list(given) or _is_of_kind(given.value_type, target.value_type)


_TEXTS: Final = (
    (pa.string(), pa.large_string(), pa.string_view()),
    (pa.binary(), pa.large_binary(), pa.binary_view()),
)

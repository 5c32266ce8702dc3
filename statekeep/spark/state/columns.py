"""Rows of state as record batches of Arrow, with the types that Spark gives them."""

# pyarrow ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false

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
    return to_arrow_schema(schema, timezone="UTC")


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

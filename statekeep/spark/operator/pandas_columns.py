"""Columns of pandas frames from Arrow and back, as Spark's workers convert them in each release."""

from decimal import Decimal
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import conversion
from pyspark.sql.pandas import types as pandas_types
from pyspark.sql.types import StructField, StructType

from statekeep.spark.releases import RELEASE

_CONVERSION: Final[Any] = conversion
_HAS_CONVERSION: Final = RELEASE >= (4, 2)
"""Before, the workers' serializers did this, by the functions that are called here."""
_FROM_ARROW: Final[Any] = pandas_types.from_arrow_type
_TO_PANDAS: Final[Any] = pandas_types._create_converter_to_pandas  # noqa: SLF001 - as above
_FROM_PANDAS: Final[Any] = pandas_types._create_converter_from_pandas  # noqa: SLF001 - as above


def to_pandas(rows: pa.RecordBatch, time_zone: str) -> list[Any]:
    """Return the columns of a batch as Spark's workers give them to a function of frames."""
    if _HAS_CONVERSION:
        columns: list[Any] = _CONVERSION.ArrowBatchTransformer.to_pandas(rows, timezone=time_zone)
        return columns
    return [
        _TO_PANDAS(
            _FROM_ARROW(column.type, prefer_timestamp_ntz=True),
            timezone=time_zone,
            struct_in_pandas="dict",
        )(column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True)).rename(name)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]


def from_pandas(
    series: "pd.Series[Any]",  # pyright: ignore[reportInvalidTypeArguments]  # only the stubs know its argument
    field: StructField,
    arrow_type: pa.DataType,
    time_zone: str,
    *,
    is_int_taken_for_decimal: bool,
) -> pa.Array:
    """Return a column of a frame as Spark's workers take it from a function of frames.

    Raises:
        pa.ArrowException: A value does not fit.
        TypeError: As above.
        ValueError: As above.
    """
    if _HAS_CONVERSION:
        batch: Any = _CONVERSION.PandasToArrowConversion.convert(
            [series],
            StructType([field]),
            timezone=time_zone,
            safecheck=True,
            arrow_cast=True,
            int_to_decimal_coercion_enabled=is_int_taken_for_decimal,
        )
        return batch.column(0).cast(arrow_type)
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    series = _FROM_PANDAS(
        field.dataType, timezone=time_zone, error_on_duplicated_field_names=False
    )(series)
    if is_int_taken_for_decimal and pa.types.is_decimal(arrow_type) and series.dtype.kind in "iu":
        series = series.map(Decimal)
    mask = None if hasattr(series.array, "__arrow_array__") else series.isna()
    try:
        return pa.Array.from_pandas(series, mask=mask, type=arrow_type)
    except pa.ArrowInvalid:
        return pa.Array.from_pandas(series, mask=mask).cast(arrow_type)

"""A grouping key that somebody has typed."""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from statekeep.errors import ConfigError
from statekeep.spark.operator.scalars import as_mapping, as_sequence

_FROM_TEXT: Final[dict[type[DataType], Callable[[str], Any]]] = {
    BinaryType: bytes.fromhex,
    DateType: dt.date.fromisoformat,
    DecimalType: Decimal,
    TimestampType: dt.datetime.fromisoformat,
    TimestampNTZType: dt.datetime.fromisoformat,
}
"""Types that JSON does not have, from the text that stands for them."""


def parse_key(text: str, schema: StructType) -> Any:  # noqa: ANN401 - as the schema says
    """Return the key that a text stands for, not yet checked against the schema.

    Of one field of text, the text itself. Else JSON: the value of the one field, or all fields as an
    array or as an object. A date, a time or a decimal is text in it, or by itself; bytes are hexadecimal.

    Raises:
        ConfigError: The text is none of it.
    """
    fields = schema.fields
    is_single = len(fields) == 1
    if is_single and isinstance(fields[0].dataType, StringType):
        return (text,)
    try:
        given: Any = text
        if not (is_single and type(fields[0].dataType) in _FROM_TEXT):
            given = json.loads(text, parse_float=Decimal if _has_decimal(schema) else float)
        by_name, values = as_mapping(given), as_sequence(given)
        if by_name is not None:
            types = {field.name: field.dataType for field in fields}
            return {name: _value(item, types.get(name)) for name, item in by_name.items()}
        values = [given] if values is None else values
        if len(values) != len(fields):
            return values  # refused, with the number of fields
        return [_value(item, field.dataType) for item, field in zip(values, fields, strict=True)]
    except (ValueError, ArithmeticError) as exc:
        raise ConfigError(
            f"the key cannot be read: key={text!r} expected={schema.simpleString()} reason={exc}",
            hint="write it as JSON: a value, or an array with a value for each field, such as"
            ' ["a", 1]; dates and times as "2026-01-31" and "2026-01-31T12:00:00Z"',
        ) from None


def _has_decimal(schema: StructType) -> bool:
    return any(isinstance(field.dataType, DecimalType) for field in schema.fields)


def _value(given: Any, data_type: DataType | None) -> Any:  # noqa: ANN401 - as the type says
    if given is None or data_type is None:
        return given
    if isinstance(data_type, DecimalType) and isinstance(given, int):
        return Decimal(given)
    convert = _FROM_TEXT.get(type(data_type))
    if convert is not None and isinstance(given, str):
        return convert(given)
    items = as_sequence(given)
    if isinstance(data_type, ArrayType) and items is not None:
        return [_value(item, data_type.elementType) for item in items]
    if isinstance(data_type, StructType) and items is not None:
        kinds = [field.dataType for field in data_type.fields]
        return tuple(_value(item, kind) for item, kind in zip(items, kinds, strict=True))
    return given

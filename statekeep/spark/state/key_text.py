"""A grouping key as the user typed it."""

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
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from statekeep.errors import ConfigError
from statekeep.spark.operator.scalars import as_mapping, as_sequence


def _instant(text: str) -> dt.datetime:
    """Return a moment; one without a zone is in UTC, whatever host this is."""
    return in_utc(dt.datetime.fromisoformat(text))


def in_utc(moment: dt.datetime) -> dt.datetime:
    """Return a moment with its zone: UTC where it has none."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


_FROM_TEXT: Final[dict[type[DataType], Callable[[str], Any]]] = {
    BinaryType: bytes.fromhex,
    DateType: dt.date.fromisoformat,
    DecimalType: Decimal,
    TimestampType: _instant,
    TimestampNTZType: dt.datetime.fromisoformat,
}
"""Types that JSON does not have, from the text that stands for them."""


def parse_fields(text: str, schema: StructType, what: str = "key") -> Any:  # noqa: ANN401 - as the schema says
    """Return the key or value that a text stands for, not yet checked against the schema.

    Of one field of text, the text itself. Else JSON: the value of the one field, or all fields as an
    array or as an object. A date, a time or a decimal is text in it, or by itself; bytes are hexadecimal.

    Args:
        text: As the user typed it.
        schema: Of the key or value.
        what: It is, for errors.

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
        return _fields_of(given, schema)
    except (ValueError, ArithmeticError) as exc:
        raise ConfigError(
            f"the {what} cannot be read: {what.replace(' ', '_')}={text!r} "
            f"expected={schema.simpleString()} reason={exc}",
            hint="write it as JSON: a value, or an array with a value for each field, such as"
            ' ["a", 1]; dates and times as "2026-01-31" and "2026-01-31T12:00:00Z", bytes in hexadecimal',
        ) from None


def _fields_of(given: Any, schema: StructType) -> Any:  # noqa: ANN401 - as the schema says
    fields = schema.fields
    by_name, values = as_mapping(given), as_sequence(given)
    if by_name is not None:
        return from_json(by_name, schema)
    values = [given] if values is None else values
    if len(values) != len(fields):
        return values  # refused, with the number of fields
    return tuple(
        from_json(item, field.dataType) for item, field in zip(values, fields, strict=True)
    )


def _has_decimal(schema: StructType) -> bool:
    return any(isinstance(field.dataType, DecimalType) for field in schema.fields)


def from_json(given: Any, data_type: DataType | None) -> Any:  # noqa: ANN401 - as the type says
    """Return the value that JSON stands for, not yet checked; a map is an object or an array of pairs.

    Raises:
        ValueError: A text is no value of its type.
        ArithmeticError: Likewise.
    """
    items, by_name = as_sequence(given), as_mapping(given)
    made = given
    match data_type:
        case DecimalType() if isinstance(given, int):
            made = Decimal(given)
        case MapType() if by_name is not None or items is not None:
            entries = by_name.items() if by_name is not None else items or ()
            kinds = (data_type.keyType, data_type.valueType)
            made = {from_json(k, kinds[0]): from_json(v, kinds[1]) for k, v in entries}
        case StructType() if by_name is not None:
            known = {field.name: field.dataType for field in data_type.fields}
            made = {name: from_json(item, known.get(name)) for name, item in by_name.items()}
        case StructType() if items is not None:
            pairs = zip(items, data_type.fields, strict=True)
            made = tuple(from_json(item, field.dataType) for item, field in pairs)
        case ArrayType() if items is not None:
            made = [from_json(item, data_type.elementType) for item in items]
        case DataType() if isinstance(given, str) and type(data_type) in _FROM_TEXT:
            made = _FROM_TEXT[type(data_type)](given)
        case _:
            pass
    return made

"""Strict conversion of single values to the form in which state keeps them.

Each maker returns a function that checks a value against the declared type and returns its stored
form, or raises `MisfitError`. Spark stores null, or the text of the value, where it does not fit.
"""

import datetime as dt
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias, cast

import numpy as np
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    ShortType,
    TimestampType,
    VariantVal,
)

from statekeep.spark.releases import TimeType

ToWire: TypeAlias = Callable[[Any], Any]

_SINGLE: Final = struct.Struct("<f")
_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32}
_WIDE: Final = Context(prec=100, rounding=ROUND_HALF_UP)
"""More digits than any Spark decimal has: rounds at the declared scale only."""
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_LAST_MICROS: Final = (1 << 63) - 1
_EDGE_YEARS: Final = (dt.MINYEAR, dt.MAXYEAR)


class MisfitError(ValueError):
    """Raised when a value does not fit its declared type.

    Attributes:
        field: Path of the field in the value; empty for the value as a whole.
        declared: The declared type, as Spark writes it.
        found: The type of the value, or what is wrong with it.
    """

    def __init__(
        self, field: str, declared: DataType, value: object, *, found: str | None = None
    ) -> None:
        self.field = field
        self.declared = declared.simpleString()
        self.found = type(value).__name__ if found is None else found
        super().__init__(f"field={field or '*'} declared={self.declared} found={self.found}")


def same(value: object) -> object:
    """Return ``value``."""
    return value


def plain(value: Any) -> Any:  # noqa: ANN401 - values of users have any type
    """Return the Python value of a NumPy scalar or array, any other value as it is."""
    if isinstance(value, np.generic | np.ndarray):
        return cast("Any", value).tolist()
    return value


def as_sequence(value: object) -> Sequence[Any] | None:
    """Return a list or tuple, None for anything else."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else None


def as_mapping(value: object) -> Mapping[Any, Any] | None:
    """Return a mapping, None for anything else."""
    return value if isinstance(value, Mapping) else None


def or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``convert`` for values that may be null."""

    def convert_present(value: object) -> object:
        return None if value is None or _is_not_a_time(value) else convert(value)

    return convert_present


def nothing(data_type: DataType, path: str) -> ToWire:
    """Accept null only."""

    def to_wire(value: object) -> None:
        if value is not None:
            raise MisfitError(path, data_type, value)

    return to_wire


def boolean(data_type: DataType, path: str) -> ToWire:
    """Accept booleans."""

    def to_wire(value: object) -> bool:
        value = plain(value)
        if not isinstance(value, bool):
            raise MisfitError(path, data_type, value)
        return value

    return to_wire


def integer_bound(data_type: DataType) -> int:
    """Return the first integer that is too large for ``data_type``."""
    return 1 << (_BITS.get(type(data_type), 64) - 1)


def integer(data_type: DataType, path: str) -> ToWire:
    """Accept integers that the type can hold, and no booleans."""
    bound = integer_bound(data_type)

    def to_wire(value: object) -> int:
        value = plain(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise MisfitError(path, data_type, value)
        if not -bound <= value < bound:
            raise MisfitError(path, data_type, value, found=f"int out of range {value}")
        return int(value)

    return to_wire


def double(data_type: DataType, path: str) -> ToWire:
    """Accept floats, and integers that a double holds exactly."""

    def to_wire(value: object) -> float:
        value = plain(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise MisfitError(path, data_type, value)
        if isinstance(value, float):
            return value
        try:
            number = float(value)
        except OverflowError as exc:
            raise MisfitError(path, data_type, value, found="int out of range") from exc
        if number != value:
            raise MisfitError(path, data_type, value, found=f"int with too many digits {value}")
        return number

    return to_wire


def single(data_type: DataType, path: str) -> ToWire:
    """Accept floats and integers; round to 32 bits."""
    to_double = double(data_type, path)

    def to_wire(value: object) -> float:
        number = to_double(value)
        try:
            rounded: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
        except OverflowError as exc:
            raise MisfitError(path, data_type, value, found="float out of range") from exc
        return rounded

    return to_wire


def text(data_type: DataType, path: str) -> ToWire:
    """Accept strings."""

    def to_wire(value: object) -> str:
        if not isinstance(value, str):
            raise MisfitError(path, data_type, value)
        return str(plain(value))

    return to_wire


def binary(data_type: DataType, path: str) -> ToWire:
    """Accept bytes and bytearrays."""

    def to_wire(value: object) -> bytes:
        if not isinstance(value, bytes | bytearray):
            raise MisfitError(path, data_type, value)
        return bytes(value)

    return to_wire


def decimal(data_type: DecimalType, path: str) -> ToWire:
    """Accept finite decimals and integers of at most the precision; round half up to the scale."""
    step = Decimal(1).scaleb(-data_type.scale)
    limit = Decimal(10) ** (data_type.precision - data_type.scale)

    def to_wire(value: object) -> str:
        value = plain(value)
        if not isinstance(value, Decimal | int) or isinstance(value, bool):
            raise MisfitError(path, data_type, value)
        try:
            rounded = Decimal(value).quantize(step, context=_WIDE)
        except InvalidOperation as exc:
            raise MisfitError(path, data_type, value, found=f"decimal {value}") from exc
        if rounded.is_nan() or abs(rounded) >= limit:
            raise MisfitError(path, data_type, value, found=f"decimal out of range {value}")
        return format(rounded, "f")

    return to_wire


def to_decimal(stored: str) -> Decimal:
    """Return the decimal of its stored form."""
    return Decimal(stored)


def internal_form(data_type: DataType) -> Callable[[Any], int]:
    """Return what gives Spark's internal form of a date, time, timestamp or interval, exactly."""
    if isinstance(data_type, TimestampType):
        return _instant_micros
    if isinstance(data_type, DayTimeIntervalType):
        return lambda value: value // _MICROSECOND
    return cast("Callable[[Any], int]", data_type.toInternal)


def _instant_micros(value: dt.datetime) -> int:
    # Spark's own conversion has no regard for `fold`: of the hour that comes twice when clocks go back
    # it takes one for the other. Called as a datetime's: pandas holds naive times to be UTC.
    whole = dt.datetime.replace(value, microsecond=0)
    return int(dt.datetime.timestamp(whole)) * 1_000_000 + value.microsecond


def temporal(data_type: DataType, path: str) -> ToWire:
    """Accept a date, time, timestamp or interval that reads back; digits below microseconds go."""
    expected: type = dt.datetime
    step = 1
    if isinstance(data_type, DateType):
        expected = dt.date
    elif isinstance(data_type, TimeType):
        expected, step = dt.time, 10 ** (9 - data_type.precision)
    elif isinstance(data_type, DayTimeIntervalType):
        expected = dt.timedelta
    refused: tuple[type, ...] = (dt.datetime,) if expected is dt.date else ()
    to_internal = internal_form(data_type)

    def to_wire(value: object) -> int:
        if not isinstance(value, expected) or isinstance(value, refused):
            raise MisfitError(path, data_type, value)
        if isinstance(value, dt.time) and (value.tzinfo is not None or to_internal(value) % step):
            raise MisfitError(path, data_type, value, found=f"time {value}")
        try:
            internal = to_internal(value)
            if isinstance(value, dt.datetime) and value.year in _EDGE_YEARS:
                data_type.fromInternal(internal)  # it may have no local time
        except (OverflowError, ValueError) as exc:
            raise MisfitError(path, data_type, value, found=f"{value} out of range") from exc
        if abs(internal) > _LAST_MICROS:
            raise MisfitError(path, data_type, value, found=f"{value} out of range")
        return internal

    return to_wire


def variant(data_type: DataType, path: str) -> ToWire:
    """Accept variants, as Spark gives them out."""

    def to_wire(value: object) -> tuple[bytes, bytes]:
        if not isinstance(value, VariantVal):
            raise MisfitError(path, data_type, value)
        return bytes(value.value), bytes(value.metadata)

    return to_wire


def to_variant(stored: tuple[bytes, bytes]) -> VariantVal:
    """Return the variant of its stored form."""
    return VariantVal(*stored)


def _is_not_a_time(value: object) -> bool:
    # pandas' NaT is a datetime that equals nothing, not even itself; it stands for null.
    return isinstance(value, dt.datetime) and not math.isfinite(value.year)

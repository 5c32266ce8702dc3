"""Keys as bytes whose order is the order of the keys, and of which none begins another.

Each field is ``00`` for null, or ``01`` and the value: integers, dates and times as 8 bytes, most
significant first, sign bit flipped; doubles likewise, all bits flipped when negative; decimals as
16 bytes of their unscaled value; strings and bytes with each ``00`` as ``00 FF`` and ``00 00`` at
the end; structs as their fields; arrays as their elements, each after ``01``, and ``00``. Nulls come first, NaN last, as in Spark's ascending order.
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.spark.operator.rows import row_maker
from statekeep.spark.operator.scalars import internal_form
from statekeep.spark.releases import TimeType

_Encode: TypeAlias = Callable[[Any], bytes]
_Decode: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_NULL: Final = b"\x00"
_PRESENT: Final = b"\x01"
_END: Final = b"\x00\x00"
_ESCAPED: Final = b"\x00\xff"
_BIAS: Final = 1 << 63
_ALL_BITS: Final = (1 << 64) - 1
_DECIMAL_BYTES: Final = 16
_DECIMAL_BIAS: Final = 1 << 127
_WIDE: Final = Context(prec=100)
_NAN_BITS: Final = 0x7FF8000000000000

_eight: Final = struct.Struct(">BQ")
_unsigned: Final = struct.Struct(">Q")
_double: Final = struct.Struct(">d")


class KeyCodec:
    """Turns tuples of a key schema into bytes and back.

    Injective but for what Spark's grouping holds to be equal: -0.0 is 0.0, and every NaN is one.
    """

    def __init__(self, schema: StructType) -> None:
        """Prepare for ``schema``.

        Raises:
            StateSchemaError: A type in it cannot be a key: maps have no order.
        """
        self.schema = schema
        pairs = [_field(f.dataType, f.name) for f in schema.fields]
        self._encode = [encode for encode, _ in pairs]
        self._decode = [decode for _, decode in pairs]

    def encode(self, key: Sequence[Any]) -> bytes:
        """Return the bytes of one key, whose values fit the schema."""
        return b"".join([encode(value) for encode, value in zip(self._encode, key, strict=True)])

    def encode_columns(self, columns: Sequence[Iterable[Any]]) -> list[bytes]:
        """Return the bytes of many keys, given field by field."""
        encoded = [map(encode, col) for encode, col in zip(self._encode, columns, strict=True)]
        if len(encoded) == 1:
            return list(encoded[0])
        return list(map(b"".join, zip(*encoded, strict=True)))

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the key whose bytes ``data`` are.

        Raises:
            CheckpointCorruptError: They are no key of this schema.
        """
        key, end = self.decode_front(data)
        if end != len(data):
            raise self._unreadable(data)
        return key

    def decode_front(self, data: bytes) -> tuple[tuple[Any, ...], int]:
        """Return the key that ``data`` begins with, and where it ends: no key is another's front.

        Raises:
            CheckpointCorruptError: They begin with no key of this schema.
        """
        values: list[Any] = []
        at = 0
        try:
            for decode in self._decode:
                value, at = decode(data, at)
                values.append(value)
        except (struct.error, ValueError, IndexError, ArithmeticError) as exc:
            raise self._unreadable(data) from exc
        return tuple(values), at

    def _unreadable(self, data: bytes) -> CheckpointCorruptError:
        return CheckpointCorruptError(
            f"stored key cannot be read: schema={self.schema.simpleString()} key={data.hex()}"
        )


def _field(data_type: DataType, path: str) -> tuple[_Encode, _Decode]:
    if isinstance(data_type, DecimalType):
        return _decimal(data_type)
    if isinstance(data_type, StructType):
        return _struct(data_type, path)
    if isinstance(data_type, ArrayType):
        return _array(data_type, path)
    if type(data_type) in _TEMPORAL:
        return _temporal(data_type)
    # A collation calls different strings equal; their bytes do not.
    has_order = not isinstance(data_type, StringType) or data_type.isUTF8BinaryCollation()
    for kinds, encode, decode in _FIXED:
        if isinstance(data_type, kinds) and has_order:
            return encode, _or_null(decode)
    raise StateSchemaError(
        f"type cannot be used in a key: field={path} type={data_type.simpleString()}"
    )


def _or_null(decode: _Decode) -> _Decode:
    def decode_field(data: bytes, at: int) -> tuple[Any, int]:
        tag = data[at]
        if tag == 0:
            return None, at + 1
        if tag != 1:
            raise ValueError(tag)
        return decode(data, at + 1)

    return decode_field


def _encode_integer(value: int | None) -> bytes:
    return _NULL if value is None else _eight.pack(1, value + _BIAS)


def _decode_integer(data: bytes, at: int) -> tuple[int, int]:
    return _unsigned.unpack_from(data, at)[0] - _BIAS, at + 8


def _decode_boolean(data: bytes, at: int) -> tuple[bool, int]:
    value, end = _decode_integer(data, at)
    return bool(value), end


def _encode_double(value: float | None) -> bytes:
    if value is None:
        return _NULL
    # Adding zero turns -0.0 into 0.0 and leaves all else alone.
    bits = _NAN_BITS if math.isnan(value) else _unsigned.unpack(_double.pack(value + 0.0))[0]
    return _eight.pack(1, bits ^ (_ALL_BITS if bits & _BIAS else _BIAS))


def _decode_double(data: bytes, at: int) -> tuple[float, int]:
    bits = _unsigned.unpack_from(data, at)[0]
    bits ^= _BIAS if bits & _BIAS else _ALL_BITS
    return _double.unpack(_unsigned.pack(bits))[0], at + 8


def _encode_text(value: str | None) -> bytes:
    if value is None:
        return _NULL
    data = value.encode()
    if b"\x00" in data:
        data = data.replace(b"\x00", _ESCAPED)
    return b"\x01%b\x00\x00" % data


def _encode_binary(value: bytes | None) -> bytes:
    if value is None:
        return _NULL
    return b"\x01%b\x00\x00" % bytes(value).replace(b"\x00", _ESCAPED)


def _decode_binary(data: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while data[(end := data.index(b"\x00", end)) + 1] == _ESCAPED[1]:
        end += 2
    if data[end : end + 2] != _END:
        raise ValueError(end)
    return data[at:end].replace(_ESCAPED, b"\x00"), end + 2


def _decode_text(data: bytes, at: int) -> tuple[str, int]:
    value, end = _decode_binary(data, at)
    return value.decode(), end


def _temporal(data_type: DataType) -> tuple[_Encode, _Decode]:
    to_internal = internal_form(data_type)

    def encode(value: object) -> bytes:
        return _NULL if value is None else _encode_integer(to_internal(value))

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        internal, end = _decode_integer(data, at)
        return data_type.fromInternal(internal), end

    return encode, _or_null(decode)


def _decimal(data_type: DecimalType) -> tuple[_Encode, _Decode]:
    scale = data_type.scale

    def encode(value: Decimal | None) -> bytes:
        if value is None:
            return _NULL
        unscaled = int(value.scaleb(scale, context=_WIDE))
        return _PRESENT + (unscaled + _DECIMAL_BIAS).to_bytes(_DECIMAL_BYTES, "big")

    def decode(data: bytes, at: int) -> tuple[Decimal, int]:
        end = at + _DECIMAL_BYTES
        if end > len(data):
            raise IndexError(end)
        unscaled = int.from_bytes(data[at:end], "big") - _DECIMAL_BIAS
        return Decimal(unscaled).scaleb(-scale, context=_WIDE), end

    return encode, _or_null(decode)


def _struct(data_type: StructType, path: str) -> tuple[_Encode, _Decode]:
    pairs = [_field(f.dataType, f"{path}.{f.name}") for f in data_type.fields]
    names = data_type.names
    make_row = row_maker(names)

    def encode(value: object) -> bytes:
        if value is None:
            return _NULL
        # Arrow gives a struct as a dict, a processor may give a row or a tuple.
        values: Any = [value[name] for name in names] if isinstance(value, dict) else value
        parts = [encode_one(item) for (encode_one, _), item in zip(pairs, values, strict=True)]
        return _PRESENT + b"".join(parts)

    def decode(data: bytes, at: int) -> tuple[Any, int]:
        values: list[Any] = []
        for _, decode_one in pairs:
            value, at = decode_one(data, at)
            values.append(value)
        return make_row(values), at

    return encode, _or_null(decode)


def _array(data_type: ArrayType, path: str) -> tuple[_Encode, _Decode]:
    encode_one, decode_one = _field(data_type.elementType, f"{path}[]")

    def encode(value: Iterable[Any] | None) -> bytes:
        if value is None:
            return _NULL
        return b"".join([_PRESENT, *[_PRESENT + encode_one(item) for item in value], _NULL])

    def decode(data: bytes, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while (tag := data[at]) == 1:
            item, at = decode_one(data, at + 1)
            items.append(item)
        if tag != 0:
            raise ValueError(tag)
        return items, at + 1

    return encode, _or_null(decode)


_FIXED: Final[tuple[tuple[tuple[type[DataType], ...], _Encode, _Decode], ...]] = (
    ((StringType,), _encode_text, _decode_text),
    ((BinaryType,), _encode_binary, _decode_binary),
    ((IntegralType,), _encode_integer, _decode_integer),
    ((BooleanType,), _encode_integer, _decode_boolean),
    ((DoubleType, FloatType), _encode_double, _decode_double),
)

_TEMPORAL: Final = (DateType, TimeType, TimestampType, TimestampNTZType, DayTimeIntervalType)

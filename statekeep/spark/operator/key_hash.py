"""Spark's hash of grouping keys, computed from stored keys: which task a key belongs to, without Spark.

Spark routes rows by ``pmod(hash(keys), N)``: a 32-bit MurmurHash3 whose seed, 42 for the first
column, is the hash of the columns before. A null leaves the hash as it is. Strings and bytes are
hashed four bytes at a time and then byte by byte, each as a whole block: there Spark's hash is not
the common one.

Source: Spark 4.3 ``Murmur3Hash``, ``Murmur3_x86_32.hashUnsafeBytes``.
"""

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ShortType,
    StringType,
    StructType,
)

from statekeep.errors import CheckpointCorruptError

SPARK_SEED: Final = 42
"""Of the hash of the first column."""
_MASK: Final = 0xFFFFFFFF
_BYTE_SIGN: Final = 1 << 7
_SIGN: Final = 1 << 63
_ALL_BITS: Final = (1 << 64) - 1
_ESCAPED: Final = 0xFF
"""Follows a zero byte that belongs to a string."""
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_ADDED: Final = 0xE6546B64
_F1: Final = 0x85EBCA6B
_F2: Final = 0xC2B2AE35
_DECIMAL_BYTES: Final = 16
_DECIMAL_BIAS: Final = 1 << 127
_MAX_LONG_DIGITS: Final = 18

_unsigned: Final = struct.Struct(">Q")
_double: Final = struct.Struct(">d")
_float_bits: Final = struct.Struct(">f")
_int_bits: Final = struct.Struct(">I")

_Fold: TypeAlias = Callable[[bytes, int, int], tuple[int, int]]
"""From bytes, position and hash so far to the new hash and the position behind the value."""


class KeyHasher:
    """Hashes the stored form of grouping keys (`statekeep.spark.operator.key_codec`) as Spark does."""

    def __init__(self, schema: StructType) -> None:
        """Prepare for the schema of the grouping key, whose types a `KeyCodec` takes."""
        self._folds = [_fold_of(found.dataType) for found in schema.fields]

    def hash_front(self, data: bytes) -> tuple[int, int]:
        """Return the hash of the key that ``data`` begins with, and where the key ends.

        Raises:
            CheckpointCorruptError: They begin with no key of this schema.
        """
        value, at = SPARK_SEED, 0
        try:
            for fold in self._folds:
                value, at = fold(data, at, value)
        except (struct.error, ValueError, IndexError) as exc:
            raise CheckpointCorruptError(f"stored key cannot be read: key={data.hex()}") from exc
        return value, at


def partition_of_hash(value: int, partitions: int) -> int:
    """Return the task of a key, as ``pmod(hash, N)`` gives it."""
    return (value - (1 << 32) if value >= 1 << 31 else value) % partitions


def hash_int(value: int, seed: int) -> int:
    """Return the hash of a 32-bit integer."""
    return _finish(_mix(seed, value & _MASK), 4)


def hash_long(value: int, seed: int) -> int:
    """Return the hash of a 64-bit integer."""
    return _finish(_mix(_mix(seed, value & _MASK), value >> 32 & _MASK), 8)


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, or of a string in UTF-8."""
    whole = len(data) & ~3
    value = seed
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        value = _mix(value, block)
    for byte in data[whole:]:
        value = _mix(value, (byte ^ _BYTE_SIGN) - _BYTE_SIGN & _MASK)
    return _finish(value, len(data))


def _mix(value: int, block: int) -> int:
    block = block * _C1 & _MASK
    value ^= (block << 15 | block >> 17) * _C2 & _MASK
    return (value << 13 | value >> 19) * 5 + _ADDED & _MASK


def _finish(value: int, length: int) -> int:
    value ^= length
    value = (value ^ value >> 16) * _F1 & _MASK
    value = (value ^ value >> 13) * _F2 & _MASK
    return value ^ value >> 16


def _fold_of(data_type: DataType) -> _Fold:
    if isinstance(data_type, StructType):
        return _or_null(_struct_fold(data_type))
    if isinstance(data_type, ArrayType):
        return _or_null(_array_fold(data_type))
    if isinstance(data_type, DecimalType):
        return _or_null(_fold_decimal(data_type.precision))
    for kinds, fold in _FIXED:
        if isinstance(data_type, kinds):
            return _or_null(fold)
    return _or_null(_fold_long)  # longs, timestamps and intervals: all that is left in a key


def _or_null(fold: _Fold) -> _Fold:
    def fold_field(data: bytes, at: int, seed: int) -> tuple[int, int]:
        tag = data[at]
        if tag == 0:
            return seed, at + 1
        if tag != 1:
            raise ValueError(tag)
        return fold(data, at + 1, seed)

    return fold_field


def _fold_int(data: bytes, at: int, seed: int) -> tuple[int, int]:
    return hash_int(_unsigned.unpack_from(data, at)[0], seed), at + 8


def _fold_long(data: bytes, at: int, seed: int) -> tuple[int, int]:
    return hash_long(_unsigned.unpack_from(data, at)[0] ^ _SIGN, seed), at + 8


def _fold_double(data: bytes, at: int, seed: int) -> tuple[int, int]:
    return hash_long(_double_bits(data, at), seed), at + 8


def _fold_float(data: bytes, at: int, seed: int) -> tuple[int, int]:
    (value,) = _double.unpack(_unsigned.pack(_double_bits(data, at)))
    return hash_int(_int_bits.unpack(_float_bits.pack(value))[0], seed), at + 8


def _double_bits(data: bytes, at: int) -> int:
    (bits,) = _unsigned.unpack_from(data, at)
    return int(bits ^ (_SIGN if bits & _SIGN else _ALL_BITS))


def _fold_bytes(data: bytes, at: int, seed: int) -> tuple[int, int]:
    end = at
    while data[(end := data.index(b"\x00", end)) + 1] == _ESCAPED:
        end += 2
    if data[end + 1] != 0:
        raise ValueError(end)
    return hash_bytes(data[at:end].replace(b"\x00\xff", b"\x00"), seed), end + 2


def _fold_decimal(precision: int) -> _Fold:
    def fold(data: bytes, at: int, seed: int) -> tuple[int, int]:
        end = at + _DECIMAL_BYTES
        if end > len(data):
            raise IndexError(end)
        unscaled = int.from_bytes(data[at:end], "big") - _DECIMAL_BIAS
        if precision <= _MAX_LONG_DIGITS:
            return hash_long(unscaled & _ALL_BITS, seed), end
        # As Java's BigInteger writes itself: as few bytes as hold it and its sign.
        magnitude = unscaled if unscaled >= 0 else ~unscaled
        size = magnitude.bit_length() // 8 + 1
        return hash_bytes(unscaled.to_bytes(size, "big", signed=True), seed), end

    return fold


def _struct_fold(schema: StructType) -> _Fold:
    folds = [_fold_of(found.dataType) for found in schema.fields]

    def fold(data: bytes, at: int, seed: int) -> tuple[int, int]:
        for one in folds:
            seed, at = one(data, at, seed)
        return seed, at

    return fold


def _array_fold(data_type: ArrayType) -> _Fold:
    fold_one = _fold_of(data_type.elementType)

    def fold(data: bytes, at: int, seed: int) -> tuple[int, int]:
        while (tag := data[at]) == 1:
            seed, at = fold_one(data, at + 1, seed)
        if tag != 0:
            raise ValueError(tag)
        return seed, at + 1

    return fold


_FIXED: Final[tuple[tuple[tuple[type[DataType], ...], _Fold], ...]] = (
    ((StringType, BinaryType), _fold_bytes),
    ((FloatType,), _fold_float),
    ((DoubleType,), _fold_double),
    ((ByteType, ShortType, IntegerType, BooleanType, DateType), _fold_int),
)

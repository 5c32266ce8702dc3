"""The records of one block of a delta, taken apart: two lists, and no object per record."""

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from typing_extensions import override

_LENGTH: Final = struct.Struct("<I")
_VALUE_LENGTH: Final = struct.Struct("<i")
_LONGEST: Final = (1 << 31) - 1


class Records(Collection[tuple[bytes, bytes | None]]):
    """Keys and their new values in order, None for a deletion; pairs are made as they are read.

    A pair per record, kept, would set off the interpreter's garbage collector all the time: it
    costs twice what taking the block apart does.
    """

    __slots__ = ("_keys", "_values")

    def __init__(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Take the lists, which are of one length."""
        self._keys = keys
        self._values = values

    @override
    def __len__(self) -> int:
        return len(self._keys)

    @override
    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        return zip(self._keys, self._values, strict=True)

    @override
    def __contains__(self, record: object) -> bool:
        return any(record == each for each in self)


def read_records(raw: bytes) -> tuple[Records, int]:
    """Take a block apart; return its records, and how many of them delete.

    Raises:
        IndexError: A length leads beyond the end (or struct.error: there is no room for one).
        ValueError: A key has a size below 0, or a value one below -1: says the how many-th.
    """
    return (raw and _equal_records(raw)) or _any_records(raw)


def _equal_records(raw: bytes) -> tuple[Records, int] | None:
    """Take apart a block whose keys are of one length, and its values too; None: they are not."""
    (key_bytes,) = _LENGTH.unpack_from(raw)
    value_at = key_bytes + _LENGTH.size + _VALUE_LENGTH.size
    if value_at > len(raw):
        return None
    (value_bytes,) = _VALUE_LENGTH.unpack_from(raw, value_at - _VALUE_LENGTH.size)
    stride = value_at + value_bytes
    if value_bytes < 0 or len(raw) % stride:
        return None
    count = len(raw) // stride
    lengths = (*range(_LENGTH.size), *range(value_at - _VALUE_LENGTH.size, value_at))
    if any(raw[at::stride] != raw[at : at + 1] * count for at in lengths):
        return None
    starts = range(0, len(raw), stride)
    keys = [raw[start + _LENGTH.size : start + _LENGTH.size + key_bytes] for start in starts]
    return Records(keys, [raw[start + value_at : start + stride] for start in starts]), 0


def _any_records(raw: bytes) -> tuple[Records, int]:
    unpack_length, unpack_value_length = _LENGTH.unpack_from, _VALUE_LENGTH.unpack_from
    keys: list[bytes] = []
    values: list[bytes | None] = []
    offset, start, size, deletes = 0, 0, len(raw), 0
    try:
        while offset < size:
            start = offset + 4
            offset = start + unpack_length(raw, offset)[0]
            (value_bytes,) = unpack_value_length(raw, offset)
            keys.append(raw[start:offset])
            start = offset + 4
            if value_bytes >= 0:
                offset = start + value_bytes
                if offset > size:
                    raise IndexError(offset)
                values.append(raw[start:offset])
            elif value_bytes == -1:
                offset = start
                deletes += 1
                values.append(None)
            else:
                raise ValueError(f"value size below -1: key={len(keys) - 1} size={value_bytes}")
    except struct.error:
        key_bytes = offset - start
        if key_bytes <= _LONGEST:
            raise
        key_bytes -= 1 << 32
        raise ValueError(f"key size below 0: key={len(keys)} size={key_bytes}") from None
    return Records(keys, values), deletes

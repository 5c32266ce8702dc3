"""Digests by which a replayed batch is compared with its first run."""

# pyarrow and pandas ship no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportAttributeAccessIssue=false

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class RowHashSum:
    """Sum modulo 2**64 of a hash per row: the same for the same rows in any order."""

    def __init__(self) -> None:
        self._sum = np.uint64(0)

    def update(self, hashes: pa.Array) -> None:
        """Add the int64 hashes of some rows."""
        values = hashes.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
        with np.errstate(over="ignore"):
            self._sum = np.uint64(self._sum + values.sum(dtype=np.uint64))

    def hexdigest(self) -> str:
        """Return the sum as 16 hexadecimal digits."""
        return f"{int(self._sum):016x}"


class ArrowDigest:
    """SHA-256 of the values of record batches, in order.

    Equal values give equal digests whatever the buffers look like: their offsets, padding and
    what lies beneath nulls have no part in it. Where the batches are cut has.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        for column in batch.columns:
            self._add(column)

    def hexdigest(self) -> str:
        """Return the digest as 64 hexadecimal digits."""
        return self._hash.hexdigest()

    def _add(self, column: pa.Array) -> None:
        self._hash.update(len(column).to_bytes(8, "little"))
        self._hash.update(column.null_count.to_bytes(8, "little"))
        if column.null_count:
            self._hash.update(_packed(column.is_valid()))
            column = column.drop_null()
        kind = column.type
        if pa.types.is_null(kind):
            return
        if pa.types.is_struct(kind):
            for child in column.flatten():
                self._add(child)
        elif pa.types.is_map(kind):
            self._add_lengths(column)
            self._add(_child(column, column.keys))
            self._add(_child(column, column.items))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._add_lengths(column)
            self._add(_child(column, column.values))
        elif _is_text(kind):
            self._add_text(column)
        elif pa.types.is_boolean(kind):
            self._hash.update(_packed(column))
        else:
            self._add_fixed(column)

    def _add_lengths(self, column: pa.Array) -> None:
        self._hash.update(np.diff(_offsets(column)).astype("<i8").tobytes())

    def _add_text(self, column: pa.Array) -> None:
        lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)
        self._hash.update(lengths.astype("<i8").tobytes())
        if len(column) == 0:
            return
        is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        width = 8 if is_large else 4
        _, offset_buffer, data = column.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=f"<i{width}")
        first, last = offsets[column.offset], offsets[column.offset + len(column)]
        if last > first:
            self._hash.update(memoryview(data)[first:last])

    def _add_fixed(self, column: pa.Array) -> None:
        if len(column):
            width = column.type.bit_width // 8
            data = memoryview(column.buffers()[1])
            self._hash.update(data[column.offset * width : (column.offset + len(column)) * width])


def _is_text(kind: pa.DataType) -> bool:
    text = (pa.types.is_string, pa.types.is_large_string)
    binary = (pa.types.is_binary, pa.types.is_large_binary)
    return any(is_kind(kind) for is_kind in text + binary)


def _packed(column: pa.Array) -> bytes:
    bits: NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return np.packbits(bits).tobytes()


def _offsets(column: pa.Array) -> NDArray[Any]:
    offsets: NDArray[Any] = column.offsets.to_numpy(zero_copy_only=False)
    return offsets


def _child(column: pa.Array, values: pa.Array) -> pa.Array:
    offsets = _offsets(column)
    return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))

"""What a batch changes in the store, written here; digests by which a replayed batch is compared with its first run."""

import hashlib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from operator import add
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statekeep.stores.base import KeyValueStore

WRITE_KEYS: Final = 10_000
"""Changes that are gathered before they are written: bounds memory, and the time of one call."""

_DELETED: Final = b"\xc1"
"""Stands for a deletion in the digest; no MessagePack value begins with this byte."""

_MASK: Final = (1 << 64) - 1


class ChangeWriter:
    """Writes changes to the store, and keeps their number and digest.

    The digest does not depend on order or on how the changes were cut into writes: it is the sum,
    modulo 2**64, of a mixed CRC-32 of each key with its value. It finds accidents (an entry that
    is missing, doubled, or differs is overlooked once in 2**32), not forgeries.

    Attributes:
        changed_keys: How many entries were put or deleted.
        sum: What the digest is made of.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self.changed_keys = 0
        self._store = store
        self.sum = 0
        self._announced: dict[bytes, bytes | None] = {}
        self._failure: BaseException | None = None

    @contextmanager
    def failing_for_good(self) -> Generator[None]:
        """Remember an error of the body, and raise it again instead of any later write.

        A write holds changes of many keys, and is made while a processor uses the state of one: if
        the processor catches its error, the batch must fail nevertheless.
        """
        self.require_whole()
        try:
            yield
        except BaseException as exc:
            self._failure = exc
            raise

    def require_whole(self) -> None:
        """Raise the error of a failed write, which the caller may have caught."""
        if self._failure is not None:
            raise self._failure

    @property
    def digest(self) -> str:
        """The digest of all that was written, as 16 hexadecimal digits."""
        return combined_digest([self])

    def announce(self, key: bytes, value: bytes) -> None:
        """Put ``key`` together with the first change, and not at all if there is none."""
        self._announced[key] = value

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write ``changes`` now; a value of None deletes."""
        if not changes:
            return
        if self._announced:
            announced, self._announced = self._announced, {}
            self.write(announced)
        with self.failing_for_good():
            self._store.write(changes)
        self.changed_keys += len(changes)
        values = [_DELETED if value is None else value for value in changes.values()]
        self.sum = (self.sum + _mixed_sum(changes, values)) & _MASK

    def delete_prefix(self, prefix: bytes) -> None:
        """Delete every entry whose key begins with ``prefix``."""
        doomed: dict[bytes, bytes | None] = {}
        for key, _ in self._store.scan(prefix):
            doomed[key] = None
            if len(doomed) == WRITE_KEYS:
                self.write(doomed)
                doomed = {}
        self.write(doomed)


def combined_digest(writers: Iterable[ChangeWriter]) -> str:
    """Return the digest of all that some writers have written, as 16 hexadecimal digits."""
    return f"{sum(writer.sum for writer in writers) & _MASK:016x}"


def _mixed_sum(keys: Iterable[bytes], values: Iterable[bytes]) -> int:
    # A plain sum of CRCs would overlook two values that changed places, as CRC is linear: each is
    # mixed first (the finalizer of SplitMix64).
    x = np.fromiter(map(crc32, map(add, keys, values)), np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return int(x.sum(dtype=np.uint64))


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
        lengths = pc.binary_length(column).to_numpy(zero_copy_only=False)  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
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

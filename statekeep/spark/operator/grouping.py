"""From record batches to groups of rows by key, in ascending order of the encoded key."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import ArrayType, DataType, StructType

from statekeep.errors import StateBackupError
from statekeep.spark.operator.key_codec import KeyCodec

CHUNK_KEYS: Final = 10_000
"""Keys whose state is read and written together."""

CHUNK_ROWS: Final = 16_384
"""Rows that are Python objects at one time; a key with more rows is a chunk of its own."""

CALL_ROWS: Final = 65_536
"""About how many rows a function of record batches is given at one time."""


class GroupingOverflow(Exception):  # noqa: N818 - a signal to sort instead, not a failure
    """Raised when rows to be grouped exceed the bound: run the batch again, sorted by Spark.

    Attributes:
        max_bytes: The bound.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"rows exceed the bound for grouping in memory: max_bytes={max_bytes}")
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True)
class KeyChunk:
    """All rows of some keys."""

    rows: pa.RecordBatch
    """Sorted by key."""
    starts: list[int]
    """Where the rows of each key begin, and the number of rows at the end."""
    key_columns: list[list[Any]]
    """The values of the keys, column by column."""
    key_bytes: list[bytes]
    """The encoded keys, ascending."""
    rest: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()))
    """Further rows of the one key of the chunk, valid until the next chunk is asked for."""


class Grouping:
    """Knows the grouping columns of one input."""

    def __init__(self, key_columns: Sequence[str], key_schema: StructType) -> None:
        self._key_columns = list(key_columns)
        self._codec = KeyCodec(key_schema)
        # Arrow does not sort lists: such a column is sorted by its encoded form.
        self._encoded = {
            name: KeyCodec(StructType([field]))
            for name, field in zip(key_columns, key_schema.fields, strict=True)
            if _holds_array(field.dataType)
        }

    def in_memory(self, batches: Iterator[pa.RecordBatch], max_bytes: int) -> Iterator[KeyChunk]:
        """Group rows of any order, all of them held in memory.

        Raises:
            GroupingOverflow: They take more than ``max_bytes`` of Arrow data.
        """
        rows = hold(batches, max_bytes)
        if rows is not None:
            yield from self.cut(*self.sorted(rows), CHUNK_ROWS, CHUNK_KEYS)

    def whole_keys_in_memory(
        self, batches: Iterator[pa.RecordBatch], max_bytes: int
    ) -> Iterator[KeyChunk]:
        """As `in_memory`, in chunks of `CALL_ROWS`, and with equal keys in one form."""
        rows = hold(map(self.in_one_form, batches), max_bytes)
        if rows is not None:
            yield from self.cut(*self.sorted(rows), CALL_ROWS, CALL_ROWS)

    def sorted_stream(self, batches: Iterator[pa.RecordBatch]) -> Iterator[KeyChunk]:
        """Group rows that come sorted by key, holding one batch and the chunk at hand.

        Raises:
            ValueError: They are not sorted.
        """
        return _SortedStream(self, batches).chunks()

    def whole_keys_sorted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[KeyChunk]:
        """As `sorted_stream`, in chunks of `CALL_ROWS`; all rows of a key are in one, however many.

        Equal keys are in one form.

        Raises:
            ValueError: They are not sorted.
        """
        return _SortedStream(self, map(self.in_one_form, batches)).chunks_of_whole_keys()

    def in_one_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in which equal keys look alike: Arrow takes -0.0 and 0.0 for two, and some NaNs."""
        for name in self._key_columns:
            column = rows.column(name)
            if _holds_floats(column.type):
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), _in_one_form(column))
        return rows

    def starts(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Return where each run of one key begins, and the number of rows at the end."""
        return _starts(self._sort_columns(rows))

    def chunk(self, rows: pa.RecordBatch, starts: NDArray[np.int64]) -> KeyChunk:
        """Return the chunk of ``rows``, whose keys begin at ``starts``."""
        first = pa.array(starts[:-1])
        columns = [rows.column(name).take(first).to_pylist() for name in self._key_columns]
        key_bytes = self._codec.encode_columns(columns)
        return KeyChunk(rows, starts.tolist(), columns, key_bytes)

    def key_of(self, rows: pa.RecordBatch, at: int) -> bytes:
        """Return the encoded key of one row."""
        return self._codec.encode([rows.column(name)[at].as_py() for name in self._key_columns])

    def cut(
        self,
        rows: pa.RecordBatch,
        starts: NDArray[np.int64],
        most_rows: int,
        most_keys: int,
    ) -> Iterator[KeyChunk]:
        """Yield chunks of bounded size from ``rows``, whose keys begin at ``starts``."""
        key_count = len(starts) - 1
        at = 0
        while at < key_count:
            fits = int(np.searchsorted(starts, starts[at] + most_rows, side="right")) - 1
            end = min(max(fits, at + 1), at + most_keys, key_count)
            first, last = int(starts[at]), int(starts[end])
            yield self.chunk(rows.slice(first, last - first), starts[at : end + 1] - first)
            at = end

    def sorted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Return the rows sorted by key, and where each key begins."""
        columns = self._sort_columns(rows)
        order = _sort_indices(columns)
        return rows.take(order), _starts([column.take(order) for column in columns])

    def _sort_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        columns: list[pa.Array] = []
        for name in self._key_columns:
            codec = self._encoded.get(name)
            if codec is None:
                _add_sort_columns(rows.column(name), columns)
            else:
                encoded = codec.encode_columns([rows.column(name).to_pylist()])
                columns.append(pa.array(encoded, pa.large_binary()))
        return columns


class _SortedStream:
    def __init__(self, grouping: Grouping, batches: Iterator[pa.RecordBatch]) -> None:
        self._grouping = grouping
        self._batches = batches
        self._held: pa.RecordBatch | None = None
        self._last_key: bytes | None = None

    def chunks(self) -> Iterator[KeyChunk]:
        """Yield the chunks; the rows of the last key seen are held back, as more may come."""
        for batch in self._batches:
            rows = _joined([batch] if self._held is None else [self._held, batch])
            self._held = None
            if rows is None:
                continue
            starts = self._grouping.starts(rows)
            if len(starts) == 2 and rows.num_rows >= CHUNK_ROWS:  # noqa: PLR2004 - one key
                yield from self._large_key(rows, starts)
                continue
            last = int(starts[-2])
            self._held = rows.slice(last)
            if last:
                yield from self._whole_keys(
                    rows.slice(0, last), starts[:-1], CHUNK_ROWS, CHUNK_KEYS
                )
        if self._held is not None:
            held, self._held = self._held, None
            yield from self._whole_keys(held, self._grouping.starts(held), CHUNK_ROWS, CHUNK_KEYS)

    def chunks_of_whole_keys(self) -> Iterator[KeyChunk]:
        """Yield larger chunks, none of which leaves a row of its keys to the next."""
        held: list[pa.RecordBatch] = []
        row_count, wanted = 0, CALL_ROWS
        for batch in self._batches:
            held.append(batch)
            row_count += batch.num_rows
            if row_count < wanted:
                continue
            rows = _held_together(held)
            assert rows is not None  # noqa: S101 - there are that many
            starts = self._grouping.starts(rows)
            last = int(starts[-2])
            if last:
                yield from self._whole_keys(rows.slice(0, last), starts[:-1], CALL_ROWS, CALL_ROWS)
            held, row_count = [rows.slice(last)], row_count - last
            wanted = max(CALL_ROWS, 2 * row_count)  # else a large key would be joined repeatedly
        rest = _held_together(held)
        if rest is not None:
            yield from self._whole_keys(rest, self._grouping.starts(rest), CALL_ROWS, CALL_ROWS)

    def _whole_keys(
        self,
        rows: pa.RecordBatch,
        starts: NDArray[np.int64],
        most_rows: int,
        most_keys: int,
    ) -> Iterator[KeyChunk]:
        for chunk in self._grouping.cut(rows, starts, most_rows, most_keys):
            self._check_order(chunk.key_bytes)
            yield chunk

    def _large_key(self, rows: pa.RecordBatch, starts: NDArray[np.int64]) -> Iterator[KeyChunk]:
        chunk = self._grouping.chunk(rows, starts)
        self._check_order(chunk.key_bytes)
        rest = self._rest(chunk.key_bytes[0])
        yield KeyChunk(chunk.rows, chunk.starts, chunk.key_columns, chunk.key_bytes, rest)
        for _ in rest:
            pass  # rows that the processor did not want

    def _rest(self, key: bytes) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if batch.num_rows == 0:
                continue
            if self._grouping.key_of(batch, 0) != key:
                self._held = batch
                return
            end = int(self._grouping.starts(batch)[1])
            if end < batch.num_rows:
                self._held = batch.slice(end)
                yield batch.slice(0, end)
                return
            yield batch

    def _check_order(self, key_bytes: list[bytes]) -> None:
        last = self._last_key
        for key in key_bytes:
            if last is not None and key <= last:
                raise ValueError("rows are not sorted by the grouping key")
            last = key
        self._last_key = last


def hold(batches: Iterator[pa.RecordBatch], max_bytes: int) -> pa.RecordBatch | None:
    """Return all rows as one batch; None if there are none.

    Raises:
        GroupingOverflow: They take more than ``max_bytes`` of Arrow data, or than one batch can hold.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held_bytes += batch.nbytes
        if held_bytes > max_bytes:
            raise GroupingOverflow(max_bytes)
        held.append(batch)
    return _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    batches = [batch for batch in batches if batch.num_rows]
    if len(batches) <= 1:
        return batches[0] if batches else None
    table = pa.Table.from_batches(batches).combine_chunks()
    joined: pa.RecordBatch = table.to_batches()[0]
    if joined.num_rows != table.num_rows:  # a column of more than 2 GiB stays in pieces
        raise GroupingOverflow(table.nbytes)
    return joined


def _held_together(batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """As `_joined`; nothing is left to try where one batch cannot hold the rows."""
    try:
        return _joined(batches)
    except GroupingOverflow as exc:
        error = StateBackupError(
            "the rows of a grouping key are too large for one record batch of Arrow: 2 GiB a column"
        )
        error.add_note("hint: use transformWithState, which takes the rows of a key one by one")
        raise error from exc


def _holds_array(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_holds_array(field.dataType) for field in data_type.fields)
    return isinstance(data_type, ArrayType)


def _holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_floats(part.type) for part in kind)
    if pa.types.is_list(kind):
        return _holds_floats(kind.value_type)
    return bool(pa.types.is_floating(kind))


def _in_one_form(column: pa.Array) -> pa.Array:
    kind = column.type
    if not _holds_floats(kind):
        return column
    absent = column.is_null()
    if pa.types.is_struct(kind):
        parts = list(map(_in_one_form, column.flatten()))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=absent)
    if pa.types.is_list(kind):
        # A copy, as a part of an array has all items of the whole, and offsets that begin anywhere.
        lists = column.take(pa.array(np.arange(len(column))))
        items = _in_one_form(lists.values)
        return pa.ListArray.from_arrays(lists.offsets, items, type=kind, mask=absent)
    values = column.fill_null(pa.scalar(0, kind)).to_numpy() + 0
    values[np.isnan(values)] = np.nan
    return pa.array(values, kind, mask=absent.to_numpy(zero_copy_only=False))


def _add_sort_columns(column: pa.Array, columns: list[pa.Array]) -> None:
    """Append columns whose order, and whose differences, are those of the encoded key."""
    if column.null_count:
        columns.append(column.is_valid())
    if pa.types.is_struct(column.type):
        for child in column.flatten():
            _add_sort_columns(child, columns)
    elif pa.types.is_floating(column.type):
        columns.append(_ordered_bits(column))
    else:
        columns.append(column)


def _ordered_bits(column: pa.Array) -> pa.Array:
    # Adding zero turns -0.0 into 0.0; the bits of doubles then order as sign and magnitude.
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    return pa.array(bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF)))


def _sort_indices(columns: list[pa.Array]) -> pa.Array:
    if len(columns) == 1:
        return pc.array_sort_indices(columns[0])  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
    names = [str(i) for i in range(len(columns))]
    table = pa.Table.from_arrays(columns, names)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import


def _starts(columns: list[pa.Array]) -> NDArray[np.int64]:
    row_count = len(columns[0])
    differs = np.zeros(row_count - 1, dtype=np.bool_)
    for column in columns:
        unequal = pc.not_equal(column.slice(1), column.slice(0, row_count - 1))  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
        if unequal.null_count:
            unequal = unequal.fill_null(fill_value=False)
        differs |= unequal.to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.flatnonzero(differs) + 1, [row_count]))

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from operator_kit import memory_store

from statekeep.spark.operator.changes import ArrowDigest, ChangeWriter, RowHashSum
from statekeep.stores.base import KeyValueStore

_COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int32(), [1, None, 3, 4]),
    (pa.bool_(), [True, None, False, True]),
    (pa.string(), ["a", None, "", "\U0001f600"]),
    (pa.large_string(), ["a", None, "", "b"]),
    (pa.binary(), [b"\x00", None, b"", b"x"]),
    (pa.decimal128(10, 2), [Decimal("1.50"), None, Decimal(-1), Decimal(0)]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, tzinfo=dt.UTC), None, None, None]),
    (pa.list_(pa.int64()), [[1, None], None, [], [3]]),
    (pa.struct([("x", pa.int8()), ("y", pa.string())]), [{"x": 1, "y": "q"}, None, {"x": 2}, {}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [], [("b", None)]]),
    (pa.null(), [None, None, None, None]),
]


def _digest(column: pa.Array) -> str:
    digest = ArrowDigest()
    digest.update(pa.record_batch([column], ["c"]))
    return digest.hexdigest()


@pytest.mark.parametrize(("kind", "values"), _COLUMNS, ids=[str(kind) for kind, _ in _COLUMNS])
def test_output_digest_depends_on_values_and_not_on_buffers(
    kind: pa.DataType, values: list[Any]
) -> None:
    whole = pa.array([values[-1], *values, *values], kind)
    assert _digest(whole.slice(1, len(values))) == _digest(pa.array(values, kind))
    assert _digest(whole.slice(1 + len(values))) == _digest(pa.array(values, kind))


@pytest.mark.parametrize(("kind", "values"), _COLUMNS[:-1], ids=[str(k) for k, _ in _COLUMNS[:-1]])
def test_output_digest_sees_every_difference(kind: pa.DataType, values: list[Any]) -> None:
    variants = [values, values[::-1], values[:-1], [None, *values[1:]], [values[0]] * 4, []]
    assert len({_digest(pa.array(variant, kind)) for variant in variants}) == len(variants)


def test_output_digest_ignores_what_lies_beneath_nulls() -> None:
    valid = pa.array([True, False]).buffers()[1]
    columns = [
        pa.Array.from_buffers(pa.int64(), 2, [valid, pa.array([1, below]).buffers()[1]])
        for below in (7, 8)
    ]
    assert _digest(columns[0]) == _digest(columns[1])


def test_text_that_is_split_elsewhere_differs() -> None:
    assert _digest(pa.array(["ab", "c"])) != _digest(pa.array(["a", "bc"]))


def test_input_digest_is_the_same_in_any_order_and_cut() -> None:
    hashes = [2**63 - 1, -(2**63), -1, 5, 5, 7]
    one, other = RowHashSum(), RowHashSum()
    one.update(pa.array(hashes))
    other.update(pa.array(hashes[4:]))
    other.update(pa.array(hashes[3::-1]))
    assert one.hexdigest() == other.hexdigest() == f"{sum(hashes) % 2**64:016x}"


def _changes_digest(*writes: dict[bytes, bytes | None], store: KeyValueStore | None = None) -> str:
    writer = ChangeWriter(store or memory_store())
    for changes in writes:
        writer.write(changes)
    return writer.digest


def test_changes_digest_is_the_same_in_any_order_and_cut() -> None:
    changes: dict[bytes, bytes | None] = {b"a": b"1", b"b": None, b"c": b"3"}
    turned = dict(reversed(changes.items()))
    assert _changes_digest(changes) == _changes_digest(turned)
    assert _changes_digest(changes) == _changes_digest({b"c": b"3"}, {b"a": b"1", b"b": None})


def test_changes_digest_sees_swapped_values_deletions_and_empty_values() -> None:
    variants: list[dict[bytes, bytes | None]] = [
        {b"a": b"1", b"b": b"2"},
        {b"a": b"2", b"b": b"1"},
        {b"a": b"1", b"b": None},
        {b"a": b"1", b"b": b""},
        {b"a": b"1"},
        {},
    ]
    assert len({_changes_digest(variant) for variant in variants}) == len(variants)


def test_an_announced_entry_is_written_with_the_first_change_only() -> None:
    store = memory_store()
    writer = ChangeWriter(store)
    writer.announce(b"r", b"registry")
    writer.write({})
    assert list(store.scan()) == []
    writer.write({b"a": b"1"})
    assert dict(store.scan()) == {b"a": b"1", b"r": b"registry"}
    assert writer.changed_keys == 2

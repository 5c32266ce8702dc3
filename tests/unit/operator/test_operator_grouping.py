import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import record_batch

from statekeep.spark.operator import grouping
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.grouping import Grouping, GroupingOverflow, KeyChunk
from statekeep.spark.operator.key_codec import KeyCodec

_SCHEMA = "a string, x double, v long"


def _grouping() -> Grouping:
    return Grouping(["a", "x"], parse_schema("a string, x double"))


def _batches(rows: list[tuple[Any, ...]], cuts: list[int]) -> list[pa.RecordBatch]:
    batch = record_batch(rows, _SCHEMA)
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [batch.slice(a, b - a) for a, b in pairwise(edges)]


def _groups(chunks: Iterator[KeyChunk]) -> list[tuple[bytes, list[int]]]:
    groups: list[tuple[bytes, list[int]]] = []
    for chunk in chunks:
        values = chunk.rows.column("v").to_pylist()
        spans = pairwise(chunk.starts)
        for key, (first, end) in zip(chunk.key_bytes, spans, strict=True):
            groups.append((key, values[first:end]))
        for batch in chunk.rest:
            groups[-1][1].extend(batch.column("v").to_pylist())
    return groups


_KEYS = st.tuples(
    st.sampled_from([None, "", "a", "a\x00", "b", "\U0001f600", "\uffff"]),
    st.sampled_from([None, -math.inf, -1.5, -0.0, 0.0, 2.0, math.inf, math.nan]),
)
_ROWS = st.lists(_KEYS).map(lambda keys: [(*key, i) for i, key in enumerate(keys)])


def _expected(rows: list[tuple[Any, ...]]) -> list[tuple[bytes, list[int]]]:
    groups: dict[bytes, list[int]] = {}
    for a, x, v in rows:
        groups.setdefault(_grouping()._codec.encode((a, x)), []).append(v)
    return sorted(groups.items())


@settings(deadline=None)
@given(_ROWS, st.lists(st.integers(0, 20), max_size=3))
def test_keys_come_once_in_encoded_order_with_rows_in_their_order(
    rows: list[tuple[Any, ...]], cuts: list[int]
) -> None:
    batches = iter(_batches(rows, cuts))
    assert _groups(_grouping().in_memory(batches, 1 << 20)) == _expected(rows)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 1000])
def test_sorted_rows_are_grouped_as_rows_in_memory_are(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "CHUNK_ROWS", chunk_rows)

    @settings(deadline=None)
    @given(_ROWS, st.lists(st.integers(0, 20), max_size=4))
    def check(rows: list[tuple[Any, ...]], cuts: list[int]) -> None:
        codec = _grouping()._codec
        rows.sort(key=lambda row: codec.encode(row[:2]))
        assert _groups(_grouping().sorted_stream(iter(_batches(rows, cuts)))) == _expected(rows)

    check()


def test_rows_of_a_large_key_that_are_not_wanted_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouping, "CHUNK_ROWS", 2)
    rows = [("a", 0.0, i) for i in range(10)] + [("b", 0.0, 10)]
    chunks = _grouping().sorted_stream(iter(_batches(rows, [2, 4, 6, 8])))
    assert [len(chunk.key_bytes) for chunk in chunks] == [1, 1]


def test_a_large_key_is_streamed_and_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "CHUNK_ROWS", 2)
    taken: list[int] = []

    def source() -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(_batches([("a", 0.0, i) for i in range(10)], [2, 4, 6, 8])):
            taken.append(i)
            yield batch

    chunk = next(_grouping().sorted_stream(source()))
    assert taken == [0]
    next(chunk.rest)
    assert taken == [0, 1]


def test_chunks_are_bounded_by_keys_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "CHUNK_ROWS", 4)
    monkeypatch.setattr(grouping, "CHUNK_KEYS", 3)
    rows = [(key, 0.0, 0) for key in "a" * 9 + "bbccddefgh"]
    chunks = list(_grouping().in_memory(iter(_batches(rows, [])), 1 << 20))
    assert [len(chunk.key_bytes) for chunk in chunks] == [1, 2, 3, 2]
    assert all(c.rows.num_rows <= 4 or len(c.key_bytes) == 1 for c in chunks)


def test_rows_that_are_not_sorted_are_found() -> None:
    rows = [("b", 0.0, 0), ("a", 0.0, 1)]
    with pytest.raises(ValueError, match="not sorted"):
        list(_grouping().sorted_stream(iter(_batches(rows, []))))


def test_more_than_the_bound_overflows_before_anything_is_yielded() -> None:
    batches = _batches([("a", 0.0, i) for i in range(100)], [50])
    size = sum(batch.nbytes for batch in batches)
    with pytest.raises(GroupingOverflow) as caught:
        next(_grouping().in_memory(iter(batches), size - 1))
    assert caught.value.max_bytes == size - 1
    assert len(list(_grouping().in_memory(iter(batches), size))) == 1


def test_no_rows_are_no_chunks() -> None:
    empty = record_batch([], _SCHEMA)
    assert list(_grouping().in_memory(iter([empty]), 1)) == []
    assert list(_grouping().sorted_stream(iter([empty]))) == []


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("struct<x: int, y: string>", [{"x": 1, "y": "b"}, None, {"x": None, "y": "a"}]),
        ("boolean", [True, None, False, True]),
        ("decimal(5,2)", [None, 1, -1]),
        ("timestamp", [None, 5, -5]),
        ("binary", [b"\xff", b"", None, b"a"]),
        ("float", [1.5, math.nan, None, -0.0, 0.0]),
    ],
)
def test_every_kind_of_key_is_grouped_in_encoded_order(type_name: str, values: list[Any]) -> None:
    batch = record_batch([(value, i) for i, value in enumerate(values)], f"k {type_name}, v long")
    one = Grouping(["k"], parse_schema(f"k {type_name}"))
    chunks = list(one.in_memory(iter([batch]), 1 << 20))
    keys = [key for chunk in chunks for key in chunk.key_bytes]
    assert keys == sorted(set(keys))
    assert set(keys) == {one.key_of(batch, i) for i in range(len(values))}


_LISTS = st.none() | st.lists(st.none() | st.sampled_from([-0.0, 0.0, 1.5, math.nan]), max_size=3)


@given(st.lists(st.tuples(_LISTS, st.sampled_from([None, "a", "b"])), max_size=12), st.booleans())
def test_arrays_are_keys_as_other_values_are(
    keys: list[tuple[Any, Any]],
    is_sorted: bool,  # noqa: FBT001 - drawn
) -> None:
    schema = parse_schema("x array<double>, a string")
    codec = KeyCodec(schema)
    rows = [(*key, number) for number, key in enumerate(keys)]
    if is_sorted:
        rows.sort(key=lambda row: codec.encode(row[:2]))
    batch = record_batch(rows, "x array<double>, a string, v long")
    one = Grouping(["x", "a"], schema)
    found = one.sorted_stream(iter([batch])) if is_sorted else one.in_memory(iter([batch]), 1 << 20)
    expected: dict[bytes, list[int]] = {}
    for x, a, v in rows:
        expected.setdefault(codec.encode((x, a)), []).append(v)
    assert _groups(found) == sorted(expected.items())

"""The same processor gives the same output and state here as under pyspark's `TwsTester`.

The tester runs a processor key by key on dicts, so it is asked in ascending order of key. Two of
its ways are not Spark's, and are left out of the comparison: it keeps map entries in the order of
insertion, and a map from which all was removed exists.
"""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.spark.operator.clock import BatchClock
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.runner import OperatorSpec, run_operator
from statekeep.stores.memory import MemoryStore

_ROWS = parse_schema(
    "key string, op string, n long, x double, s string, b binary, d decimal(9,2), day date"
)
_OUTPUT = parse_schema("key string, what string, n long, x double, s string, d decimal(9,2)")


class Everything(StatefulProcessor):
    """Does to its variables what the rows say, and yields all that it sees."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", "n long, x double, s string, b binary")
        self.list = handle.getListState("list", "d decimal(9,2), day date")
        self.map = handle.getMapState("map", "s string, n long", "x double, s string")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            getattr(self, row.op)(row)
            yield from self.seen(key[0], row)

    @override
    def close(self) -> None:
        pass

    def update(self, row: Row) -> None:
        n, _, _, _ = self.value.get() or (0, None, None, None)
        self.value.update(((n or 0) + (row.n or 0), row.x, row.s, row.b))

    def clear(self, row: Row) -> None:
        states: list[Any] = [self.value, self.list, self.map]
        states[(row.n or 0) % 3].clear()

    def append(self, row: Row) -> None:
        self.list.appendValue((row.d, row.day))

    def extend(self, row: Row) -> None:
        self.list.appendList([(row.d, None), (None, row.day)])

    def put(self, row: Row) -> None:
        self.list.put([(row.d, row.day)])

    def insert(self, row: Row) -> None:
        self.map.updateValue((row.s, row.n), (row.x, row.s))

    def remove(self, row: Row) -> None:
        self.map.removeKey((row.s, row.n))

    def seen(self, key: str | None, row: Row) -> Iterator[Row]:
        value = self.value.get()
        if value is not None:
            yield Row(key=key, what="value", n=value[0], x=value[1], s=value[2])
        for d, day in self.list.get():
            yield Row(key=key, what=f"item {day}", d=d)
        for (s, n), (x, _) in sorted(self.map.iterator(), key=repr):
            yield Row(key=key, what="entry", n=n, s=s, x=x)
        found = self.map.getValue((row.s, row.n))
        yield Row(
            key=key,
            what=f"{self.list.exists()} {self.value.exists()} {self.map.containsKey((row.s, row.n))}",
            s=None if found is None else found[1],
        )


_TEXT = st.none() | st.text(st.sampled_from("ab\x00é\U0001f600"), max_size=3)
_ROW = st.tuples(
    st.sampled_from([None, "", "a", "a\x00", "b", "ü"]),
    st.sampled_from(["update", "clear", "append", "extend", "put", "insert", "remove"]),
    st.none() | st.integers(-5, 5) | st.integers(-(2**40), 2**40),
    st.none() | st.floats(allow_nan=False),
    _TEXT,
    st.none() | st.binary(max_size=3),
    st.none() | st.decimals(-999, 999, places=2),
    st.none() | st.dates(),
)
_BATCHES = st.lists(st.lists(_ROW, max_size=12), min_size=1, max_size=4)


class Ours:
    """Runs batches on a store in memory, each with a new processor, as a task does."""

    def __init__(
        self,
        make: type[StatefulProcessor],
        rows: StructType,
        output: StructType,
        *,
        is_pandas: bool,
    ) -> None:
        self._make = make
        self._is_pandas = is_pandas
        self._rows = rows
        self._output = output
        self.store: MemoryStore

    def batch(
        self, rows: list[tuple[Any, ...]], *, is_sorted: bool = False
    ) -> list[dict[str, Any]]:
        arrow = arrow_schema(self._rows)
        columns: list[Any] = list(zip(*rows, strict=True)) or [[] for _ in arrow]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, arrow, strict=True)]
        whole = pa.RecordBatch.from_arrays(arrays, schema=arrow)
        spec = OperatorSpec(
            processor=self._make(),
            key_columns=("key",),
            key_schema=parse_schema("key string"),
            row_schema=self._rows,
            output_schema=self._output,
            is_pandas=self._is_pandas,
            grouping_max_bytes=1 << 20,
        )
        written: list[pa.RecordBatch] = []
        run_operator(
            spec,
            self.store,
            iter([whole.slice(i, 3) for i in range(0, len(rows), 3)]),
            is_sorted=is_sorted,
            clock=BatchClock(-1, -1),
            write_output=written.append,
            digest_column=None,
        )
        return [row for batch in written for row in batch.to_pylist()]


def _by_key(rows: list[tuple[Any, ...]]) -> list[tuple[str | None, list[tuple[Any, ...]]]]:
    groups: dict[str | None, list[tuple[Any, ...]]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    return sorted(groups.items(), key=lambda item: (item[0] is not None, (item[0] or "").encode()))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_sorted", [False, True], ids=["grouped here", "sorted by spark"])
def test_row_mode_equals_the_tester_in_output_and_state(*, is_sorted: bool, tmp_path: Any) -> None:
    @settings(deadline=None, max_examples=60)
    @given(_BATCHES)
    def check(batches: list[list[tuple[Any, ...]]]) -> None:
        tester = TwsTester(Everything())
        ours = Ours(Everything, _ROWS, _OUTPUT, is_pandas=False)
        ours.store = MemoryStore(StoreName("state"), tmp_path, is_new=True)
        keys: set[str | None] = set()
        for batch in batches:
            groups = _by_key(batch)
            keys |= {key for key, _ in groups}
            expected = [
                {name: row.asDict().get(name) for name in _OUTPUT.names}
                for key, rows in groups
                for row in tester.test(key, [Row(*_ROWS.names)(*row) for row in rows])
            ]
            ordered = [row for _, rows in groups for row in rows] if is_sorted else batch
            assert ours.batch(ordered, is_sorted=is_sorted) == expected
        states = _final_state(ours, keys)
        for key in keys:
            assert states[key] == (
                tester.peekValueState("value", key),
                [tuple(item) for item in tester.peekListState("list", key)],
                dict(tester.peekMapState("map", key)),
            )

    check()


class Dump(Everything):
    """Keeps what each key's state is."""

    states: ClassVar[dict[str | None, Any]] = {}

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self.states[key[0]] = (self.value.get(), list(self.list.get()), dict(self.map.iterator()))
        return iter(())


def _final_state(ours: Ours, keys: set[str | None]) -> dict[str | None, Any]:
    Dump.states = {}
    reader = Ours(Dump, _ROWS, _OUTPUT, is_pandas=False)
    reader.store = ours.store
    reader.batch([(key, *[None] * (len(_ROWS) - 1)) for key in keys])
    return Dump.states


class PandasTotals(StatefulProcessor):
    """Sums, counts and keeps distinct tags, from frames."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState("totals", "n long, x double")
        self.tags = handle.getMapState("tags", "tag string", "n long")
        self.last = handle.getListState("last", "at timestamp_ntz")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n, x = self.totals.get() or (0, 0.0)
        for frame in rows:
            n, x = n + frame["n"].sum(), x + frame["x"].sum()
            for tag, count in frame["tag"].value_counts().items():
                (seen,) = self.tags.getValue((tag,)) or (0,)
                self.tags.updateValue((tag,), (seen + count,))
            self.last.appendValue((frame["at"].max(),))
        self.totals.update((n, x))
        tags = " ".join(sorted(f"{tag}={count}" for (tag,), (count,) in self.tags.iterator()))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "x": [x], "tags": [tags]})
        yield pd.DataFrame({"key": key[0], "at": [at for (at,) in self.last.get()]}).assign(
            n=0, x=0.0, tags=""
        )[["at", "key", "n", "tags", "x"]]

    @override
    def close(self) -> None:
        pass


_PANDAS_ROWS = parse_schema("key string, n long, x double, tag string, at timestamp_ntz")
_PANDAS_OUTPUT = parse_schema("key string, n long, x double, tags string")
_PANDAS_ROW = st.tuples(
    st.sampled_from(["a", "b", "c", ""]),
    st.integers(-1000, 1000),
    st.integers(-1000, 1000).map(float),
    st.sampled_from(["u", "v", "w"]),
    st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2040, 1, 1)),  # noqa: DTZ001 - without a zone
)


@pytest.mark.timeout(120)
def test_pandas_mode_equals_the_tester(tmp_path: Any) -> None:
    @settings(deadline=None, max_examples=15)
    @given(st.lists(st.lists(_PANDAS_ROW, max_size=8), min_size=1, max_size=3))
    def check(batches: list[list[tuple[Any, ...]]]) -> None:
        tester = TwsTester(PandasTotals())
        ours = Ours(PandasTotals, _PANDAS_ROWS, _PANDAS_OUTPUT, is_pandas=True)
        ours.store = MemoryStore(StoreName("state"), tmp_path, is_new=True)
        for batch in batches:
            expected: list[dict[Any, Any]] = []
            for key, rows in _by_key(batch):
                frame = pd.DataFrame(rows, columns=_PANDAS_ROWS.names)
                result: Any = tester.testInPandas(key, frame)
                expected += result[_PANDAS_OUTPUT.names].to_dict("records")
            assert ours.batch(batch) == expected

    check()


def test_a_decimal_in_state_has_the_scale_that_was_declared(tmp_path: Any) -> None:
    ours = Ours(Everything, _ROWS, _OUTPUT, is_pandas=False)
    ours.store = MemoryStore(StoreName("state"), tmp_path, is_new=True)
    rows = ours.batch([("a", "append", None, None, None, None, Decimal("1.5"), None)])
    assert str(rows[0]["d"]) == "1.50"

"""Functions of record batches: state and output as plain dicts have them, and as rows give them."""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import ByFunction, memory_store, record_batch, run
from pyspark.sql import Row
from pyspark.sql.types import StructType

from statekeep.errors import ConfigError, StateBackupError, StateSchemaError
from statekeep.spark.operator import grouping
from statekeep.spark.operator.arrow_function import ArrowProcessor
from statekeep.spark.operator.arrow_state import ArrowValueState
from statekeep.spark.operator.columns import arrow_schema
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.declarations import check_declarations
from statekeep.spark.operator.folds import fold
from statekeep.spark.operator.grouping import GroupingOverflow
from statekeep.stores.base import KeyValueStore

State = Mapping[str, ArrowValueState]
TOTAL = {"total": "n long, s long"}


def totals(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
    ones = pa.array(np.ones(rows.num_rows, np.int64))
    values = pa.record_batch({"n": ones, "s": rows["v"]})
    yield state["total"].merge(rows, values, "sum")


class Totals(ByFunction):
    """The same on rows."""

    def __init__(self) -> None:
        super().__init__(lambda handle: handle.getValueState("total", TOTAL["total"]), self._add)

    @staticmethod
    def _add(total: Any, key: Any, rows: Iterator[Any]) -> Iterator[Row]:
        n, s = total.get() or (0, None)
        for row in rows:
            n += 1
            s = s if row.v is None else (s or 0) + row.v
        total.update((n, s))
        yield Row(key=key[0], n=n, s=s)


def by_function(function: Callable[..., Any], **state: str) -> ArrowProcessor:
    return ArrowProcessor(function, state)


def content(store: KeyValueStore) -> dict[bytes, bytes]:
    return dict(store.scan())


_ROWS = st.lists(
    st.tuples(
        st.none() | st.text(st.sampled_from("ab\x00"), max_size=2),
        st.none() | st.integers(-(2**40), 2**40),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(st.lists(st.tuples(_ROWS, st.booleans(), st.booleans()), max_size=5))
def test_merged_state_and_output_are_those_of_rows_whatever_comes_before(
    batches: list[tuple[list[tuple[Any, Any]], bool, bool]],
) -> None:
    mixed, by_rows = memory_store(), memory_store()
    for rows, is_arrow, is_sorted in batches:
        if is_sorted:
            rows.sort(key=lambda row: (row[0] is not None, row[0] or ""))
        processor = ArrowProcessor(totals, TOTAL) if is_arrow else Totals()
        options: dict[str, Any] = {"output": "key string, n long, s long", "is_sorted": is_sorted}
        outcome, output = run(processor, rows, store=mixed, **options)
        expected, expected_output = run(Totals(), rows, store=by_rows, **options)
        assert output.to_pylist() == expected_output.to_pylist()
        assert content(mixed) == content(by_rows)
        assert outcome == expected


_FIELDS: dict[str, Any] = {
    "a long": st.integers(-(2**63), 2**63 - 1),
    "b string": st.text(max_size=3),
    "c double": st.floats(allow_nan=False),
    "d array<int>": st.lists(st.integers(0, 9), max_size=2),
    "e timestamp": st.integers(0, 10**15).map(
        lambda micros: dt.datetime(1990, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    ),
    "f decimal(9,3)": st.decimals(-1000, 1000, places=3),
    "g boolean": st.booleans(),
}


@st.composite
def _histories(draw: st.DrawFn) -> tuple[str, list[list[tuple[str, list[str], Any]]]]:
    """Draw a schema, and for each batch the steps of its calls: what, which keys, which values."""
    fields = draw(st.lists(st.sampled_from(sorted(_FIELDS)), min_size=1, max_size=3, unique=True))
    value = st.tuples(*[st.none() | _FIELDS[field] for field in fields])
    keys = st.lists(st.sampled_from("pqr"), max_size=4)

    def steps(keys: list[str]) -> Any:
        values = st.lists(value, min_size=len(keys), max_size=len(keys))
        kinds = st.sampled_from(["get", "put", "delete"])
        return st.tuples(kinds, st.just(keys), values)

    history = draw(st.lists(st.lists(keys.flatmap(steps), max_size=4), min_size=1, max_size=4))
    return ", ".join(fields), history


@settings(deadline=None)
@given(_histories())
def test_state_holds_what_a_dict_holds(
    history: tuple[str, list[list[tuple[str, list[str], Any]]]],
) -> None:
    schema, batches = history
    names = parse_schema(schema).names
    store = memory_store()
    model: dict[str, dict[str, Any]] = {}
    for steps in batches:

        def use(
            _: pa.RecordBatch, state: State, steps: list[tuple[str, list[str], Any]] = steps
        ) -> Iterator[pa.RecordBatch]:
            for kind, keys, values in steps:
                named = record_batch([(key, 0) for key in keys])
                given = record_batch(values, schema)
                if kind == "get":
                    found = state["x"].get_many(named)
                    assert found.to_pylist() == [model.get(key) for key in keys]
                elif kind == "put":
                    state["x"].put_many(named, given)
                    model.update(zip(keys, given.to_pylist(), strict=True))
                else:
                    state["x"].delete_many(named)
                    for key in keys:
                        model.pop(key, None)
            yield from ()

        run(by_function(use, x=schema), [(key, 0) for key in "pqr"], store=store)

    def read(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        found = state["x"].get_many(rows)
        assert found.type.names == names
        assert found.to_pylist() == [model.get(key) for key in "pqr"]
        yield from ()

    run(by_function(read, x=schema), [(key, 0) for key in "pqr"], store=store)


_NUMBERS = st.none() | st.sampled_from([0.0, 1.5, -2.0, float("nan"), float("inf")])


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("ab"), _NUMBERS), max_size=6), max_size=3))
def test_the_least_and_the_largest_number_are_those_of_sql(batches: list[Any]) -> None:
    def extremes(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        values = pa.record_batch({"least": rows["v"], "most": rows["v"]})
        yield state["x"].merge(rows, values, {"least": "min", "most": "max"})

    store = memory_store()
    seen: dict[str, list[float]] = defaultdict(list)
    for rows in batches:
        for key, number in rows:
            seen[key] += [] if number is None else [number]
        _, output = run(
            by_function(extremes, x="least double, most double"),
            rows,
            store=store,
            schema="key string, v double",
            output="key string, least double, most double",
        )
        for row in output.to_pylist():
            ranked = sorted(seen[row["key"]], key=lambda number: (math.isnan(number), number))
            expected = [ranked[0], ranked[-1]] if ranked else [None, None]
            assert repr([row["least"], row["most"]]) == repr(expected)


_OTHER_NAN = np.array([-0x7FFFFFFFFFFFF]).view(np.float64)[0]


@pytest.mark.parametrize("how", ["min", "max", "sum"])
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    "numbers", [[0.0, -0.0], [math.nan, _OTHER_NAN], [math.inf, -math.inf, math.nan]], ids=str
)
def test_state_and_output_do_not_depend_on_the_order_of_a_keys_rows(
    numbers: list[float], kind: str, how: str
) -> None:
    def merged(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        yield state["x"].merge(rows, pa.record_batch({"n": rows["v"]}), how)

    outcomes = [
        run(
            by_function(merged, x=f"n {kind}"),
            [("a", number) for number in ordered],
            schema=f"key string, v {kind}",
            output=f"key string, n {kind}",
        )[0]
        for ordered in permutations(numbers)
    ]
    assert outcomes == outcomes[:1] * len(outcomes)


@pytest.mark.parametrize("numbers", [[math.inf, -math.inf], [1e308, 1e308]], ids=str)
def test_a_sum_of_floats_that_is_no_number_is_that_of_sql(numbers: list[float]) -> None:
    found = fold("sum", pa.array(numbers), np.array([0, 2]))
    assert repr(found[0].as_py()) == repr(sum(numbers))


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz", "tinyint", "float"])
def test_values_of_a_kind_are_merged(kind: str) -> None:
    first: dict[str, Any] = {
        "date": dt.date(2026, 1, 2),
        "timestamp": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "timestamp_ntz": dt.datetime(2026, 1, 2),  # noqa: DTZ001 - without a zone
        "tinyint": 5,
        "float": 0.5,
    }
    later = first[kind] + (dt.timedelta(1) if "date" in kind or "time" in kind else 1)

    def latest(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        yield state["x"].merge(rows, pa.record_batch({"most": rows["v"]}), "max")

    store = memory_store()
    for number in (later, None, first[kind]):
        _, output = run(
            by_function(latest, x=f"most {kind}"),
            [("a", number), ("a", None)],
            store=store,
            schema=f"key string, v {kind}",
            output=f"key string, most {kind}",
        )
        assert output.to_pylist() == [{"key": "a", "most": later}]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("call_rows", [1, 2, 3, 100])
def test_all_rows_of_a_key_come_in_one_call_sorted_by_key(
    monkeypatch: pytest.MonkeyPatch, call_rows: int, *, is_sorted: bool
) -> None:
    monkeypatch.setattr(grouping, "CALL_ROWS", call_rows)
    rows = [(f"{i:02}", v) for i in range(9) for v in range(i % 4)]
    seen: list[list[tuple[Any, Any]]] = []

    def look(rows: pa.RecordBatch, _: State) -> Iterator[pa.RecordBatch]:
        seen.append([(row["key"], row["v"]) for row in rows.to_pylist()])
        yield from ()

    batches = [record_batch(rows[at : at + 2]) for at in range(0, len(rows), 2)]
    outcome, _ = run(by_function(look), batches, is_sorted=is_sorted)
    assert [row for call in seen for row in call] == rows
    keys = [{key for key, _ in call} for call in seen]
    assert sum(map(len, keys)) == len(set().union(*keys)) == outcome.keys
    assert all(len(call) <= max(call_rows, 3) for call in seen)
    assert outcome.key_range == "('01',)..('07',)"


def test_rows_that_exceed_memory_or_are_not_sorted_are_found_before_the_function_is_called() -> (
    None
):
    called: list[int] = []

    def look(rows: pa.RecordBatch, _: State) -> Iterator[pa.RecordBatch]:
        called.append(rows.num_rows)
        yield from ()

    with pytest.raises(GroupingOverflow):
        run(by_function(look), [("b", 1), ("a", 1)], grouping_max_bytes=8)
    with pytest.raises(ValueError, match="not sorted"):
        run(by_function(look), [("b", 1), ("a", 1)], is_sorted=True)
    assert not called


def test_a_value_that_stays_the_same_is_not_written() -> None:
    def again(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        state["x"].put_many(rows, rows)
        yield from ()

    store = memory_store()
    outcomes = [
        run(by_function(again, x="v long"), rows, store=store)[0].changed_keys
        for rows in ([("a", 1), ("b", 2)], [("a", 1), ("b", 3)], [("a", 1)])
    ]
    assert outcomes == [3, 1, 0]  # the registry is written with the first


def test_the_schema_may_change_as_it_may_for_rows() -> None:
    store = memory_store()
    run(Totals(), [("a", 1), ("b", 2)], store=store, output="key string, n long, s long")

    def widened(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        found = state["total"].get_many(rows)
        assert found.to_pylist() == [{"s": 1, "note": None}, {"s": 2, "note": None}, None]
        state["total"].put_many(
            rows, pa.record_batch({"s": pc.fill_null(found.field("s"), 7), "note": rows["key"]})
        )
        yield from ()

    rows = [("a", 0), ("b", 0), ("c", 0)]
    run(by_function(widened, total="s long, note string"), rows, store=store)

    def look(total: Any, key: Any, rows: Any) -> Iterator[Row]:
        s, note = total.get()
        yield Row(key=note, n=s)

    after = ByFunction(lambda handle: handle.getValueState("total", "s long, note string"), look)
    assert run(after, rows, store=store)[1].to_pylist() == [
        {"key": "a", "n": 1},
        {"key": "b", "n": 2},
        {"key": "c", "n": 7},
    ]


def test_output_does_not_change_with_the_memory_that_it_was_made_of() -> None:
    def reuse(rows: pa.RecordBatch, _: State) -> Iterator[pa.RecordBatch]:
        memory = np.arange(rows.num_rows)
        yield pa.record_batch({"key": rows["key"], "n": pa.array(memory)})
        memory[:] = -1

    _, output = run(by_function(reuse), [("a", 1), ("b", 2)])
    assert output["n"].to_pylist() == [0, 1]


@pytest.mark.parametrize("step", [1, 5_000, 20_000])
def test_output_is_cut_at_the_same_places_however_it_comes(step: int) -> None:
    sizes: list[int] = []

    def cut(rows: pa.RecordBatch, _: State) -> Iterator[pa.RecordBatch]:
        numbers = pa.array(range(20_000), pa.int32())
        table = pa.table({"n": numbers, "key": pa.array(["a"] * 20_000).dictionary_encode()})
        for at in range(0, 20_000, step):
            yield table.slice(at, step)
            sizes.append(min(step, 20_000 - at))

    outcome, output = run(by_function(cut), [("a", 1)])
    assert sum(sizes) == outcome.rows_out == 20_000
    assert [len(chunk) for chunk in output["n"].chunks] == [8192, 8192, 3616]
    assert output["n"].to_pylist() == list(range(20_000))


def _values(**columns: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})


_WRONG: dict[str, tuple[Callable[[pa.RecordBatch, ArrowValueState], Any], str]] = {
    "another type": (lambda r, x: x.put_many(r, _values(n=["1"])), "field=n declared=int32"),
    "a number that is too large": (lambda r, x: x.put_many(r, _values(n=[1 << 40])), "field=n"),
    "a number with a fraction": (lambda r, x: x.put_many(r, _values(n=[1.0])), "field=n"),
    "a field that is missing": (lambda r, x: x.put_many(r, _values(m=[1])), "field=n found=m"),
    "too few values": (lambda r, x: x.put_many(r, _values(n=[])), "0 values for 1 keys"),
    "no value": (
        lambda r, x: x.put_many(r, pa.array([None], pa.struct({"n": pa.int32()}))),
        "delete_many",
    ),
    "a sum that is too large": (
        lambda r, x: x.merge(
            pa.table({"key": ["a", "a"]}), _values(n=[2_000_000_000, 2_000_000_000]), "sum"
        ),
        "field=n found=sum out of range",
    ),
    "an unknown fold": (lambda r, x: x.merge(r, _values(n=[1]), "mean"), "found=mean"),
    "a fold of no field": (lambda r, x: x.merge(r, _values(n=[1]), {"m": "sum"}), "found=m"),
    "a key without rows": (
        lambda r, x: x.get_many(pa.table({"key": ["b"]})),
        "no row in this call",
    ),
    "a key of another type": (lambda r, x: x.get_many(pa.table({"key": [1]})), "column=key"),
    "keys without their column": (lambda r, x: x.get_many(pa.table({"k": ["a"]})), "column=key"),
}


@pytest.mark.parametrize("case", _WRONG)
def test_what_does_not_fit_is_an_error_that_names_it(case: str) -> None:
    use, words = _WRONG[case]

    def wrong(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        use(rows, state["x"])
        yield from ()

    with pytest.raises((StateSchemaError, ConfigError), match=words) as caught:
        run(by_function(wrong, x="n int"), [("a", 1)])
    assert caught.value.__notes__ == [
        "while processing the grouping keys from ('a',) to ('a',)"
    ] or (
        "hint: merge knows sum, min, max of numbers, min and max of times" in caught.value.__notes__
    )


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("kind", ["double", "float"])
def test_arrow_takes_equal_keys_for_one(kind: str, *, is_sorted: bool) -> None:
    def by_key(rows: pa.RecordBatch, state: State) -> Iterator[pa.Table]:
        sums = pa.table(rows).group_by("key", use_threads=False).aggregate([("v", "sum")])
        state["x"].put_many(sums, pa.table({"n": sums["v_sum"]}))
        yield pa.table({"key": sums["key"], "n": state["x"].get_many(sums).field("n")})

    other_nan = np.array([0x7FF8000000000001]).view(np.float64)[0]
    rows = [(None, 1), (None, 2), (-0.0, 3), (0.0, 4), (1.5, 5), (math.nan, 6), (other_nan, 7)]
    _, output = run(
        by_function(by_key, x="n long"),
        rows,
        schema=f"key {kind}, v long",
        key=f"key {kind}",
        output=f"key {kind}, n long",
        is_sorted=is_sorted,
    )
    found = [(str(row["key"]), row["n"]) for row in output.to_pylist()]
    assert sorted(found) == [("0.0", 7), ("1.5", 5), ("None", 3), ("nan", 13)]


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_equal_keys_are_given_in_one_form_wherever_floats_are_in_them(
    *, is_sorted: bool, is_cut: bool
) -> None:
    key = "a struct<x: double, y: array<float>>, b array<struct<x: float, y: string>>"

    def given(rows: pa.RecordBatch, _: State) -> Iterator[pa.RecordBatch]:
        yield rows

    def keys(zero: float, nan: float) -> list[tuple[Any, Any, int]]:
        return [
            (None, None, 1),
            ({"x": None, "y": None}, [None], 1),
            ({"x": zero, "y": [zero, None, nan]}, [{"x": nan, "y": "é"}, {"x": zero, "y": ""}], 1),
            ({"x": nan, "y": []}, [], 1),
        ]

    schema = f"{key}, v long"
    outputs: list[str] = []
    for rows in (keys(0.0, math.nan), keys(-0.0, _OTHER_NAN)):
        # A part, whose buffers do not begin where it does.
        batch = record_batch([rows[3], *rows, rows[3]], schema).slice(1, 4)
        batches = [batch.slice(at, 1) for at in range(4)] if is_cut else [batch]
        outcome, output = run(
            by_function(given), batches, schema=schema, key=key, output=schema, is_sorted=is_sorted
        )
        assert outcome.keys == 4
        outputs += [outcome.output_digest, repr(output.to_pylist())]
    assert outputs[:2] == outputs[2:]
    expected = [dict(zip("abv", row, strict=True)) for row in keys(0.0, math.nan)]
    assert outputs[1] == repr(expected)


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("kind", ["long", "double"])
def test_merging_no_rows_changes_nothing(how: str, kind: str) -> None:
    def large(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        some = rows.filter(pa.array([v > 9 for v in rows["v"].to_pylist()]))
        yield state["x"].merge(some, pa.record_batch({"n": some["v"]}), how)

    store = memory_store()
    options: dict[str, Any] = {"store": store, "output": f"key string, n {kind}"}
    for v, expected in ((10, [{"key": "a", "n": 10}]), (1, [])):
        _, output = run(by_function(large, x=f"n {kind}"), [("a", v)], **options)
        assert output.to_pylist() == expected


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("struct<a: long, b: long>", {"a": 1, "c": 2}),
        ("struct<a: string>", {"a": 1}),
        ("array<long>", ["1"]),
        ("array<timestamp>", [dt.datetime(2020, 1, 1)]),  # noqa: DTZ001  # it has no zone
        ("map<string, long>", {"a": "1"}),
    ],
)
def test_what_does_not_fit_within_a_value_is_an_error_too(declared: str, value: Any) -> None:
    kind = pa.map_(pa.string(), pa.string()) if declared.startswith("map") else None
    values = pa.record_batch({"n": pa.array([value], kind)})

    def put(_: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        state["x"].put_many(_, values)
        yield from ()

    def give(_: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        yield values

    for function in (put, give):
        with pytest.raises(StateSchemaError, match="n "):
            run(by_function(function, x=f"n {declared}"), [("a", 1)], output=f"n {declared}")


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("map<string, long>", [("a", 1), ("a", 2)]),
        ("struct<t: timestamp>", {"t": 1 << 62}),
        ("timestamp", 1 << 62),
        ("date", 5_000_000),
    ],
)
def test_a_value_that_python_does_not_have_is_an_error_that_names_its_field(
    declared: str, value: Any
) -> None:
    kind = arrow_schema(parse_schema(f"n {declared}")).field(0).type
    if isinstance(value, int):
        array = pa.array([value]).cast(pa.int32() if declared == "date" else pa.int64()).cast(kind)
    elif isinstance(value, dict):
        times = pa.array([value["t"]]).cast(kind.field(0).type)
        array = pa.StructArray.from_arrays([times], names=["t"])
    else:
        array = pa.array([value], kind)

    def put(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        state["x"].put_many(rows, pa.record_batch({"n": array}))
        yield from ()

    with pytest.raises(StateSchemaError, match="variable=x field=n"):
        run(by_function(put, x=f"n {declared}"), [("a", 1)])


@pytest.mark.parametrize(
    "schema",
    [
        StructType(),
        "v variant",
        "a long, v array<struct<x: variant>>",
        "v map<struct<x: int>, int>",
        "v array<map<int, map<struct<x: int>, int>>>",
    ],
    ids=str,
)
def test_state_that_columns_cannot_give_is_refused_on_the_driver(schema: StructType | str) -> None:
    processor = ArrowProcessor(totals, {"x": schema})
    with pytest.raises(StateSchemaError, match="variable=x"):
        check_declarations(processor, parse_schema("key string"))


def test_a_sum_that_leaves_sixty_four_bits_is_an_error() -> None:
    store = memory_store()
    options: dict[str, Any] = {"store": store, "output": "key string, n long, s long"}
    half = (1 << 62) - 1
    run(ArrowProcessor(totals, TOTAL), [("a", half), ("a", half), ("a", 1)], **options)
    with pytest.raises(StateSchemaError, match="out of range"):
        run(ArrowProcessor(totals, TOTAL), [("a", 1), ("a", 1)], **options)
    _, output = run(ArrowProcessor(totals, TOTAL), [("a", 1), ("a", -half)], **options)
    assert output["s"].to_pylist() == [half + 2]


def test_state_is_refused_outside_the_call_and_output_of_other_forms() -> None:
    kept: list[Any] = []

    def keep(rows: pa.RecordBatch, state: State) -> Iterator[pa.RecordBatch]:
        kept[:] = [rows, state["x"]]
        yield from ()

    store = memory_store()
    run(by_function(keep, x="v long"), [("a", 1)], store=store)
    rows, variable = kept
    with pytest.raises(ConfigError, match="batch that is over"):
        variable.get_many(rows)
    for wrong in (lambda *_: 5, lambda rows, _: rows, lambda rows, _: [rows.to_pylist()]):
        with pytest.raises((TypeError, StateSchemaError)):
            run(by_function(wrong), [("a", 1)], store=store)


def test_declarations_are_checked_on_the_driver() -> None:
    key = parse_schema("key string")
    declared = check_declarations(ArrowProcessor(totals, TOTAL), key)
    assert declared.counts == {"numValueStateVars": 1}
    assert declared.variables == frozenset(TOTAL)
    with pytest.raises(StateBackupError, match="NOT NULL"):
        check_declarations(by_function(totals, total="n long not null"), key)

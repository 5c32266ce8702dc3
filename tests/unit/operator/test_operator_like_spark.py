"""Habits of Spark's operator that programs may rely on."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import ByFunction, memory_store, record_batch, run
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator.inputs import FRAME_ROWS, FrameLimits
from statekeep.spark.operator.variables import LocalVariable

OF_SPARK = {"value": ValueState, "list": ListState, "map": MapState}


def declare(kind: str, handle: StatefulProcessorHandle) -> Any:
    if kind == "map":
        return handle.getMapState("v", "name string", "n long")
    return (
        handle.getValueState("v", "n long")
        if kind == "value"
        else handle.getListState("v", "n long")
    )


@pytest.mark.parametrize("kind", OF_SPARK)
def test_every_use_of_a_deleted_variable_raises_what_spark_raises(kind: str) -> None:
    def init(handle: StatefulProcessorHandle) -> LocalVariable:
        variable: LocalVariable = declare(kind, handle)
        handle.deleteIfExists("v")
        return variable

    def use(variable: LocalVariable, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        methods = [m for m in vars(OF_SPARK[kind]) if not m.startswith("_")]
        assert sorted(methods) == sorted(variable.operations)
        for method in methods:
            words = f"^Error {variable.operations[method]}: .*deleteIfExists: variable=v$"
            for error in (PySparkRuntimeError, ConfigError):
                with pytest.raises(error, match=words):
                    getattr(variable, method)((1,))
        return iter(())

    run(ByFunction(init, use), [("a", 1)])


def test_a_text_is_the_key_of_a_map_whose_key_is_one_text() -> None:
    def use(variable: MapState, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        text: Any = "one"
        variable.updateValue(text, (1,))
        assert variable.getValue(("one",)) == (1,)
        variable.removeKey(text)
        assert not variable.containsKey(("one",))
        return iter(())

    run(ByFunction(lambda handle: declare("map", handle), use), [("a", 1)])


def test_a_text_is_no_key_of_another_type() -> None:
    def use(variable: MapState, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        text: Any = "1"
        variable.getValue(text)
        return iter(())

    with pytest.raises(StateSchemaError, match="variable=v"):
        run(ByFunction(lambda handle: handle.getMapState("v", "k long", "n long"), use), [("a", 1)])


def frames_of(rows: list[tuple[str, int]], limits: FrameLimits) -> dict[str, list[int]]:
    """The number of rows in each frame of each key."""
    found: dict[str, list[int]] = {}

    def count(_: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[Any]:
        found[key[0]] = [len(frame) for frame in frames]
        return iter(())

    run(ByFunction(handle_rows=count), rows, is_pandas=True, frame_limits=limits)
    return found


ROW_BYTES = record_batch([("a", 1)] * 1000).nbytes / 1000


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 30), min_size=1),
    st.integers(1, 12),
    st.sampled_from([2, 20, 60, 200, 1 << 30]),
)
def test_frames_keep_the_limits_whatever_keys_lie_beside(
    counts: dict[str, int], most_rows: int, most_bytes: int
) -> None:
    limits = FrameLimits(most_rows, most_bytes)
    rows = [(key, n) for key, count in counts.items() for n in range(count)]
    found = frames_of(rows, limits)
    for key, count in counts.items():
        assert sum(found[key]) == count
        assert max(found[key]) <= most_rows
        assert all(n == 1 or n * ROW_BYTES <= most_bytes + ROW_BYTES for n in found[key])
        assert found[key] == frames_of([(key, n) for n in range(count)], limits)[key]


def test_frames_are_as_large_as_they_may_be() -> None:
    rows = [("a", n) for n in range(FRAME_ROWS + 1)]
    assert frames_of(rows, FrameLimits()) == {"a": [FRAME_ROWS, 1]}
    assert frames_of(rows, FrameLimits(rows=1 << 30)) == {"a": [FRAME_ROWS + 1]}


@pytest.mark.parametrize("is_allowed", [True, False])
def test_integers_fit_decimals_where_the_setting_says_so(*, is_allowed: bool) -> None:
    def give(_: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"key": [key[0]], "price": [12345]})

    def price() -> object:
        _, table = run(
            ByFunction(handle_rows=give),
            [("a", 1)],
            is_pandas=True,
            output="key string, price decimal(10, 2)",
            is_int_taken_for_decimal=is_allowed,
        )
        return table["price"][0].as_py()

    if is_allowed:
        assert price() == Decimal("12345.00")
    else:
        with pytest.raises(StateSchemaError, match="column=price"):
            price()


@pytest.mark.parametrize("is_pandas", [True, False])
def test_a_time_in_a_key_is_as_frames_or_rows_have_it(*, is_pandas: bool) -> None:
    seen: list[Any] = []

    def see(_: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        seen.extend(key)
        return iter(())

    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    run(
        ByFunction(handle_rows=see),
        [(at, None)],
        schema="at timestamp, local timestamp_ntz",
        key="at timestamp, local timestamp_ntz",
        is_pandas=is_pandas,
        time_zone="Asia/Tokyo",
    )
    assert seen == [pd.Timestamp("2024-01-01 09:00") if is_pandas else at, None]


def use_of(kind: str, use: Any) -> ByFunction:
    """A processor that declares one variable, of a long and a string, and uses it in one way."""

    def init(handle: StatefulProcessorHandle) -> Any:
        schema = "a long, b string"
        if kind == "map":
            return handle, handle.getMapState("v", "a long, b string", "a long, b string")
        if kind == "list":
            return handle, handle.getListState("v", schema)
        return handle, handle.getValueState("v", schema)

    def handle_rows(found: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        use(*found)
        return iter(())

    return ByFunction(init, handle_rows)


FIT = (1, "x")
UPDATES: dict[str, tuple[str, Any]] = {
    "update": ("value", lambda v, value: v.update(value)),
    "put": ("list", lambda v, value: v.put([FIT, value])),
    "appendValue": ("list", lambda v, value: v.appendValue(value)),
    "appendList": ("list", lambda v, value: v.appendList([FIT, value])),
    "updateValue": ("map", lambda v, value: v.updateValue(FIT, value)),
    "key of updateValue": ("map", lambda v, value: v.updateValue(value, FIT)),
    "getValue": ("map", lambda v, value: v.getValue(value)),
    "containsKey": ("map", lambda v, value: v.containsKey(value)),
    "removeKey": ("map", lambda v, value: v.removeKey(value)),
}


@pytest.mark.parametrize("method", UPDATES)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (("str", 5), "field=a declared=bigint found=str"),
        ((1, 5), "field=b declared=string found=int"),
        ((1.9, "x"), "field=a declared=bigint found=float"),
        ({"a": 1, "b": "x"}, r"field=\* declared=struct<a:bigint,b:string> found=dict"),
        ((1,), r"field=\* declared=struct<a:bigint,b:string> found=1 values for 2 fields"),
        ((1, "x", 2), r"field=\* declared=struct<a:bigint,b:string> found=3 values for 2 fields"),
    ],
    ids=["text for a number", "number for a text", "fraction", "dict", "too short", "too long"],
)
def test_a_value_that_spark_stores_as_null_or_dies_of_is_an_error_that_names_it(
    method: str, value: Any, words: str
) -> None:
    kind, use = UPDATES[method]
    processor = use_of(kind, lambda handle, variable: use(variable, value))
    with pytest.raises(StateSchemaError, match=rf"variable=v.* key=\('a',\) {words}"):
        run(processor, [("a", 1)])


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        (["value", "list"], "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED"),
        (["list"], "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE"),
    ],
    ids=["twice", "another kind"],
)
def test_a_wrong_declaration_has_the_class_of_sparks_error(kinds: list[str], name: str) -> None:
    def keep(variable: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        variable.update((1,))
        return iter(())

    store = memory_store()
    run(ByFunction(lambda handle: declare("value", handle), keep), [("a", 1)], store=store)
    wrong = ByFunction(lambda handle: [declare(kind, handle) for kind in kinds])
    with pytest.raises(StateSchemaError, match=rf"^\[{name}\] .*variable"):
        run(wrong, [("a", 1)], store=store)


@pytest.mark.parametrize("method", ["put", "appendList"])
def test_an_empty_list_is_an_error_that_says_how_to_clear_one(method: str) -> None:
    processor = use_of("list", lambda handle, variable: getattr(variable, method)([]))
    words = r"^\[ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE\] .* variable=v; hint: clear\(\) makes"
    with pytest.raises(StateSchemaError, match=words):
        run(processor, [("a", 1)])


@pytest.mark.parametrize(
    "use",
    [
        lambda handle: handle.registerTimer(1),
        lambda handle: handle.deleteTimer(1),
        lambda handle: list(handle.listTimers()),
        lambda handle: handle.deleteIfExists("v"),
        lambda handle: handle.getValueState("late", "n long"),
        lambda handle: handle.getListState("late", "n long"),
        lambda handle: handle.getMapState("late", "n long", "n long"),
    ],
    ids=["registerTimer", "deleteTimer", "listTimers", "deleteIfExists", "value", "list", "map"],
)
def test_a_call_that_spark_dies_of_is_an_error_of_ours(use: Any) -> None:
    words = (
        r"^\[STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_(TIME_MODE|HANDLE_STATE)\]"
    )
    with pytest.raises(ConfigError, match=words):
        run(use_of("value", lambda handle, variable: use(handle)), [("a", 1)])

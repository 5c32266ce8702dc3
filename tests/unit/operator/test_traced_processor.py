"""The trace of a batch: what it tells, and that the batch is the same with it and without."""

import datetime as dt
import math
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from operator_kit import ByFunction, memory_store, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
)
from typing_extensions import override

from statekeep.checkpoint.records import TaskBatch
from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.batch_replay.replay import find_function
from statekeep.spark.batch_replay.result import Difference, compared
from statekeep.spark.batch_replay.trace import (
    SHOWN_ITEMS,
    TRACED_KEYS,
    KeyTrace,
    Step,
    Tracer,
    first_of,
    named,
    plain,
)
from statekeep.spark.batch_replay.traced_processor import TracedProcessor
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.group_state import GroupStateProcessor
from statekeep.spark.operator.key_codec import KeyCodec

COLUMNS = ["key", "v"]
OUTPUT = ["key", "n"]
ROWS = [("a", 1), ("a", 2), ("b", 3)]
Use = Callable[[Any, StatefulProcessorHandle], Any]


class Using(ByFunction):
    """Declares a variable, and uses it for each key after its rows were read."""

    def __init__(self, declare: Callable[[StatefulProcessorHandle], Any], use: Use) -> None:
        def init(handle: StatefulProcessorHandle) -> Any:
            return declare(handle), handle

        def handle_rows(found: Any, key: Any, rows: Iterator[Any]) -> Iterator[Row]:
            count = len(list(rows))
            use(*found)
            yield Row(key=key[0], n=count)

        super().__init__(init, handle_rows)


def value(handle: StatefulProcessorHandle) -> Any:
    return handle.getValueState("x", "n long")


def items(handle: StatefulProcessorHandle) -> Any:
    return handle.getListState("x", "n long")


def brief_items(handle: StatefulProcessorHandle) -> Any:
    return handle.getListState("x", "n long", 1000)


def entries(handle: StatefulProcessorHandle) -> Any:
    return handle.getMapState("x", "k string", "n long")


def brief_entries(handle: StatefulProcessorHandle) -> Any:
    return handle.getMapState("x", "k string", "n long", 1000)


def again(state: Any, _: Any) -> None:
    """Write what is there already, unread."""
    state.updateValue(("k",), (1,))


def back_and_forth(state: Any, _: Any) -> None:
    state.appendValue((9,))
    state.put([(1,)])


def every_list_call(state: Any, _: Any) -> None:
    state.exists()
    state.appendList([(1,), (2,)])
    list(state.get())
    state.clear()
    state.appendValue((3,))


def every_map_call(state: Any, _: Any) -> None:
    state.exists()
    state.updateValue("k", (1,))
    state.updateValue(("l",), (2,))
    state.getValue(("k",))
    state.containsKey(("m",))
    list(state.iterator())
    list(state.keys())
    list(state.values())
    state.removeKey(("l",))
    state.clear()


def every_value_call(state: Any, _: Any) -> None:
    state.exists()
    state.update((1,))
    state.get()
    state.clear()
    state.update((2,))


def timers(_: Any, handle: StatefulProcessorHandle) -> None:
    handle.registerTimer(5)
    handle.registerTimer(7)
    handle.deleteTimer(5)
    list(handle.listTimers())


def put_one(state: Any, _: Any) -> None:
    state.put([(1,)])


USES = {
    "value": (value, every_value_call),
    "list": (items, every_list_call),
    "list, written as it was": (items, back_and_forth),
    "list that ends": (brief_items, every_list_call),
    "list that ends, written anew": (brief_items, back_and_forth),
    "map": (entries, every_map_call),
    "map, written as it was": (entries, again),
    "map that ends": (brief_entries, every_map_call),
    "timers": (value, timers),
}


def traced(
    processor: StatefulProcessor, tracer: Tracer, output: list[str] | None = None
) -> TracedProcessor:
    return TracedProcessor(processor, tracer, 3, COLUMNS, output or OUTPUT)


@pytest.mark.parametrize("what", USES)
def test_a_traced_batch_changes_and_puts_out_what_it_does_without_a_trace(what: str) -> None:
    declare, use = USES[what]
    outcomes = []
    for is_traced in (False, True):
        store = memory_store()
        # A batch before, without a trace: some state is there already.
        first = put_one if "list" in what else again if "map" in what else use
        options: dict[str, Any] = {
            "store": store,
            "time_mode": TimeMode.PROCESSING,
            "clock": BatchClock(1, -1),
        }
        run(Using(declare, first), ROWS, **options)
        processor: StatefulProcessor = Using(declare, use)
        if is_traced:
            processor = traced(processor, Tracer(None, is_stopping=False))
        outcome, table = run(processor, ROWS, **options)
        outcomes.append((outcome, table.to_pylist(), dict(store.scan(b""))))
    assert outcomes[0] == outcomes[1]


def trace_of(processor: StatefulProcessor, **options: Any) -> list[KeyTrace]:
    tracer = Tracer(options.pop("wanted", None), is_stopping=False)
    rows = options.pop("rows", ROWS)
    run(traced(processor, tracer), rows, **options)
    return tracer.traces


def steps_of(what: str) -> list[tuple[Any, ...]]:
    declare, use = USES[what]
    (found, _) = trace_of(
        Using(declare, use), time_mode=TimeMode.PROCESSING, clock=BatchClock(1, -1)
    )
    return [(s.variable, s.operation, s.map_key, s.before, s.after) for s in found.steps]


def test_each_key_shows_its_rows_in_order() -> None:
    a, b = trace_of(Using(value, every_value_call))
    assert (a.key, a.task, a.rows_in) == (
        ("a",),
        3,
        [{"key": "a", "v": 1}, {"key": "a", "v": 2}],
    )
    assert (a.rows_out, b.rows_out) == ([{"key": "a", "n": 2}], [{"key": "b", "n": 1}])


def test_rows_that_the_processor_did_not_want_are_shown() -> None:
    (a, b) = trace_of(ByFunction(handle_rows=lambda *_: iter(())))
    assert [row["v"] for row in (*a.rows_in, *b.rows_in)] == [1, 2, 3]


def test_the_steps_of_each_kind_of_state_show_before_and_after() -> None:
    one, two = {"n": 1}, {"n": 2}
    assert steps_of("value") == [
        ("x", "exists", None, None, None),
        ("x", "update", None, None, one),
        ("x", "get", None, one, one),
        ("x", "clear", None, one, None),
        ("x", "update", None, None, two),
    ]
    both = [one, two]
    assert steps_of("list") == steps_of("list that ends")
    assert steps_of("list") == [
        ("x", "exists", None, None, None),
        ("x", "appendList", None, None, both),
        ("x", "get", None, both, both),
        ("x", "clear", None, both, None),
        ("x", "appendValue", None, None, [{"n": 3}]),
    ]
    k, other, m = ({"k": name} for name in "klm")
    whole = [[k, one], [other, two]]
    assert steps_of("map") == steps_of("map that ends")
    assert steps_of("map") == [
        ("x", "exists", None, None, None),
        ("x", "updateValue", k, None, one),
        ("x", "updateValue", other, None, two),
        ("x", "getValue", k, one, one),
        ("x", "containsKey", m, None, None),
        ("x", "iterator", None, whole, whole),
        ("x", "keys", None, whole, whole),
        ("x", "values", None, whole, whole),
        ("x", "removeKey", other, two, None),
        ("x", "clear", None, [[k, one]], None),
    ]
    assert steps_of("timers") == [
        ("timers", "registerTimer", None, None, 5),
        ("timers", "registerTimer", None, None, 7),
        ("timers", "deleteTimer", None, None, 5),
        ("timers", "listTimers", None, None, [7]),
    ]


def test_a_timer_that_fires_is_a_step_of_its_key() -> None:
    class Ringing(Using):
        @override
        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            yield Row(key=key.key, n=-expiredTimerInfo.getExpiryTimeInMs())

    options: dict[str, Any] = {"time_mode": TimeMode.PROCESSING, "clock": BatchClock(9, -1)}
    a, _ = trace_of(Ringing(value, lambda _, handle: handle.registerTimer(4)), **options)
    assert a.steps[-1] == Step("timers", "fired", None, 4)
    assert a.rows_out == [{"key": "a", "n": 2}, {"key": "a", "n": -4}]


def test_one_key_alone_is_traced_and_too_many_are_counted() -> None:
    processor = Using(value, every_value_call)
    (b,) = trace_of(processor, wanted=_encoded("b"))
    assert b.key == ("b",)
    tracer = Tracer(None, is_stopping=False)
    many = [(f"{number:05d}", number) for number in range(TRACED_KEYS + 2)]
    run(traced(processor, tracer), many)
    assert (len(tracer.traces), tracer.left_out) == (TRACED_KEYS, 2)


def _encoded(key: str) -> bytes:
    return KeyCodec(parse_schema("key string")).encode((key,))


@pytest.mark.parametrize(("is_stopping", "expected"), [(True, ["b"]), (False, [])])
def test_a_breakpoint_stops_for_traced_keys_alone(
    *, is_stopping: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    keys: list[str] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(keys[-1]))
    hook = sys.breakpointhook

    def handle_rows(_: Any, key: Any, rows: Any) -> Iterator[Row]:
        keys.append(key[0])
        breakpoint()  # noqa: T100
        yield from ()

    tracer = Tracer(_encoded("b"), is_stopping=is_stopping)
    with tracer.guarding():
        breakpoint()  # noqa: T100
        run(traced(ByFunction(handle_rows=handle_rows), tracer), [*ROWS, ("c", 4)])
    assert (stops, keys) == (expected, ["a", "b", "c"])
    assert sys.breakpointhook is hook


def test_frames_of_pandas_are_shown_row_by_row() -> None:
    def handle_rows(_: Any, key: Any, frames: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"key": [key[0]], "n": [sum(len(frame) for frame in frames)]})

    a, _ = trace_of(ByFunction(handle_rows=handle_rows), is_pandas=True)
    assert (a.rows_in[1], a.rows_out) == ({"key": "a", "v": 2}, [{"key": "a", "n": 2}])


def test_a_function_of_apply_in_pandas_with_state_is_traced() -> None:
    def function(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        (before,) = state.getOption or (0,)
        state.update((before + sum(len(frame) for frame in frames),))
        yield pd.DataFrame({"key": [key[0]], "n": [state.get[0]]})

    processor = GroupStateProcessor(
        function,
        parse_schema("n long"),
        "NoTimeout",
        parse_schema("key string"),
        COLUMNS,
        has_watermark=False,
        time_zone="UTC",
    )
    a, _ = trace_of(processor, is_pandas=True)
    assert [(s.operation, s.before, s.after) for s in a.steps] == [
        ("get", None, None),
        ("update", None, {"n": 2}),
    ]


def test_errors_are_those_of_a_batch_without_a_trace() -> None:
    for use in (
        lambda state, _: state.update(("text",)),
        lambda state, _: state.update((1, 2)),
    ):
        with pytest.raises(StateSchemaError, match="variable=x") as plain_run:
            run(Using(value, use), ROWS)
        with pytest.raises(StateSchemaError) as traced_run:
            trace_of(Using(value, use))
        assert str(traced_run.value) == str(plain_run.value)
    with pytest.raises(StateSchemaError, match="rows of the output are not iterable"):
        trace_of(ByFunction(handle_rows=lambda *_: None))


def test_values_are_shown_as_json_has_them() -> None:
    moment = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    given = {
        "a": [1, 2.5, None, True, "x", math.nan],
        b"\x01": (b"\xff", Decimal("1.50"), moment, moment.date()),
        "c": Row(x=np.int64(3), y={"z": np.float32(0.5)}),
        "d": [pd.Timestamp(moment), np.array([1, 2])],
    }
    assert plain(given) == {
        "a": [1, 2.5, None, True, "x", "nan"],
        "01": ["ff", "1.50", "2026-01-31T00:00:00+00:00", "2026-01-31"],
        "c": {"x": 3, "y": {"z": 0.5}},
        "d": ["2026-01-31T00:00:00+00:00", [1, 2]],
    }
    assert named(None, ["n"]) is None
    assert first_of(iter(range(SHOWN_ITEMS + 5)), plain)[-1] == "... 5 more"


def test_differences_name_task_and_keys() -> None:
    def did(**fields: Any) -> TaskBatch:
        return TaskBatch(version="", **fields)

    recorded = {0: did(rows_in=2, output_digest="x"), 1: did(rows_in=1), 2: did(rows_in=5)}
    replayed = {0: (did(rows_in=2, output_digest="y"), "(1,)..(2,)"), 1: (did(rows_in=1), "")}
    assert compared(7, recorded, replayed) == [
        Difference(7, 0, "output_digest", "x", "y", "(1,)..(2,)")
    ]
    assert [d.what for d in compared(7, {}, {3: (did(rows_in=1), "")})] == ["rows_in"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("json", "no function is named: program=json"),
        ("no_such_module_here:query", "there is no such module"),
        ("json:no_such", "the module has no such function"),
        ("json:__doc__", "the module has no such function"),
    ],
)
def test_a_program_without_such_a_function_is_refused(program: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_function(program)
    assert find_function("json:dumps")((1,)) == "[1]"

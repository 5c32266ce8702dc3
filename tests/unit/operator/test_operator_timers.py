"""Timers against a plain model: what fires in which batch, in which order, and what is left."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import memory_store, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator import timers
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import NextTimes, next_times
from statekeep.spark.operator.registry import REGISTRY_KEY
from statekeep.stores.base import KeyValueStore

OUTPUT = "key string, what string, n long"
ROWS = "key string, op string, n long"


class Alarm(StatefulProcessor):
    """Registers and deletes timers as rows say; a timer that fires registers another one."""

    def __init__(self, again: dict[int, list[int]] | None = None) -> None:
        self._again = again or {}
        self.fired: list[tuple[str, int]] = []
        self.listed: dict[str, list[int]] = {}

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            if row.op == "register":
                self._handle.registerTimer(row.n)
            else:
                self._handle.deleteTimer(row.n)
        self.listed[key[0]] = list(self._handle.listTimers())
        return iter(())

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        time_ms = expiredTimerInfo.getExpiryTimeInMs()
        assert time_ms in list(self._handle.listTimers())
        self.fired.append((key[0], time_ms))
        for later in self._again.get(time_ms, []):
            self._handle.registerTimer(later)
        (count,) = self._count.get() or (0,)
        self._count.update((count + 1,))
        yield Row(key=key[0], what="fired", n=count + 1)

    @override
    def close(self) -> None: ...


def batch(
    store: KeyValueStore,
    now_ms: int,
    rows: list[tuple[str, str, int]],
    processor: StatefulProcessor | None = None,
    mode: TimeMode = TimeMode.PROCESSING,
    **options: Any,
) -> Any:
    clock = BatchClock(now_ms, -1) if mode is TimeMode.PROCESSING else BatchClock(-1, now_ms)
    return run(
        processor or Alarm(),
        rows,
        store=store,
        schema=ROWS,
        output=OUTPUT,
        time_mode=mode,
        clock=clock,
        **options,
    )


_TIME = st.integers(0, 12) | st.sampled_from([1 - (1 << 63), -1, (1 << 63) - 1])
_OPS = st.tuples(
    st.sampled_from(["", "a", "a\x00", "b", "é"]), st.sampled_from(["register", "delete"]), _TIME
)
_BATCHES = st.lists(st.tuples(st.integers(0, 10), st.lists(_OPS, max_size=8)), max_size=5)


@settings(max_examples=100, deadline=None)
@given(
    _BATCHES,
    st.dictionaries(_TIME, st.lists(_TIME, max_size=2), max_size=4),
    st.sampled_from([TimeMode.PROCESSING, TimeMode.EVENT]),
)
def test_timers_fire_as_a_plain_model_says(
    batches: list[tuple[int, list[tuple[str, str, int]]]],
    again: dict[int, list[int]],
    mode: TimeMode,
) -> None:
    store = memory_store()
    model: dict[str, set[int]] = {}
    fires: dict[str, int] = {}
    for now_ms, rows in batches:
        processor = Alarm(again)
        outcome, output = batch(store, now_ms, rows, processor, mode)
        for key, op, time_ms in rows:
            times = model.setdefault(key, set())
            (times.add if op == "register" else times.discard)(time_ms)
        assert processor.listed == {key: sorted(model[key]) for key, _, _ in rows}
        due = sorted((t, key.encode(), key) for key in model for t in model[key] if t <= now_ms)
        assert processor.fired == [(key, t) for t, _, key in due]
        for t, _, key in due:
            model[key].update(again.get(t, ()))
            model[key].discard(t)
            fires[key] = fires.get(key, 0) + 1
        assert [row["n"] for row in output.to_pylist()][-1:] == ([fires[due[-1][2]]] if due else [])
        assert outcome.timed.fired_timers == len(due)
        left = [t for times in model.values() for t in times]
        assert next_times(store, mode) == NextTimes(min(left, default=None), None)


def test_a_key_whose_timers_are_all_due_sees_the_state_that_the_timer_before_it_left() -> None:
    store = memory_store()
    rows = [("a", "register", t) for t in (3, 1, 2)] + [("b", "register", t) for t in (1, 3)]
    _, output = batch(store, 5, rows)
    assert [(row["key"], row["n"]) for row in output.to_pylist()] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("a", 3),
        ("b", 2),
    ]
    assert [key for key, _ in store.scan() if key != REGISTRY_KEY and key[:2] != b"\x00\x03"] == []


def test_more_timers_than_are_read_or_written_at_a_time_all_fire_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "CHUNK_KEYS", 3)
    monkeypatch.setattr(timers, "WRITE_KEYS", 4)
    store, processor = memory_store(), Alarm()
    rows = [(f"k{i % 10}", "register", i) for i in range(50)]
    batch(store, 39, rows, processor)
    assert [t for _, t in processor.fired] == list(range(40))
    assert processor.listed["k1"] == [1, 11, 21, 31, 41]
    assert next_times(store, TimeMode.PROCESSING).timer_ms == 40


def test_a_timer_of_pandas_frames_fires_too() -> None:
    class OnFrames(Alarm):
        @override
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for frame in rows:
                for n in frame["n"]:
                    self._handle.registerTimer(n)  # a number of numpy's
            return iter(())

        @override
        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            yield pd.DataFrame(
                {"key": [key[0]], "what": ["fired"], "n": [expiredTimerInfo.getExpiryTimeInMs()]}
            )

    _, output = batch(memory_store(), 5, [("a", "", 4), ("a", "", 6)], OnFrames(), is_pandas=True)
    assert output.to_pylist() == [{"key": "a", "what": "fired", "n": 4}]


@pytest.mark.parametrize("time_ms", ["soon", None, 1.5, 1 << 63], ids=str)
def test_what_is_no_time_is_refused(time_ms: Any) -> None:
    class Wrong(Alarm):
        @override
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            self._handle.registerTimer(time_ms)
            return iter(())

    with pytest.raises(ConfigError, match="time of a timer"):
        batch(memory_store(), 5, [("a", "", 4)], Wrong())


def test_timers_without_a_time_mode_are_refused() -> None:
    with pytest.raises(ConfigError, match="timeMode=None"):
        batch(memory_store(), 5, [("a", "register", 4)], mode=TimeMode.NONE)


def test_state_with_timers_of_one_mode_is_refused_in_another() -> None:
    store = memory_store()
    batch(store, 5, [("a", "register", 9)])
    for mode in (TimeMode.EVENT, TimeMode.NONE):
        with pytest.raises(StateSchemaError, match="stored=ProcessingTime"):
            batch(store, 6, [("a", "delete", 4)], mode=mode)


def test_a_timer_outside_of_a_key_is_refused() -> None:
    class Early(Alarm):
        @override
        def init(self, handle: StatefulProcessorHandle) -> None:
            handle.registerTimer(1)

    with pytest.raises(ConfigError, match="no grouping key"):
        batch(memory_store(), 5, [], Early())


def test_an_error_of_a_timer_names_its_key() -> None:
    class Failing(Alarm):
        @override
        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            raise KeyError("gone")

    with pytest.raises(KeyError, match="gone") as caught:
        batch(memory_store(), 5, [("a", "register", 4)], Failing())
    assert "while a timer fired: grouping key ('a',)" in caught.value.__notes__

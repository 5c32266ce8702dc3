"""Time to live against a plain model: what is seen, what is removed when, and what is counted."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from operator_kit import memory_store, run
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from statekeep.errors import ConfigError, StateSchemaError
from statekeep.spark.operator import expiry
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.due import NextTimes, next_times
from statekeep.stores.base import KeyValueStore

ROWS = "key string, op string, n long"
ENDS = {"value": 3, "list": 5, "map": 4}
TTL: dict[str, int | None] = {**ENDS}


class Cache(StatefulProcessor):
    """Does to its variables what rows say, and shows what it sees before and after."""

    def __init__(self, ttl: dict[str, int | None] | None = None) -> None:
        self._ttl = TTL if ttl is None else ttl
        self.seen: list[Any] = []

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", "n long", self._ttl["value"])
        self._list = handle.getListState("list", "n long", self._ttl["list"])
        self._map = handle.getMapState("map", "k long", "n long", self._ttl["map"])

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self._show(key[0])
            getattr(self, f"_{row.op}")(row.n)
        self._show(key[0])
        return iter(())

    def _show(self, key: str) -> None:
        entries = {k[0]: v[0] for k, v in self._map.iterator()}
        assert self._value.exists() == (self._value.get() is not None)
        items = [n for (n,) in self._list.get()]
        assert self._list.exists() == bool(items)
        assert self._map.exists() == bool(entries)
        assert [k for (k,) in list(self._map.keys())] == list(entries)
        for k in range(3):
            found = self._map.getValue((k,))
            assert (None if found is None else found[0]) == entries.get(k)
            assert self._map.containsKey((k,)) == (k in entries)
        self.seen.append((key, self._value.get(), items, entries))

    def _update(self, n: int) -> None:
        self._value.update((n,))

    def _clear(self, n: int) -> None:
        states: list[Any] = [self._value, self._list, self._map]
        states[n % 3].clear()

    def _put(self, n: int) -> None:
        self._list.put([(n,), (n + 1,)])

    def _append(self, n: int) -> None:
        self._list.appendValue((n,))

    def _insert(self, n: int) -> None:
        self._map.updateValue((n % 3,), (n,))

    def _remove(self, n: int) -> None:
        self._map.removeKey((n % 3,))

    @override
    def close(self) -> None: ...


class Model:
    """What the variables hold: each value with the time of its end."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[int, int]] = {}
        self.lists: dict[str, list[tuple[int, int]]] = {}
        self.maps: dict[str, dict[int, tuple[int, int]]] = {}
        self.ended: dict[str, dict[int, tuple[int, int]]] = {}
        """Entries of maps that had ended when the batch began: `clear` does not see what is stored of
        them, and it stays for the eviction, whatever the batch has written over it before."""

    def begin(self, now: int) -> None:
        self.ended = {
            key: {k: entry for k, entry in entries.items() if entry[1] <= now}
            for key, entries in self.maps.items()
        }

    def shown(self, key: str, now: int) -> Any:
        n, end = self.values.get(key, (0, now))
        entries = self.maps.get(key, {})
        return (
            key,
            (n,) if end > now else None,
            [n for n, end in self.lists.get(key, []) if end > now],
            {k: entries[k][0] for k in sorted(entries) if entries[k][1] > now},
        )

    def do(self, key: str, op: str, n: int, now: int) -> None:
        entries = self.maps.setdefault(key, {})
        if op == "update":
            self.values[key] = (n, now + ENDS["value"])
        elif op == "put":
            self.lists[key] = [(n, now + ENDS["list"]), (n + 1, now + ENDS["list"])]
        elif op == "append":
            self.lists.setdefault(key, []).append((n, now + ENDS["list"]))
        elif op == "insert":
            entries[n % 3] = (n, now + ENDS["map"])
        elif op == "remove":
            if n % 3 in entries and entries[n % 3][1] > now:
                del entries[n % 3]
        elif n % 3 == 0:
            self.values.pop(key, None)
        elif n % 3 == 1:
            self.lists.pop(key, None)
        else:
            self.maps[key] = {
                k: entry for k, entry in self.ended.get(key, {}).items() if k in entries
            }

    def evict(self, now: int) -> int:
        before = len(self.ends())
        self.values = {key: v for key, v in self.values.items() if v[1] > now}
        self.lists = {key: [i for i in v if i[1] > now] for key, v in self.lists.items()}
        for key, entries in self.maps.items():
            self.maps[key] = {k: v for k, v in entries.items() if v[1] > now}
        return before - len(self.ends())

    def ends(self) -> list[int]:
        items = [*self.values.values(), *(i for v in self.lists.values() for i in v)]
        return [end for _, end in [*items, *(e for v in self.maps.values() for e in v.values())]]


def batch(
    store: KeyValueStore, now_ms: int, rows: list[tuple[str, str, int]], processor: Any
) -> Any:
    return run(
        processor,
        rows,
        store=store,
        schema=ROWS,
        time_mode=TimeMode.PROCESSING,
        clock=BatchClock(now_ms, -1),
    )[0]


_OPS = st.tuples(
    st.sampled_from(["a", "a\x00", "b"]),
    st.sampled_from(["update", "put", "append", "insert", "remove", "clear"]),
    st.integers(0, 5),
)
_BATCHES = st.lists(st.tuples(st.integers(0, 4), st.lists(_OPS, max_size=8)), max_size=8)


@settings(max_examples=100, deadline=None)
@given(_BATCHES, st.integers(-5, 5))
@example([(0, [("b", "insert", 0)]), (4, [("b", "insert", 0), ("b", "clear", 2)])], 0)
def test_state_ends_as_a_plain_model_says(
    batches: list[tuple[int, list[tuple[str, str, int]]]], start_ms: int
) -> None:
    store, model, now_ms = memory_store(), Model(), start_ms
    for step_ms, rows in batches:
        now_ms += step_ms
        processor = Cache()
        outcome = batch(store, now_ms, rows, processor)
        model.begin(now_ms)
        shown: list[Any] = []
        for key in sorted({key for key, _, _ in rows}):
            for _, op, n in (row for row in rows if row[0] == key):
                shown.append(model.shown(key, now_ms))
                model.do(key, op, n, now_ms)
            shown.append(model.shown(key, now_ms))
        assert processor.seen == shown
        assert outcome.timed.expired_values == model.evict(now_ms)
        first = min(model.ends(), default=None)
        assert next_times(store, TimeMode.PROCESSING) == NextTimes(None, first)
    batch(store, now_ms + 99, [], Cache())
    assert len(list(store.scan())) <= 1  # the registry, and no index is left behind


def test_a_batch_removes_a_bounded_number_and_hides_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "EVICTED_ENTRIES", 3)
    monkeypatch.setattr(expiry, "WRITE_KEYS", 2)
    store = memory_store()
    batch(store, 0, [(f"k{i}", "update", i) for i in range(5)], Cache())
    processor = Cache()
    assert batch(store, 3, [("k4", "remove", 0)], processor).timed.expired_values == 3
    assert processor.seen[0] == ("k4", None, [], {})
    assert batch(store, 3, [], Cache()).timed.expired_values == 2


def test_the_same_value_lives_on_from_its_newest_update() -> None:
    store = memory_store()
    processor = Cache()
    for now_ms in (0, 2, 4, 6):
        processor = Cache()
        batch(store, now_ms, [("a", "update", 7), ("a", "insert", 1)], processor)
    assert processor.seen[0] == ("a", (7,), [], {1: 1})


def test_another_time_to_live_counts_for_what_is_written_from_then_on() -> None:
    store = memory_store()
    batch(store, 0, [("a", "update", 1), ("b", "update", 2)], Cache())
    processor = Cache({**TTL, "value": 9})
    batch(store, 1, [("a", "update", 1)], processor)
    processor = Cache({**TTL, "value": 9})
    batch(store, 3, [("a", "remove", 0), ("b", "remove", 0)], processor)
    assert [seen[1] for seen in processor.seen] == [(1,), (1,), None, None]


@pytest.mark.parametrize("name", ["value", "list", "map"])
def test_a_time_to_live_that_comes_or_goes_is_refused_by_name(name: str) -> None:
    rows = [("a", "update", 1), ("a", "put", 1), ("a", "insert", 1)]
    for before, after in (({**TTL, name: None}, TTL), (TTL, {**TTL, name: None})):
        store = memory_store()
        batch(store, 0, rows, Cache(before))
        with pytest.raises(StateSchemaError, match=f"ttlDurationMs of state variable {name} "):
            batch(store, 1, rows, Cache(after))


def test_a_variable_that_is_deleted_takes_its_index_along() -> None:
    class Dropping(Cache):
        @override
        def init(self, handle: StatefulProcessorHandle) -> None:
            handle.deleteIfExists("value")
            self._ttl = {**TTL, "value": None}
            super().init(handle)

    store = memory_store()
    batch(store, 0, [("a", "update", 1)], Cache())
    processor = Dropping()
    batch(store, 1, [("a", "update", 5)], processor)
    assert processor.seen[0][1] is None
    assert batch(store, 99, [("a", "remove", 5)], Cache({**TTL, "value": None})).timed == (
        type(batch(memory_store(), 0, [], Cache()).timed)()
    )


@pytest.mark.parametrize(
    ("mode", "ttl_ms", "words"),
    [
        (TimeMode.PROCESSING, 0, "TTL_DURATION_MUST_BE_POSITIVE"),
        (TimeMode.PROCESSING, 1.5, "TTL_DURATION_MUST_BE_POSITIVE"),
        (TimeMode.PROCESSING, -1, "TTL_DURATION_MUST_BE_POSITIVE"),
        (TimeMode.NONE, 5, "INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
        (TimeMode.EVENT, 5, "INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
    ],
)
def test_a_time_to_live_that_cannot_be_is_refused(mode: TimeMode, ttl_ms: Any, words: str) -> None:
    processor = Cache({**TTL, "value": ttl_ms})
    with pytest.raises(ConfigError, match=f"{words}.*variable=value"):
        run(processor, [], schema=ROWS, time_mode=mode, clock=BatchClock(1, 1))


def test_what_is_left_of_a_variable_that_is_not_declared_any_more_ends_too() -> None:
    store = memory_store()
    batch(store, 0, [("a", "update", 1), ("a", "put", 1), ("a", "insert", 1)], Cache())

    class Without(Cache):
        @override
        def init(self, handle: StatefulProcessorHandle) -> None: ...

    assert batch(store, 4, [], Without()).timed.expired_values == 2
    assert batch(store, 5, [], Without()).timed.expired_values == 2
    assert next_times(store, TimeMode.PROCESSING) == NextTimes()


def test_a_time_to_live_beyond_all_times_never_ends() -> None:
    store = memory_store()
    ttl: dict[str, int | None] = {**TTL, "value": (1 << 63) - 1}
    batch(store, 5, [("a", "update", 1)], Cache(ttl))
    processor = Cache(ttl)
    batch(store, (1 << 62), [("a", "remove", 1)], processor)
    assert processor.seen[0][1] == (1,)

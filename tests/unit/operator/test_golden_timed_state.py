"""Timers and state with a time to live as an earlier release wrote them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from golden_kit import GOLDEN
from operator_kit import memory_store, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.registry import REGISTRY_KEY, encode_registry, stored_variables
from statekeep.spark.rescaling import SparkSplitter
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import MemoryStore

FOLDER = GOLDEN / "spark-state-timed"
KEYS = "key string, part int"
START = 1_700_000_000_000


class Timed(StatefulProcessor):
    """Has a timer at each value after the start, and three variables that end."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("value", "n long", 1_000)
        self._list = handle.getListState("list", "n long", 2_000)
        self._map = handle.getMapState("map", "k string", "n long", 3_000)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self._handle.registerTimer(START + row.v)
            self._value.update((row.v,))
            self._list.appendValue((row.v,))
            self._map.updateValue((f"k{row.v}",), (row.v,))
        return iter(())

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        items = [n for (n,) in self._list.get()]
        entries = {k[0]: v[0] for k, v in self._map.iterator()}
        time_ms = expiredTimerInfo.getExpiryTimeInMs() - START
        self.seen.append((time_ms, tuple(key), self._value.get(), items, entries))
        return iter(())

    @override
    def close(self) -> None: ...


def run_on(store: KeyValueStore, at_ms: int, rows: list[tuple[Any, ...]]) -> list[Any]:
    processor = Timed()
    run(
        processor,
        rows,
        store=store,
        schema=f"{KEYS}, v bigint",
        key=KEYS,
        time_mode=TimeMode.PROCESSING,
        clock=BatchClock(START + at_ms, -1),
    )
    return processor.seen


def write(store: MemoryStore) -> None:
    run_on(store, 0, [("a", 1, 1_500), ("a", None, 4_000), ("é", 2, 2_500)])
    run_on(store, 900, [("a", 1, 1_600)])


@pytest.fixture
def golden() -> MemoryStore:
    store = memory_store()
    entries = json.loads((FOLDER / "entries.json").read_bytes())
    store.write({bytes.fromhex(key): bytes.fromhex(value) for key, value in entries.items()})
    store.put(REGISTRY_KEY, (FOLDER / "registry.json").read_bytes())
    return store


def test_timers_and_ends_of_an_earlier_release_are_kept(golden: MemoryStore) -> None:
    assert run_on(golden, 1_800, []) == [
        (1_500, ("a", 1), (1_600,), [1_500, 1_600], {"k1500": 1_500, "k1600": 1_600}),
        (1_600, ("a", 1), (1_600,), [1_500, 1_600], {"k1500": 1_500, "k1600": 1_600}),
    ]
    assert run_on(golden, 2_600, [("a", 1, 2_000)]) == [
        (2_000, ("a", 1), (2_000,), [1_600, 2_000], {f"k{n}": n for n in (1_500, 1_600, 2_000)}),
        (2_500, ("é", 2), None, [], {"k2500": 2_500}),
    ]
    assert run_on(golden, 9_000, []) == [(4_000, ("a", None), None, [], {})]
    assert [key for key, _ in golden.scan()] == [REGISTRY_KEY]


def test_timed_state_is_written_as_it_was(golden: MemoryStore) -> None:
    written = memory_store()
    write(written)
    assert dict(written.scan()) == dict(golden.scan())


def test_the_registry_is_written_as_it_was(golden: MemoryStore) -> None:
    key_schema, variables = stored_variables(golden)
    assert encode_registry(key_schema, variables) == golden.get(REGISTRY_KEY)


def test_timers_and_ends_go_with_their_keys_to_another_number_of_tasks() -> None:
    rows = [(f"k{i}", i % 3, 1_500 + 10 * i) for i in range(40)]
    source = memory_store()
    run_on(source, 0, rows)
    splitter = SparkSplitter(3)
    targets: list[KeyValueStore] = [memory_store() for _ in range(3)]
    splitter.split(TaskName("Partition 0"), source, targets, lambda _: None)
    splitter.check(targets)
    splitter.finish(targets)
    found = [run_on(target, 1_700, []) for target in targets]
    assert all(found)
    assert sorted(seen for part in found for seen in part) == run_on(source, 1_700, [])
    for target in targets:
        run_on(target, 9_000, [])
        assert [key for key, _ in target.scan()] == [REGISTRY_KEY]

"""State from elsewhere becomes the same entries as if a processor had written it."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from operator_kit import ByFunction, memory_store, run
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from typing_extensions import override

from statekeep.errors import StateSchemaError
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.entries import Entry, EntryMaker, NewRegistry
from statekeep.spark.operator.registry import REGISTRY_KEY, VariableKind

KEYS = "key string, part int"
WIDE = "n long, d decimal(9,2), day date, t timestamp, texts array<string>, f float"
MAP_KEYS = "k string, x double"
VALUES = [
    (1, Decimal("2.50"), dt.date(2024, 2, 29), dt.datetime(2024, 3, 31, 2, 30), ["a", None], 0.1),  # noqa: DTZ001 - as Spark gives it
    (None, None, None, None, None, None),
]
START = 1_700_000_000_000
TTL = 5_000


class Writer(StatefulProcessor):
    """Puts the same into variables with and without a time to live, and registers a timer."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._values = [handle.getValueState("value", WIDE), handle.getValueState("v", WIDE, TTL)]
        self._lists = [handle.getListState("list", WIDE), handle.getListState("l", WIDE, TTL)]
        self._maps = [
            handle.getMapState("map", MAP_KEYS, WIDE),
            handle.getMapState("m", MAP_KEYS, WIDE, TTL),
        ]

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self._handle.registerTimer(row.v)
        for value in VALUES:
            for state in self._values:
                state.update(value)
            for items in self._lists:
                items.appendValue(value)
            for entries in self._maps:
                entries.updateValue((f"k{value[0]}", 0.0), value)
        return iter(())

    @override
    def close(self) -> None: ...


def made_by_hand() -> dict[bytes, bytes]:
    """What `Writer` leaves after two batches of one key, made entry by entry."""
    registry = NewRegistry(parse_schema(KEYS))
    wide, map_keys = parse_schema(WIDE), parse_schema(MAP_KEYS)
    timers = EntryMaker(registry.add_timers(TimeMode.PROCESSING))
    kinds: list[tuple[VariableKind, str]] = [
        ("value", "value v"),
        ("list", "list l"),
        ("map", "map m"),
    ]
    makers = {
        name: EntryMaker(
            registry.add(name, kind, wide, map_keys if kind == "map" else None, expires=expires)
        )
        for kind, names in kinds
        for name, expires in zip(names.split(), (False, True), strict=True)
    }
    key = timers.key(("é\0", None))
    first, last = START + TTL, START + 700 + TTL
    found: list[Entry] = [*timers.timer(key, START + 9_000), *timers.timer(key, START + 9_001)]
    found += makers["value"].value(key, VALUES[-1], None)
    found += makers["v"].value(key, VALUES[-1], last)
    found += makers["list"].items(key, [(value, None) for value in VALUES + VALUES])
    found += makers["l"].items(key, [(value, end) for end in (first, last) for value in VALUES])
    for value in VALUES:
        map_key = (f"k{value[0]}", -0.0)  # is 0.0 among keys
        found += makers["map"].map_entry(key, map_key, value, None)
        found += makers["m"].map_entry(key, map_key, value, last)
    assert len(found) == len(dict(found))
    return dict(found) | {REGISTRY_KEY: registry.encode()}


def test_entries_are_those_that_a_processor_writes() -> None:
    store = memory_store()
    for number, at_ms in enumerate((0, 700)):
        run(
            Writer(),
            [("é\0", None, START + 9_000 + number)],
            store=store,
            schema=f"{KEYS}, v long",
            key=KEYS,
            time_mode=TimeMode.PROCESSING,
            clock=BatchClock(START + at_ms, -1),
        )
    assert dict(store.scan()) == made_by_hand()


def test_a_value_that_does_not_fit_is_named_with_its_key() -> None:
    maker = EntryMaker(
        NewRegistry(parse_schema("key string")).add("n", "value", parse_schema("n int"))
    )
    with pytest.raises(StateSchemaError, match=r"variable=n key=\('a',\) field=n declared=int"):
        list(maker.value(maker.key(("a",)), (1 << 40,), None))


def test_without_timers_the_registry_is_that_of_a_processor_without_them() -> None:
    store = memory_store()
    run(
        ByFunction(lambda handle: handle.getValueState("n", "n long"), _count),
        [("a", 1)],
        store=store,
    )
    registry = NewRegistry(parse_schema("key string"))
    maker = EntryMaker(registry.add("n", "value", parse_schema("n long")))
    made = dict(maker.value(maker.key(("a",)), (1,), None)) | {REGISTRY_KEY: registry.encode()}
    assert dict(store.scan()) == made


def _count(state: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
    state.update((sum(1 for _ in rows),))
    return iter(())

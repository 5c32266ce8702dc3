"""State variables as an earlier release wrote them: layout of keys, codecs, registry."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from golden_kit import GOLDEN
from operator_kit import ByFunction, memory_store, run
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from statekeep.spark.operator.registry import REGISTRY_KEY, encode_registry, stored_variables
from statekeep.stores.memory import MemoryStore

VALUES: dict[str, Any] = {
    "boolean": True,
    "tinyint": -7,
    "smallint": 300,
    "int": -70_000,
    "bigint": 1 << 40,
    "float": 0.5,
    "double": -2.25,
    "string": "größer",
    "binary": b"\x00\xff",
    "decimal(10,2)": Decimal("12345.67"),
    "decimal(38,6)": Decimal("-12345678901234567890.123456"),
    "date": dt.date(1969, 12, 31),
    "timestamp": dt.datetime(2026, 11, 21, 12, 30, 0, 123456, tzinfo=dt.UTC),
    "timestamp_ntz": dt.datetime(1969, 7, 20, 20, 17, 40),  # noqa: DTZ001 - without a zone
    "interval day to second": dt.timedelta(days=-1, microseconds=5),
    "struct<x:int,y:string>": (1, None),
    "array<int>": [1, None, 3],
    "map<string,int>": {"a": 1, "b": None},
    "void": None,
}
TYPES = ", ".join(f"v{number} {kind}" for number, kind in enumerate(VALUES) if kind != "void")
VALUE = tuple(value for kind, value in VALUES.items() if kind != "void")
READ = tuple(
    value.astimezone().replace(tzinfo=None) if getattr(value, "tzinfo", None) else value
    for value in VALUE
)
"""The same as Spark gives it: a timestamp is in local time and has no zone."""
KEYS = "key string, part int"
ROWS = [("a", 1, 0), ("a", None, 0), ("é", 2, 0)]


def init(handle: StatefulProcessorHandle) -> tuple[Any, Any, Any]:
    return (
        handle.getValueState("value", TYPES),
        handle.getListState("list", "n bigint"),
        handle.getMapState("map", "name string", "n bigint, s string"),
    )


def write(variables: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
    value, items, mapped = variables
    value.update(VALUE)
    items.put([(number,) for number in range(3)])
    mapped.updateValue(("one",), (1, "x"))
    mapped.updateValue(("two",), (None, None))
    return iter(())


def run_on(store: MemoryStore, function: Any) -> None:
    run(ByFunction(init, function), ROWS, store=store, schema=f"{KEYS}, v bigint", key=KEYS)


@pytest.fixture
def golden() -> MemoryStore:
    store = memory_store()
    entries = json.loads((GOLDEN / "spark-state" / "entries.json").read_bytes())
    store.write({bytes.fromhex(key): bytes.fromhex(value) for key, value in entries.items()})
    store.put(REGISTRY_KEY, (GOLDEN / "spark-state" / "registry.json").read_bytes())
    return store


def test_state_of_an_earlier_release_is_read(golden: MemoryStore) -> None:
    seen: list[Any] = []

    def read(variables: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        value, items, mapped = variables
        seen.append(
            (
                key,
                value.get(),
                [item[0] for item in items.get()],
                {name[0]: entry for name, entry in mapped.iterator()},
            )
        )
        return iter(())

    run_on(golden, read)
    assert sorted((key for key, *_ in seen), key=str) == [("a", 1), ("a", None), ("é", 2)]
    for _, value, items, mapped in seen:
        assert value == READ
        assert items == [0, 1, 2]
        assert mapped == {"one": (1, "x"), "two": (None, None)}


def test_state_is_written_as_it_was(golden: MemoryStore) -> None:
    written = memory_store()
    run_on(written, write)
    assert dict(written.scan()) == dict(golden.scan())


def test_the_registry_is_written_as_it_was(golden: MemoryStore) -> None:
    key_schema, variables = stored_variables(golden)
    assert encode_registry(key_schema, variables) == golden.get(REGISTRY_KEY)
    assert [(name, variables[name].kind) for name in sorted(variables)] == [
        ("list", "list"),
        ("map", "map"),
        ("value", "value"),
    ]

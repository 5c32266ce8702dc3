"""State whose declaration changes: read as it is declared now, or refused by name."""

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from golden_kit import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import ByFunction, memory_store, run
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.errors import CheckpointCorruptError, StateSchemaError
from statekeep.spark.operator import registry
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.evolution import MAX_SCHEMA_NUMBER, schema_header
from statekeep.spark.operator.registry import REGISTRY_KEY, stored_variables
from statekeep.spark.rescaling import SparkSplitter
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import MemoryStore

Change = tuple[DataType, DataType, Any, Any]
"""Stored type, declared type, a value as it was stored, and as it is to be read."""


def kind(text: str) -> DataType:
    return parse_schema(f"v {text}")["v"].dataType


def _step(digits: int) -> Decimal:
    return Decimal(1).scaleb(-digits)


bytes_, ints = st.integers(-128, 127), st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)
singles = st.floats(width=32, allow_nan=False)


def change(stored: str, declared: str, values: Any, read: Callable[[Any], Any]) -> Any:
    pair = kind(stored), kind(declared)
    return values.map(lambda value: (*pair, value, None if value is None else read(value)))


LEAVES = st.one_of(
    change("string", "string", st.none() | st.text(max_size=3), str),
    change("date", "date", st.dates(), lambda day: day),
    change("boolean", "boolean", st.booleans(), bool),
    change("tinyint", "int", st.none() | bytes_, int),
    change("tinyint", "float", bytes_, float),
    change("smallint", "bigint", bytes_, int),
    change("int", "bigint", st.none() | ints, int),
    change("int", "double", ints, float),
    change("float", "double", singles, float),
    change("bigint", "decimal(25,3)", longs, lambda n: Decimal(n).quantize(_step(3))),
    change(
        "decimal(5,2)",
        "decimal(10,4)",
        st.none() | st.decimals(-999, 999, places=2),
        lambda n: n.quantize(_step(4)),
    ),
)


def _array(items: list[Change], kinds: Change) -> Change:
    stored, declared, *_ = kinds
    return (
        ArrayType(stored),
        ArrayType(declared),
        [item[2] for item in items],
        [item[3] for item in items],
    )


def _map(kinds: Change, keys: list[str]) -> Change:
    stored, declared, was, now = kinds
    return (
        MapType(StringType(), stored),
        MapType(StringType(), declared),
        dict.fromkeys(keys, was),
        dict.fromkeys(keys, now),
    )


def _fields_of(drawn: tuple[dict[str, tuple[str, Change]], list[str]]) -> Change:
    """A struct whose fields are kept, added or removed, and are declared in another order."""
    fields, order = drawn
    stored = {name: c for name, (what, c) in fields.items() if what != "added"}
    declared = [name for name in order if fields[name][0] != "removed"]
    return (
        StructType([StructField(name, c[0]) for name, c in stored.items()]),
        StructType([StructField(name, fields[name][1][1]) for name in declared]),
        tuple(c[2] for c in stored.values()),
        tuple(fields[name][1][3] if name in stored else None for name in declared),
    )


def structs(inner: Any) -> Any:
    fate = st.sampled_from(["kept", "kept", "added", "removed"])
    fields = st.dictionaries(st.sampled_from("abcdef"), st.tuples(fate, inner), min_size=1)
    return fields.flatmap(
        lambda found: st.tuples(st.just(found), st.permutations(sorted(found)))
    ).map(_fields_of)


CHANGES = structs(
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            inner.map(lambda c: _array([c, c], c)),
            st.tuples(inner, st.lists(st.text(max_size=2), unique=True)).map(lambda d: _map(*d)),
            structs(inner),
        ),
        max_leaves=6,
    )
)
"""Of whole values: both schemas are structs."""


TIMES = pytest.mark.parametrize("ttl_ms", [None, 100], ids=["stays", "expires"])
CLOCK = BatchClock(processing_time_ms=5, watermark_ms=0)


def declare(
    handle: StatefulProcessorHandle, schema: Any, ttl_ms: int | None = None
) -> tuple[Any, Any, Any]:
    return (
        handle.getValueState("value", schema, ttl_ms),
        handle.getListState("list", schema, ttl_ms),
        handle.getMapState("map", "k long", schema, ttl_ms),
    )


def mode(ttl_ms: int | None) -> TimeMode:
    return TimeMode.NONE if ttl_ms is None else TimeMode.PROCESSING


def batch(
    store: KeyValueStore,
    schema: Any,
    use: Callable[[Any, Any, Any], Any],
    ttl_ms: int | None = None,
) -> Any:
    """Run one batch of one key on variables of one schema; return what ``use`` returns."""
    found: list[Any] = []

    def handle_rows(variables: Any, key: Any, rows: Iterator[Any]) -> Iterator[Any]:
        found.append(use(*variables))
        return iter(())

    processor = ByFunction(lambda handle: declare(handle, schema, ttl_ms), handle_rows)
    run(processor, [("a", 1)], store=store, time_mode=mode(ttl_ms), clock=CLOCK)
    return found[0]


def write(value: Any) -> Callable[[Any, Any, Any], None]:
    def use(one: Any, many: Any, mapped: Any) -> None:
        one.update(value)
        many.put([value, value])
        mapped.updateValue((1,), value)

    return use


def read(one: Any, many: Any, mapped: Any) -> list[Any]:
    return [one.get(), *many.get(), *mapped.values(), tuple(mapped.getValue((1,)))]


@settings(max_examples=50, deadline=None)
@given(CHANGES)
def test_a_value_is_read_as_it_is_declared_now_and_written_in_the_new_form(found: Change) -> None:
    stored, declared, was, now = found
    store = memory_store()
    batch(store, stored, write(was))
    before = dict(store.scan())
    assert batch(store, declared, read) == [now] * 5
    assert dict(store.scan()) == before, "reading writes nothing"

    def extend(one: Any, many: Any, mapped: Any) -> None:
        many.appendValue(now)
        mapped.updateValue((2,), now)

    batch(store, declared, extend)
    assert batch(store, declared, lambda one, many, mapped: list(many.get())) == [now] * 3
    assert batch(store, declared, lambda one, many, mapped: list(mapped.values())) == [now] * 2
    batch(store, declared, write(now))
    assert batch(store, declared, read) == [now] * 6
    # What was stored before, such as in an older commit, is read as well.
    older = memory_store()
    older.write(dict(before))
    assert batch(older, declared, read) == [now] * 5


@TIMES
@pytest.mark.parametrize("use", ["same", "back"])
def test_a_variable_may_change_often(use: str, ttl_ms: int | None) -> None:
    store = memory_store()
    batch(store, "n int", write((1,)), ttl_ms)
    batch(store, "n int, s string", write((2, "x")), ttl_ms)
    third = "n int" if use == "back" else "s string, n bigint, d double"
    values = batch(store, third, read, ttl_ms)
    assert values == [(2,) if use == "back" else ("x", 2, None)] * 5
    _, variables = stored_variables(store)
    assert variables["value"].number == 1, "nothing was written with the third schema"
    batch(store, third, write((3,) if use == "back" else ("y", 3, 0.5)), ttl_ms)
    _, variables = stored_variables(store)
    assert variables["value"].number == (0 if use == "back" else 2)
    assert batch(store, third, read, ttl_ms) == [(3,) if use == "back" else ("y", 3, 0.5)] * 5


def test_a_list_whose_items_expire_takes_items_of_several_schemas() -> None:
    store = memory_store()
    batch(store, "n int", lambda one, many, mapped: many.put([(1,), (2,)]), 100)
    schema = "s string, n bigint"
    batch(store, schema, lambda one, many, mapped: many.appendValue(("x", 3)), 200)
    found = batch(store, schema, lambda one, many, mapped: list(many.get()), 200)
    assert found == [(None, 1), (None, 2), ("x", 3)]
    later = ByFunction(lambda handle: declare(handle, schema, 200))
    late = BatchClock(processing_time_ms=105, watermark_ms=0)
    outcome, _ = run(later, [("b", 1)], store=store, time_mode=TimeMode.PROCESSING, clock=late)
    assert outcome.timed.expired_values == 2
    assert batch(store, schema, lambda one, many, mapped: list(many.get()), 200) == [("x", 3)]


@pytest.mark.parametrize(
    ("stored", "declared", "field", "was", "now"),
    [
        ("n bigint", "n int", "n", "bigint", "int"),
        ("n string", "n bigint", "n", "string", "bigint"),
        ("n bigint", "n string", "n", "bigint", "string"),
        ("n bigint", "n double", "n", "bigint", "double"),
        ("n int", "n float", "n", "int", "float"),
        ("n double", "n float", "n", "double", "float"),
        ("n decimal(10,2)", "n decimal(10,3)", "n", "decimal(10,2)", "decimal(10,3)"),
        ("n bigint", "n decimal(18,0)", "n", "bigint", "decimal(18,0)"),
        ("n timestamp", "n timestamp_ntz", "n", "timestamp", "timestamp_ntz"),
        ("n array<bigint>", "n array<int>", "n[]", "bigint", "int"),
        ("n map<string,bigint>", "n map<string,int>", "n.value", "bigint", "int"),
        ("n map<int,int>", "n map<bigint,int>", "n.key", "int", "bigint"),
        (
            "n struct<x: int, y: array<struct<z: bigint>>>",
            "n struct<y: array<struct<z: int>>>",
            "n.y[].z",
            "bigint",
            "int",
        ),
        ("n bigint", "n array<bigint>", "n", "bigint", "array<bigint>"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_it(
    stored: str, declared: str, field: str, was: str, now: str
) -> None:
    store = memory_store()
    none: Any = (None,)
    batch(store, stored, write(none))
    before = dict(store.scan())
    with pytest.raises(StateSchemaError) as caught:
        batch(store, declared, write(none))
    assert str(caught.value).startswith(
        "stored state cannot be read as it is declared:"
        " [STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible: "
        f"operator=main variable=value field={field} stored={was} declared={now}; hint: "
    )
    assert dict(store.scan()) == before


def test_code_that_is_rolled_back_is_an_error_where_it_cannot_hold_what_is_stored() -> None:
    store = memory_store()
    batch(store, "n int", write((1,)))
    batch(store, "n bigint", write((1 << 40,)))
    with pytest.raises(StateSchemaError, match=r"field=n stored=bigint declared=int"):
        batch(store, "n int", read)
    assert batch(store, "n bigint", read) == [(1 << 40,)] * 5


def test_a_field_that_comes_back_with_another_type_is_refused_while_old_entries_may_be_there() -> (
    None
):
    store = memory_store()
    batch(store, "n int, s string", write((1, "x")))
    batch(store, "n int", write((1,)))
    with pytest.raises(StateSchemaError, match=r"field=s stored=string declared=int"):
        batch(store, "n int, s int", read)


def test_a_variable_that_is_deleted_may_have_any_schema_after_that() -> None:
    store = memory_store()
    batch(store, "n bigint", write((1,)))

    def init(handle: StatefulProcessorHandle) -> Any:
        handle.deleteIfExists("value")
        return declare(handle, "n bigint")

    run(ByFunction(init, lambda *_: iter(())), [("a", 1)], store=store)
    with pytest.raises(StateSchemaError, match="variable=list"):
        batch(store, "n string", read)


def test_there_are_as_many_schemas_as_a_byte_can_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert schema_header(MAX_SCHEMA_NUMBER)[-1] == 255
    monkeypatch.setattr(registry, "MAX_SCHEMA_NUMBER", 3)
    store = memory_store()
    for number in range(4):
        batch(store, f"n int, f{number} int", write((number, number)))
    assert batch(store, "n int, f2 int", lambda one, *_: one.get()) == (3, None)
    with pytest.raises(StateSchemaError, match="too many schemas: variable=value"):
        batch(store, "n int, one_more int", read)


def test_an_entry_of_a_schema_that_is_not_registered_is_damage() -> None:
    store = memory_store()
    batch(store, "n int", write((1,)))
    batch(store, "n bigint", write((1,)))
    for key, data in list(store.scan()):
        if data[:2] == b"\xd4\x01":
            store.put(key, data[:2] + b"\x07" + data[3:])
    uses: list[Callable[[Any, Any, Any], Any]] = [
        lambda one, many, mapped: one.get(),
        lambda one, many, mapped: list(many.get()),
        lambda one, many, mapped: list(mapped.values()),
    ]
    for use in uses:
        with pytest.raises(CheckpointCorruptError, match="number=7"):
            batch(store, "n bigint", use)


def test_state_that_the_processor_does_not_declare_is_reported_and_stays() -> None:
    store = memory_store()
    batch(store, "n int", write((1,)))
    outcome, _ = run(
        ByFunction(lambda handle: handle.getListState("list", "n int")), [("a", 1)], store=store
    )
    assert outcome.undeclared == ("map", "value")
    outcome, _ = run(ByFunction(lambda handle: declare(handle, "n int")), [("a", 1)], store=store)
    assert outcome.undeclared == ()
    assert batch(store, "n int", read) == [(1,)] * 5


def split(stores: list[MemoryStore]) -> KeyValueStore:
    """The state of some tasks in one."""
    splitter = SparkSplitter(1)
    target = memory_store()
    for number, store in enumerate(stores):
        splitter.split(TaskName(f"Partition {number}"), store, [target], lambda _: None)
    splitter.finish([target])
    return target


def write_key(store: KeyValueStore, key: str, schema: str, value: Any, ttl_ms: int | None) -> None:
    def handle_rows(variables: Any, *_: Any) -> Iterator[Any]:
        write(value)(*variables)
        return iter(())

    processor = ByFunction(lambda handle: declare(handle, schema, ttl_ms), handle_rows)
    run(processor, [(key, 1)], store=store, time_mode=mode(ttl_ms), clock=CLOCK)


@TIMES
def test_tasks_that_have_numbered_their_schemas_differently_become_one(ttl_ms: int | None) -> None:
    """One task had rows while each schema was declared, one begins with the last but one."""
    history = ["n int", "s string, n int", "n bigint", "d double, n bigint"]
    values: list[Any] = [(1,), ("x", 2), (3,), (0.5, 4)]
    stores: list[MemoryStore] = []
    for key, numbers in [("a", range(4)), ("b", range(2, 4)), ("c", range(3, 4)), ("d", [1])]:
        stores.append(memory_store())
        for number in numbers:
            write_key(stores[-1], f"{key}{number}", history[number], values[number], ttl_ms)
    for order in (stores, stores[::-1]):
        merged = split(order)
        found: dict[str, Any] = {}

        def keep(variables: Any, key: Any, _: Any, found: dict[str, Any] = found) -> Iterator[Any]:
            found[key[0]] = read(*variables)
            return iter(())

        names = ["a0", "a1", "a2", "a3", "b2", "b3", "c3", "d1"]
        run(
            ByFunction(lambda h: declare(h, history[-1], ttl_ms), keep),
            [(name, 1) for name in names],
            store=merged,
            time_mode=mode(ttl_ms),
            clock=CLOCK,
        )
        expected = {0: (None, 1), 1: (None, 2), 2: (None, 3), 3: (0.5, 4)}
        assert found == {name: [expected[int(name[1])]] * 5 for name in names}


def test_state_of_several_schemas_is_read_as_an_earlier_release_wrote_it() -> None:
    store = memory_store()
    folder = GOLDEN / "spark-state"
    store.put(REGISTRY_KEY, (folder / "registry-2.json").read_bytes())
    for line in (folder / "entries-2.txt").read_text().splitlines():
        key, value = line.split()
        store.put(bytes.fromhex(key), bytes.fromhex(value))
    made = evolved_state()
    assert dict(store.scan()) == dict(made.scan())
    assert batch(store, "n bigint, day date", read) == [(7, None)] * 5


def evolved_state() -> MemoryStore:
    store = memory_store()
    batch(store, "n int", write((7,)))

    def grow(one: Any, many: Any, mapped: Any) -> None:
        mapped.updateValue((2,), (1 << 40, dt.date(2026, 11, 23)))
        mapped.removeKey((2,))
        many.put([(7, None), (7, None)])

    batch(store, "n bigint, day date", grow)
    return store

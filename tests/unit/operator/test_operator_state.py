"""State variables, through a run: what is written in one batch is seen by the next."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from operator_kit import ByFunction, memory_store, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StringType, StructField, StructType

from statekeep.errors import (
    CheckpointCorruptError,
    ConfigError,
    StateSchemaError,
    UnknownFormatError,
)
from statekeep.spark.operator import variables
from statekeep.spark.operator.registry import REGISTRY_KEY
from statekeep.stores.memory import MemoryStore


def value_state(handle: StatefulProcessorHandle) -> ValueState:
    return handle.getValueState("value", "n long, s string")


def list_state(handle: StatefulProcessorHandle) -> ListState:
    return handle.getListState("list", "n long")


def map_state(handle: StatefulProcessorHandle) -> MapState:
    return handle.getMapState("map", "k string", "n long")


class Script:
    """Runs one function on a state variable for key ``a``, batch after batch on one store."""

    def __init__(self, init: Callable[[StatefulProcessorHandle], Any]) -> None:
        self._init = init
        self.store: MemoryStore = memory_store()
        self.changed_keys = 0

    def __call__(self, use: Callable[[Any], Any], *keys: str) -> Any:
        results: list[Any] = []

        def handle_rows(variable: Any, key: Any, rows: Any) -> Iterator[Row]:
            results.append(use(variable))
            return iter(())

        processor = ByFunction(self._init, handle_rows)
        outcome, _ = run(processor, [(key, 0) for key in keys or ("a",)], store=self.store)
        self.changed_keys = outcome.changed_keys
        return results[0] if len(results) == 1 else results


def test_an_absent_value_is_none_and_an_updated_one_is_seen_at_once_and_later() -> None:
    script = Script(value_state)

    def use(state: ValueState) -> tuple[Any, ...]:
        before = (state.exists(), state.get())
        state.update((1, "x"))
        return (*before, state.exists(), state.get())

    assert script(use) == (False, None, True, (1, "x"))
    assert script(lambda state: (state.exists(), state.get())) == (True, (1, "x"))


def test_a_cleared_value_is_gone() -> None:
    script = Script(value_state)
    script(lambda state: state.update((1, "x")))
    assert script(lambda state: (state.clear(), state.exists(), state.get())[1:]) == (False, None)
    assert script(lambda state: state.exists()) is False
    assert [key for key, _ in script.store.scan()] == [REGISTRY_KEY]


def test_a_value_of_nulls_exists() -> None:
    script = Script(value_state)
    script(lambda state: state.update((None, None)))
    assert script(lambda state: (state.exists(), state.get())) == (True, (None, None))


def test_keys_do_not_see_each_others_state() -> None:
    script = Script(value_state)
    script(lambda state: state.update((1, "x")), "a")
    assert script(lambda state: state.get(), "", "a", "a\x00", "b") == [None, (1, "x"), None, None]


def test_setting_what_is_there_changes_nothing() -> None:
    script = Script(value_state)
    script(lambda state: state.update((1, "x")))
    assert script.changed_keys == 2  # the value and the registry
    script(lambda state: state.update((1, "x")))
    assert script.changed_keys == 0


def test_a_batch_that_changes_nothing_writes_nothing() -> None:
    script = Script(value_state)
    script(lambda state: state.get())
    assert list(script.store.scan()) == []


def test_a_value_that_does_not_fit_names_variable_key_field_and_types() -> None:
    with pytest.raises(StateSchemaError) as caught:
        Script(value_state)(lambda state: state.update(("str", "x")))
    for part in ("variable=value", "key=('a',)", "field=n", "declared=bigint", "found=str"):
        assert part in str(caught.value)


def test_a_list_keeps_the_order_in_which_it_was_appended() -> None:
    script = Script(list_state)

    def use(state: ListState) -> list[Any]:
        state.appendValue((1,))
        state.appendList([(2,), Row(n=3)])
        seen = list(state.get())
        state.appendValue((4,))
        return seen

    assert script(use) == [(1,), (2,), (3,)]
    assert script(lambda state: list(state.get())) == [(1,), (2,), (3,), (4,)]
    script(lambda state: state.appendValue((5,)))
    assert script(lambda state: (state.exists(), list(state.get())[-1])) == (True, (5,))


def test_an_absent_list_is_empty() -> None:
    assert Script(list_state)(lambda state: (state.exists(), list(state.get()))) == (False, [])


def test_put_takes_the_place_of_a_list() -> None:
    script = Script(list_state)
    script(lambda state: (state.appendValue((1,)), state.put([(7,), (8,)])))
    assert script(lambda state: list(state.get())) == [(7,), (8,)]


def test_a_cleared_list_forgets_what_was_appended() -> None:
    script = Script(list_state)
    script(lambda state: state.appendValue((0,)))
    script(lambda state: (state.appendValue((1,)), state.clear(), state.appendValue((2,))))
    assert script(lambda state: list(state.get())) == [(2,)]
    script(lambda state: (state.appendValue((1,)), state.clear()))
    assert script(lambda state: state.exists()) is False


def test_appending_while_iterating_a_list_does_not_disturb_the_iterator() -> None:
    script = Script(list_state)
    script(lambda state: state.put([(1,), (2,)]))

    def use(state: ListState) -> list[Any]:
        seen = []
        for item in state.get():
            seen.append(item)
            state.appendValue(item)
        return seen

    assert script(use) == [(1,), (2,)]
    assert script(lambda state: len(list(state.get()))) == 4


@pytest.mark.parametrize("method", ["put", "appendList"])
def test_no_values_are_refused_for_a_list(method: str) -> None:
    with pytest.raises(StateSchemaError, match="variable=list"):
        Script(list_state)(lambda state: getattr(state, method)([]))


def test_a_single_tuple_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(StateSchemaError, match="variable=list"):
        Script(list_state)(lambda state: state.put((1,)))


def test_a_map_is_read_in_order_of_its_encoded_keys() -> None:
    script = Script(map_state)

    def use(state: MapState) -> None:
        state.updateValue(("b",), (2,))
        state.updateValue(("a",), (None,))

    script(use)
    assert script(lambda m: list(m.iterator())) == [(("a",), (None,)), (("b",), (2,))]
    assert script(lambda m: (list(m.keys()), list(m.values()))) == (
        [("a",), ("b",)],
        [(None,), (2,)],
    )
    assert script(lambda m: (m.getValue(("b",)), m.containsKey(("a",)))) == (Row(n=2), True)


def test_an_absent_map_is_empty() -> None:
    def use(m: MapState) -> tuple[Any, ...]:
        m.removeKey(("x",))
        return m.exists(), m.getValue(("x",)), m.containsKey(("x",)), list(m.iterator())

    script = Script(map_state)
    assert script(use) == (False, None, False, [])
    assert script.changed_keys == 0


def test_updating_a_map_while_iterating_it_does_not_disturb_the_iterator() -> None:
    script = Script(map_state)
    script(lambda m: [m.updateValue((k,), (1,)) for k in "abc"])

    def use(m: MapState) -> list[Any]:
        seen = []
        running = m.keys()
        for (key,) in running:
            seen.append(key)
            m.updateValue((key + "2",), (2,))
            m.removeKey(("c",))
        return seen

    assert script(use) == ["a", "b", "c"]
    assert script(lambda m: [key for ((key,), _) in m.iterator()]) == ["a", "a2", "b", "b2", "c2"]


def test_changes_of_a_map_lie_over_the_store_until_they_are_written() -> None:
    script = Script(map_state)
    script(lambda m: [m.updateValue((k,), (1,)) for k in "abc"])

    def use(m: MapState) -> tuple[Any, ...]:
        m.removeKey(("a",))
        m.updateValue(("b",), (5,))
        m.updateValue(("d",), (9,))
        return m.getValue(("a",)), [(k, v) for (k,), (v,) in m.iterator()]

    assert script(use) == (None, [("b", 5), ("c", 1), ("d", 9)])
    assert script(lambda m: [k for ((k,), _) in m.iterator()]) == ["b", "c", "d"]


def test_a_cleared_map_is_empty_and_can_be_filled_again() -> None:
    script = Script(map_state)
    script(lambda m: [m.updateValue((k,), (1,)) for k in "abc"])

    def use(m: MapState) -> tuple[Any, ...]:
        m.updateValue(("new",), (1,))
        m.clear()
        empty = (m.exists(), m.getValue(("a",)), m.getValue(("new",)))
        m.updateValue(("b",), (2,))
        return (*empty, list(m.keys()))

    assert script(use) == (False, None, None, [("b",)])
    assert script(lambda m: list(m.iterator())) == [(("b",), (2,))]


def test_maps_of_keys_that_begin_alike_stay_apart() -> None:
    script = Script(map_state)
    script(lambda m: m.updateValue(("x",), (1,)), "a", "a\x00", "a\x00\x00", "ab")
    assert script(lambda m: (m.clear(), m.exists())[1], "a") is False
    assert script(lambda m: m.exists(), "a", "a\x00", "a\x00\x00", "ab") == [False, *[True] * 3]


def test_many_changes_of_one_map_are_written_on_the_way_and_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(variables, "WRITE_KEYS", 3)
    script = Script(map_state)

    def use(m: MapState) -> list[Any]:
        for i in range(20):
            m.updateValue((f"{i:02}",), (i,))
        m.removeKey(("05",))
        running = m.keys()
        m.clear()
        m.updateValue(("z",), (0,))
        return [key for (key,) in running]

    assert script(use) == [f"{i:02}" for i in range(20) if i != 5]
    assert script(lambda m: list(m.keys())) == [("z",)]


def test_a_map_key_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StateSchemaError, match=r"variable=map \(map key\).* found=int"):
        Script(map_state)(lambda m: m.getValue((1,)))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (value_state, lambda h: h.getListState("value", "n long, s string"), "kind of"),
        (
            value_state,
            lambda h: h.getValueState("value", "n int, s string"),
            "operator=main variable=value field=n stored=bigint declared=int",
        ),
        (map_state, lambda h: h.getMapState("map", "k int", "n long"), "map key schema"),
    ],
    ids=["kind", "schema", "map key schema"],
)
def test_a_changed_declaration_is_refused_by_name(first: Any, second: Any, message: str) -> None:
    script = Script(first)
    script(_fill)
    with pytest.raises(StateSchemaError, match=message):
        run(ByFunction(second), [("a", 1)], store=script.store)


def _fill(state: Any) -> None:
    if isinstance(state, MapState):
        state.updateValue(("k",), (1,))
    else:
        state.update((1, "x"))


def test_a_changed_grouping_key_is_refused() -> None:
    script = Script(value_state)
    script(lambda state: state.update((1, "x")))
    with pytest.raises(StateSchemaError, match="grouping key"):
        run(ByFunction(), [(1, 1)], store=script.store, schema="key int, v long", key="key int")


@pytest.mark.parametrize(
    "declare",
    [
        lambda h: h.getValueState("v", "n long, s string NOT NULL"),
        lambda h: h.getListState("v", StructType([StructField("s", StringType(), nullable=False)])),
        lambda h: h.getMapState("v", "k string NOT NULL", "s string NOT NULL"),
    ],
    ids=["value", "list", "map"],
)
def test_fields_that_are_declared_not_null_are_refused(declare: Any) -> None:
    with pytest.raises(
        StateSchemaError, match=r"declared not null: .* variable=v fields=s"
    ) as caught:
        run(ByFunction(declare), [("a", 1)])
    assert "leave out NOT NULL" in caught.value.hints[0]


def test_state_that_was_stored_as_not_null_is_read_once_it_is_declared_nullable() -> None:
    script = Script(value_state)
    script(lambda state: state.update((1, "x")))
    stored = script.store.get(REGISTRY_KEY)
    assert stored is not None
    older = stored.replace(b'\\"nullable\\":true', b'\\"nullable\\":false')
    assert older != stored
    script.store.put(REGISTRY_KEY, older)
    assert script(lambda state: state.get()) == (1, "x")


def test_a_deleted_variable_is_gone_and_may_return_with_another_kind() -> None:
    script = Script(value_state)
    script(lambda state: state.update((1, "x")), "a", "b")

    def init(handle: StatefulProcessorHandle) -> ListState:
        handle.deleteIfExists("value")
        handle.deleteIfExists("never there")
        return handle.getListState("value", "n long")

    processor = ByFunction(init, lambda state, key, rows: iter([Row(key="", n=state.exists())]))
    _, output = run(processor, [("a", 1)], store=script.store, output="key string, n boolean")
    assert output["n"].to_pylist() == [False]
    assert [key for key, _ in script.store.scan()] == [REGISTRY_KEY]


@pytest.mark.parametrize(
    ("use", "feature"),
    [
        (lambda h: h.getValueState("v", "n long", 1000), "ttlDurationMs"),
        (lambda h: h.registerTimer(5), "timers"),
        (lambda h: h.deleteTimer(5), "timers"),
        (lambda h: h.listTimers(), "timers"),
    ],
    ids=["time to live", "registerTimer", "deleteTimer", "listTimers"],
)
def test_what_needs_a_time_mode_is_refused_without_one(use: Any, feature: str) -> None:
    with pytest.raises(ConfigError, match=f"{feature}.*timeMode=None"):
        run(ByFunction(use), [])


@pytest.mark.parametrize("method", ["getValueState", "getListState"])
def test_a_declaration_outside_init_is_refused(method: str) -> None:
    def late(handle: Any, key: Any, rows: Any) -> None:
        getattr(handle, method)("late", "n long")

    with pytest.raises(ConfigError, match="init\\(\\) only: variable=late"):
        run(ByFunction(lambda handle: handle, late), [("a", 1)])


def test_state_outside_a_call_for_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="no grouping key"):
        run(ByFunction(lambda handle: value_state(handle).get()), [("a", 1)])


def test_an_unreadable_registry_is_corruption_and_a_newer_format_is_named() -> None:
    store = memory_store()
    store.put(REGISTRY_KEY, b"{")
    with pytest.raises(CheckpointCorruptError):
        run(ByFunction(), [], store=store)
    for newer in (
        b'{"format_version": 99, "key_schema": "{}", "next_id": 1, "variables": {}}',
        b'{"format_version": 99, "variables": []}',
    ):
        store.put(REGISTRY_KEY, newer)
        with pytest.raises(UnknownFormatError, match="version=99"):
            run(ByFunction(), [], store=store)

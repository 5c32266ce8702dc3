"""State variables in stores of their own: what is in which one, what a cache is, what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
from operator_kit import ByFunction, memory_store, run
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import StateSchemaError
from statekeep.spark.operator.clock import BatchClock, TimeMode
from statekeep.spark.operator.ddl import parse_schema
from statekeep.spark.operator.declarations import check_declarations
from statekeep.spark.operator.due import NextTimes, next_times
from statekeep.spark.operator.registry import REGISTRY_KEY, stored_variables, variables_in
from statekeep.spark.variable_stores import VariableStores
from statekeep.stores.base import KeyValueStore

LARGE, CACHE = StoreName("large"), StoreName("cache")
PLACES = VariableStores({"seen": LARGE, "recent": CACHE}, frozenset({CACHE}))
KEY = parse_schema("key string")


class Stores:
    """The three stores of one task."""

    def __init__(self) -> None:
        self.state, self.large, self.cache = memory_store(), memory_store(), memory_store()

    def run(
        self, processor: ByFunction, *rows: tuple[str, int], session: str = "1", **options: Any
    ) -> tuple[list[dict[str, Any]], Any]:
        """Run a batch; return its output and its outcome."""
        outcome, table = run(
            processor,
            list(rows),
            store=self.state,
            output="key string, seen long, recent long",
            variable_stores=options.pop("variable_stores", PLACES),
            others={LARGE: self.large, CACHE: self.cache},
            session=session,
            **options,
        )
        return table.to_pylist(), outcome


def counting(name: str = "seen") -> ByFunction:
    """Counts the rows of each key twice: for good in one variable, and in a cache."""

    def init(handle: StatefulProcessorHandle) -> tuple[Any, Any]:
        return handle.getValueState(name, "n long"), handle.getValueState("recent", "n long")

    def handle_rows(variables: Any, key: Any, rows: Iterator[Row]) -> Iterator[Row]:
        count = len(list(rows))
        found: list[int] = []
        for variable in variables:
            (n,) = variable.get() or (0,)
            variable.update((n + count,))
            found.append(n + count)
        yield Row(key=key[0], seen=found[0], recent=found[1])

    return ByFunction(init, handle_rows)


def names_in(store: KeyValueStore) -> set[str]:
    return set(stored_variables(store)[1])


def test_each_variable_is_in_its_store_and_registered_there() -> None:
    stores = Stores()
    out, _ = stores.run(counting(), ("a", 1), ("a", 2))
    assert out == [{"key": "a", "seen": 2, "recent": 2}]
    assert list(stores.state.scan()) == []
    assert (names_in(stores.large), names_in(stores.cache)) == ({"seen"}, {"recent"})


def test_a_store_without_a_change_is_not_written() -> None:
    stores = Stores()
    stores.run(counting("in the state"), ("a", 1))
    before = list(stores.state.scan())
    stores.run(counting(), ("b", 1))
    assert list(stores.state.scan()) == before
    assert names_in(stores.large) == {"seen"}


def test_a_cache_is_empty_in_each_driver_session() -> None:
    stores = Stores()
    stores.run(counting(), ("a", 1), ("b", 1))
    stores.run(counting(), ("a", 2))
    out, outcome = stores.run(counting(), ("a", 3), session="2")
    assert out == [{"key": "a", "seen": 3, "recent": 1}]
    assert outcome.changed_keys > 0
    out, _ = stores.run(counting(), ("a", 4), ("b", 4), session="2")
    assert out == [{"key": "a", "seen": 4, "recent": 2}, {"key": "b", "seen": 2, "recent": 1}]


def test_a_change_of_a_cache_alone_makes_a_version() -> None:
    """Else what a worker holds open would be another cache than its version has."""

    def touch(handle: StatefulProcessorHandle) -> Any:
        return handle.getValueState("recent", "n long")

    def handle_rows(variable: Any, *_: Any) -> Iterator[Row]:
        variable.update((1,))
        return iter(())

    _, outcome = Stores().run(ByFunction(touch, handle_rows), ("a", 1))
    assert outcome.changed_keys > 0


def test_what_a_cache_holds_is_no_difference_to_a_replay() -> None:
    full, empty = Stores(), Stores()
    for stores in (full, empty):
        stores.run(counting(), ("a", 1))
    digests = {
        stores.run(counting(), ("a", 2), session=session)[1].changes_digest
        for stores, session in ((full, "1"), (empty, "2"))
    }
    assert len(digests) == 1


def test_the_digest_takes_in_every_store_that_lasts() -> None:
    def digest(*rows: tuple[str, int]) -> str:
        found: str = Stores().run(counting(), *rows)[1].changes_digest
        return found

    assert digest(("a", 1)) != digest(("a", 1), ("a", 2))


@pytest.mark.parametrize("is_cache_before", [True, False], ids=["from a cache", "to a cache"])
def test_a_store_begins_empty_where_it_was_or_becomes_a_cache(
    is_cache_before: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    stores = Stores()
    places = [VariableStores(PLACES.stores, frozenset(caches)) for caches in ({CACHE}, ())]
    before, after = places if is_cache_before else reversed(places)
    stores.run(counting(), ("a", 1), variable_stores=before)
    out, _ = stores.run(counting(), ("a", 2), variable_stores=after)
    assert out == [{"key": "a", "seen": 2, "recent": 1}]


def moved() -> Stores:
    """Stores where ``seen`` has data in the store `LARGE`."""
    stores = Stores()
    stores.run(counting(), ("a", 1))
    return stores


def test_a_cache_keeps_its_other_variables_where_its_first_one_is_deleted() -> None:
    places = VariableStores({"older": CACHE, "recent": CACHE}, frozenset({CACHE}))

    def declare(handle: StatefulProcessorHandle) -> Any:
        return handle.getValueState("older", "n long"), handle.getValueState("recent", "n long")

    def delete(handle: StatefulProcessorHandle) -> Any:
        handle.deleteIfExists("older")
        return handle.getValueState("seen", "n long"), handle.getValueState("recent", "n long")

    stores, counts = Stores(), counting()
    stores.run(ByFunction(declare, counts._handle_rows), ("a", 1), variable_stores=places)
    found = [
        stores.run(ByFunction(delete, counts._handle_rows), ("a", n), variable_stores=places)[0][0]
        for n in (2, 3)
    ]
    assert [row["recent"] for row in found] == [2, 3]


MOVED = VariableStores({"recent": CACHE}, frozenset({CACHE}))
WORDS = "another store than the settings say: variable=seen stored=large configured=state"


def test_a_variable_with_data_is_not_put_into_another_store() -> None:
    with pytest.raises(StateSchemaError, match=WORDS):
        moved().run(counting(), ("a", 2), variable_stores=MOVED)


def test_a_variable_with_data_that_is_moved_is_refused_on_the_driver() -> None:
    registry = moved().large.get(REGISTRY_KEY)
    assert registry is not None
    assert variables_in(registry) == {"seen"}
    check_declarations(counting(), KEY, registries={LARGE: registry}, variable_stores=PLACES)
    with pytest.raises(StateSchemaError, match=WORDS):
        check_declarations(counting(), KEY, registries={LARGE: registry}, variable_stores=MOVED)


def test_a_variable_that_is_deleted_may_be_put_into_another_store() -> None:
    stores, processor = moved(), counting()
    declare = processor._init

    def init(handle: StatefulProcessorHandle) -> Any:
        handle.deleteIfExists("seen")
        return declare(handle)

    processor._init = init
    out, _ = stores.run(processor, ("a", 2), variable_stores=MOVED)
    assert out[0]["seen"] == 1
    assert (names_in(stores.state), names_in(stores.large)) == ({"seen"}, set())


def test_what_is_declared_or_deleted_is_known_to_the_driver() -> None:
    def init(handle: StatefulProcessorHandle) -> None:
        handle.deleteIfExists("older")
        handle.getValueState("seen", "n long")

    assert check_declarations(ByFunction(init), KEY).variables == frozenset({"older", "seen"})


def test_variables_that_are_not_declared_any_more_are_reported_of_every_store() -> None:
    stores = moved()
    _, outcome = stores.run(counting("other"), ("a", 2))
    assert outcome.undeclared == ("seen",)


def test_a_time_to_live_is_in_the_store_of_its_variable_and_timers_in_the_first() -> None:
    def init(handle: StatefulProcessorHandle) -> Any:
        return handle, handle.getValueState("seen", "n long", 100)

    def handle_rows(variables: Any, *_: Any) -> Iterator[Row]:
        handle, variable = variables
        variable.update((1,))
        handle.registerTimer(5_000)
        return iter(())

    stores, mode = Stores(), TimeMode.PROCESSING
    stores.run(ByFunction(init, handle_rows), ("a", 1), time_mode=mode, clock=BatchClock(1_000, -1))
    assert names_in(stores.large) == {"seen", "$ttl_seen"}
    assert names_in(stores.state) == {"$procTimers", "$procTimers_byTime"}
    assert next_times(stores.state, mode, [stores.large]) == NextTimes(5_000, 1_100)

    _, outcome = stores.run(
        ByFunction(lambda handle: None), time_mode=mode, clock=BatchClock(1_100, -1)
    )
    assert outcome.timed.expired_values == 1
    assert [key for key, _ in stores.large.scan()] == [REGISTRY_KEY]

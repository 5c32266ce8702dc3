"""The state of a Spark job on other tasks, without Spark: routing, numbering, nothing lost."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kit import memory_store
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.errors import CheckpointCorruptError, ConfigError, StateSchemaError
from statekeep.spark.operator.key_codec import KeyCodec
from statekeep.spark.operator.key_hash import (
    KeyHasher,
    hash_bytes,
    hash_int,
    hash_long,
    partition_of_hash,
)
from statekeep.spark.operator.registry import (
    REGISTRY_KEY,
    RegisteredVariable,
    VariableKind,
    encode_registry,
    stored_variables,
)
from statekeep.spark.rescaling import SparkSplitter
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.reshaping import Filling, SplitRow, Splitting, split_rows
from statekeep.stores.base import KeyValueStore

KEY = StructType([StructField("user", StringType()), StructField("day", LongType())])
VALUE = StructType([StructField("n", LongType())]).json()
CODEC, HASHER = KeyCodec(KEY), KeyHasher(KEY)

UserDay = tuple[str | None, int | None]
Entry = tuple[str, UserDay, bytes]
"""Variable, grouping key, key within a map."""

Content = Mapping[Entry, bytes]
Split = Callable[[Sequence[KeyValueStore], int], list[KeyValueStore]]

user_days = st.tuples(st.none() | st.text(max_size=6), st.none() | st.integers(-(2**63), 2**63 - 1))
contents = st.dictionaries(
    st.tuples(st.just("count"), user_days, st.just(b""))
    | st.tuples(st.just("seen"), user_days, st.binary(max_size=4)),
    st.binary(max_size=8),
    max_size=40,
)


def variable(number: int, kind: VariableKind, schema: str = VALUE) -> RegisteredVariable:
    return RegisteredVariable(number, kind, schema, VALUE if kind == "map" else None)


def variables(*order: str) -> Mapping[str, RegisteredVariable]:
    kinds: dict[str, VariableKind] = {"count": "value", "seen": "map"}
    return {name: variable(number, kinds[name]) for number, name in enumerate(order, 1)}


NOT_BY_NAME = variables("seen", "count")


def store_of(content: Content, registry: Mapping[str, RegisteredVariable]) -> KeyValueStore:
    store = memory_store()
    if content:
        store.put(REGISTRY_KEY, encode_registry(KEY, registry))
    for (name, key, within), value in content.items():
        store.put(registry[name].prefix + CODEC.encode(key) + within, value)
    return store


def content_of(store: KeyValueStore) -> dict[Entry, bytes]:
    _, registry = stored_variables(store)
    names = {found.prefix: name for name, found in registry.items()}
    content: dict[Entry, bytes] = {}
    for key, value in store.scan():
        if key != REGISTRY_KEY:
            fields, end = CODEC.decode_front(key[2:])
            content[names[key[:2]], (fields[0], fields[1]), key[2 + end :]] = value
    return content


def task_of(key: UserDay, partitions: int) -> int:
    return partition_of_hash(HASHER.hash_front(CODEC.encode(key))[0], partitions)


def split(stores: Sequence[KeyValueStore], partitions: int) -> list[KeyValueStore]:
    splitter = SparkSplitter(partitions)
    targets: list[KeyValueStore] = [memory_store() for _ in range(partitions)]
    for number, store in enumerate(stores):
        splitter.split(TaskName(f"Partition {number}"), store, targets, lambda _: None)
    splitter.check(targets)
    splitter.finish(targets)
    return targets


def split_by_rows(stores: Sequence[KeyValueStore], partitions: int) -> list[KeyValueStore]:
    """As `split`, as executors do it: the rows of all old tasks are sorted in between."""
    batches = [
        batch
        for source, store in enumerate(stores)
        for batch in Splitting(STATE_STORE, source, range(partitions), range(len(stores))).rows(
            store
        )
    ]
    rows = list(split_rows(iter(batches)))
    random.Random(len(rows)).shuffle(rows)
    targets: list[KeyValueStore] = [memory_store() for _ in range(partitions)]
    for number, target in enumerate(targets):
        filling = Filling(
            TaskName(f"Partition {number}"),
            {(STATE_STORE, s) for s in range(len(stores))},
            dict.fromkeys([STATE_STORE], target).__getitem__,
        )
        filling.fill(row for row in rows if row[0] == number)
    return targets


@pytest.mark.parametrize("split", [split, split_by_rows], ids=["one by one", "by rows"])
@given(contents, st.integers(1, 5), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_every_entry_comes_to_the_task_of_its_key_once(
    split: Split, content: Content, old: int, new: int
) -> None:
    orders = [("count", "seen"), ("seen", "count")]
    before = [
        store_of({e: v for e, v in content.items() if task_of(e[1], old) == p}, variables(*order))
        for p, order in zip(range(old), orders * old, strict=False)
    ]
    after = split(before, new)
    merged: dict[Entry, bytes] = {}
    for number, store in enumerate(after):
        found = content_of(store)
        assert all(task_of(entry[1], new) == number for entry in found)
        assert merged.keys().isdisjoint(found)
        merged |= found
    assert merged == content

    back = [content_of(store) for store in split(after, old)]
    assert back == [content_of(store) for store in before]


@pytest.mark.parametrize("split", [split, split_by_rows], ids=["one by one", "by rows"])
@given(contents, st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_stored_keys_stay_as_they_are_where_all_tasks_number_alike(
    split: Split, content: Content, new: int
) -> None:
    before = [
        store_of({e: v for e, v in content.items() if task_of(e[1], 2) == p}, NOT_BY_NAME)
        for p in range(2)
    ]
    after = split(before, new)
    entries = [
        sorted((k, v) for store in stores for k, v in store.scan() if k != REGISTRY_KEY)
        for stores in (before, after)
    ]
    assert entries[0] == entries[1]


TWO_ENTRIES: Final[Content] = {("count", ("a", 1), b""): b"v", ("count", ("b", 1), b""): b"v"}


def filled(rows: Iterable[SplitRow]) -> int:
    filling = Filling(TaskName("t"), {(STATE_STORE, 0)}, lambda _: memory_store())
    filling.fill(rows)
    return filling.entries


def test_entries_that_are_lost_or_come_twice_on_the_way_are_noticed() -> None:
    store = store_of(TWO_ENTRIES, variables("count"))
    entries, sent = split_rows(Splitting(STATE_STORE, 0, range(1), range(1)).rows(store))
    assert filled([sent, entries]) == 2
    with pytest.raises(CheckpointCorruptError, match=r"missing=.*'state', 0"):
        filled([entries])
    with pytest.raises(CheckpointCorruptError, match="entries=0 sent=2"):
        filled([sent])
    with pytest.raises(CheckpointCorruptError, match="entries=4 sent=2"):
        filled([entries, entries, sent])


def test_an_old_task_that_is_not_heard_of_is_noticed() -> None:
    with pytest.raises(CheckpointCorruptError, match=r"missing=.*'state', 0"):
        filled([])


def test_a_key_in_a_task_that_it_does_not_belong_to_is_noticed() -> None:
    """Another task may have the same key: one of the two entries would be lost."""
    store = store_of(TWO_ENTRIES, variables("count"))
    places = {task_of(key, 64) for _, key, _ in TWO_ENTRIES}
    assert len(places) == 2
    for place in places:
        with pytest.raises(CheckpointCorruptError, match=f"task={place} of=64 belongs_to="):
            list(Splitting(STATE_STORE, place, range(1), range(64)).rows(store))


def test_hashes_are_those_of_spark() -> None:
    """``SELECT hash(1), hash(1L), hash('')`` of Spark."""
    signed = [
        value - (1 << 32) if value >= 1 << 31 else value
        for value in (hash_int(1, 42), hash_long(1, 42), hash_bytes(b"", 42))
    ]
    assert signed == [-559580957, -1712319331, 142593372]


def test_a_task_without_state_gives_nothing_and_gets_no_registry() -> None:
    (target,) = split([memory_store()], 1)
    assert list(target.scan()) == []


def test_one_variable_in_two_forms_is_refused() -> None:
    key: UserDay = ("a", 1)
    one = store_of({("count", key, b""): b"1"}, {"count": variable(1, "value")})
    other = store_of({("count", key, b""): b"1"}, {"count": variable(1, "list")})
    with pytest.raises(StateSchemaError, match="different forms of a state variable: name=count"):
        split([one, other], 2)


def test_an_entry_of_no_known_variable_is_refused() -> None:
    store = store_of({("count", ("a", 1), b""): b"1"}, variables("count", "seen"))
    store.put(b"\x00\x09" + CODEC.encode(("a", 1)), b"stray")
    with pytest.raises(CheckpointCorruptError, match="entry of an unknown variable"):
        split([store], 2)


def test_one_key_in_two_tasks_is_refused() -> None:
    one, other = (store_of({("count", ("a", 1), b""): n}, variables("count")) for n in (b"1", b"2"))
    with pytest.raises(ConfigError, match="two tasks hold the same key") as refused:
        split([one, other], 2)
    assert "store=state" in str(refused.value)
    assert "task=Partition 1 new_task=Partition" in str(refused.value)


def test_entries_without_a_registry_are_refused() -> None:
    store = memory_store()
    store.put(b"\x00\x01key", b"value")
    with pytest.raises(CheckpointCorruptError, match="without a registry"):
        split([store], 2)

"""The entries of old tasks in the stores of new ones: none is lost, and none takes another's place."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from log_kit import commit_record

from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.errors import CheckpointCorruptError, ConfigError
from statekeep.inspection.splitting import RoutedSplitter, shown_key, splitter_for
from statekeep.stores.base import KeyValueStore
from statekeep.stores.rocksdb import RocksDbStore

STORE = StoreName("counts")
MANY = 12_000
"""Entries, more than one write takes."""


def route(key: bytes, partitions: int) -> int:
    return sum(key) % partitions


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[KeyValueStore]]:
    """Two old stores and two new ones, empty."""
    opened: list[KeyValueStore] = [
        RocksDbStore(STORE, tmp_path / str(n), is_new=True) for n in range(4)
    ]
    yield opened
    for store in opened:
        store.close()


def split(sources: Sequence[KeyValueStore], targets: Sequence[KeyValueStore]) -> RoutedSplitter:
    splitter = RoutedSplitter(len(targets), route)
    for number, source in enumerate(sources):
        splitter.split(TaskName(f"Partition {number}"), source, targets, lambda _: None)
    return splitter


def test_every_entry_comes_to_one_new_store(stores: list[KeyValueStore]) -> None:
    entries = {b"%06d" % number: b"%d" % number for number in range(MANY)}
    for task, source in enumerate(stores[:2]):
        source.write({key: value for key, value in entries.items() if key[0] % 2 == task})
    targets = stores[2:]
    split(stores[:2], targets).check(targets)
    found = [dict(target.scan()) for target in targets]
    assert found[0] | found[1] == entries
    assert found[0].keys().isdisjoint(found[1])


@pytest.mark.parametrize("value", [b"2", b"1", b""], ids=["another", "the same", "empty"])
def test_a_key_of_two_tasks_is_refused(stores: list[KeyValueStore], value: bytes) -> None:
    stores[0].write({b"%06d" % number: b"" for number in range(0, MANY, 2)})
    stores[1].write({b"%06d" % number: b"" for number in range(1, MANY, 2)})
    stores[0].put(b"total", b"1")
    stores[1].put(b"total", value)
    with pytest.raises(ConfigError, match="two tasks hold the same key") as refused:
        split(stores[:2], stores[2:])
    assert "store=counts key=b'total' task=Partition 1 new_task=Partition 0" in str(refused.value)
    assert "under different keys" in "".join(refused.value.hints)


def test_a_key_that_the_same_task_has_twice_in_two_stores_is_fine(
    stores: list[KeyValueStore],
) -> None:
    """Each store of a task has a splitter of its own."""
    for source, target in zip(stores[:2], stores[2:], strict=True):
        source.put(b"total", b"1")
        split([source], [target]).check([target])


def test_a_new_store_that_lacks_an_entry_is_found(stores: list[KeyValueStore]) -> None:
    stores[0].write({b"a": b"1", b"c": b"2"})
    splitter = split(stores[:1], stores[2:])
    stores[3].delete(b"a")
    with pytest.raises(CheckpointCorruptError, match="does not hold what it was given") as found:
        splitter.check(stores[2:])
    assert "task=Partition 1 store=counts entries=1 given=2" in str(found.value)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"total", "b'total'"),
        (b"\x1b[2Jk\n", r"b'\x1b[2Jk\n'"),
        (b"k" * 100, f"b'{'k' * 40}'... (60 more bytes)"),
    ],
    ids=["plain", "control characters", "long"],
)
def test_a_key_is_shown_printable_and_short(key: bytes, shown: str) -> None:
    assert shown_key(key) == shown


def test_keys_that_the_job_routes_itself_are_not_routed_by_a_function_of_the_user() -> None:
    plain = msgspec.structs.replace(commit_record(1, 0).identity, router="")
    splitter_for(plain, 3, "cli_kit:route")
    for router in ("spark-murmur3-pmod-1", "spark-murmur3-pmod-1-by-operator-2"):
        on_spark = msgspec.structs.replace(plain, router=router)
        with pytest.raises(ConfigError, match="would not find its keys"):
            splitter_for(on_spark, 3, "cli_kit:route")

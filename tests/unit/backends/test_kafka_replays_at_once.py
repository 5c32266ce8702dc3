"""How many changelogs a container replays at once, without a cluster."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Message

from statekeep.backends.base import RestoreContext, TaskIdentity
from statekeep.backends.kafka import restore
from statekeep.backends.kafka.cluster import SharedCluster, TopicFacts
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.restore import REPLAYS_AT_ONCE
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    TaskName,
)
from statekeep.errors import RetriableError
from statekeep.stores.memory import MemoryStore
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

KAFKA = BackendName("kafka")
STORES = (StoreName("a"), StoreName("b"))
TASKS = tuple(TaskName(f"Partition {number}") for number in range(64))


class Readers:
    """Counts the readers that are open; each one takes a few turns of the loop for its record.

    Attributes:
        peak: The most that were open at once.
        total: All there were.
    """

    def __init__(self) -> None:
        self.peak = self.total = self._open_count = 0
        self.fails_from: int | None = None

    def __call__(self, *_: object, **__: object) -> "Readers.Reader":
        self._open_count += 1
        self.total += 1
        self.peak = max(self.peak, self._open_count)
        return Readers.Reader(self, does_fail=self.total == self.fails_from)

    class Reader:
        def __init__(self, readers: "Readers", *, does_fail: bool) -> None:
            self._readers = readers
            self._does_fail = does_fail
            self.position = 0

        @property
        def is_done(self) -> bool:
            return self.position > 0

        async def open(self) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            if self._does_fail:
                raise RetriableError("away")

        async def next(self, take: Callable[[list[Message]], object]) -> None:
            take([])
            self.position = 1

        async def close(self) -> None:
            self._readers._open_count -= 1


class FakeCluster:
    """Has every topic, each with one record."""

    def borrow(self) -> "FakeCluster":
        return self

    def give_back(self) -> None:
        pass

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        return dict.fromkeys(topics, TopicFacts("id", 1, 1))

    def start_offsets(self, places: Sequence[ChangelogPartition]) -> dict[ChangelogPartition, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Sequence[ChangelogPartition]) -> dict[ChangelogPartition, int]:
        return dict.fromkeys(places, 1)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Readers:
    made = Readers()
    monkeypatch.setattr(restore, "PartitionReader", made)
    return made


async def restore_all(directory: Path) -> list[BaseException | None]:
    """Restore all stores of all tasks at once, by one factory as in a container."""
    factory = KafkaBackendFactory(KAFKA, {"bootstrap.servers": "127.0.0.1:1"})
    factory._clusters = cast("SharedCluster", FakeCluster())
    return await asyncio.gather(
        *(restore_task(factory, task, directory) for task in TASKS), return_exceptions=True
    )


async def restore_task(factory: KafkaBackendFactory, task: TaskName, directory: Path) -> None:
    manager = factory.restore_manager(
        RestoreContext(
            TaskIdentity("job", "main", task, "77aa"),
            {store: directory / task / store for store in STORES},
            (),
            partial(MemoryStore, is_new=True),
            partial(MemoryStore, is_new=False),
            lambda _: None,
            lambda _: None,
            SerialExecutor(),
            FakeClock(),
        )
    )
    marker = KafkaStateCheckpointMarker("topic", 0, 0).encode(KAFKA)
    markers = {KAFKA: dict.fromkeys(STORES, marker)}
    await manager.init(CheckpointV2(CheckpointId(0, 1), {}, markers))
    await manager.restore()
    await manager.close()


@pytest.mark.asyncio
async def test_the_replays_of_all_tasks_and_stores_are_bounded_together(
    readers: Readers, tmp_path: Path
) -> None:
    assert await restore_all(tmp_path) == [None] * len(TASKS)
    assert (readers.total, readers.peak) == (len(TASKS) * len(STORES), REPLAYS_AT_ONCE)


@pytest.mark.asyncio
async def test_a_replay_that_fails_frees_its_turn_for_the_next(
    readers: Readers, tmp_path: Path
) -> None:
    readers.fails_from = 1
    ends = await restore_all(tmp_path)
    assert [type(end) for end in ends if end is not None] == [RetriableError]
    assert (readers.peak, readers._open_count) == (REPLAYS_AT_ONCE, 0)

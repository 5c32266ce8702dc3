"""What a replay makes of a changelog, and how it is proven, without a cluster."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Message
from typing_extensions import override

from statekeep.backends.base import RestoreContext, TaskIdentity
from statekeep.backends.kafka import restore
from statekeep.backends.kafka.cluster import SharedCluster, TopicFacts
from statekeep.backends.kafka.marker import ContentSummary, KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.restore import KafkaRestoreManager
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.pacing import InFlightLimit
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    TaskName,
)
from statekeep.errors import CheckpointCorruptError, RetriableError
from statekeep.stores.delta import Change
from statekeep.stores.memory import MemoryStore
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE

KAFKA = BackendName("kafka")
SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
TASK = TaskIdentity("job", "main", TaskName("Partition 0"), "77aa")
CONTENT = {b"a": b"1", b"b": b"2", b"c": b"3"}


@dataclass(frozen=True)
class FakeMessage:
    _key: bytes | None
    _value: bytes | None

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class FakeReader:
    """Gives two records at a time."""

    records: Sequence[FakeMessage] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.position = 0

    @property
    def is_done(self) -> bool:
        return self.position >= len(self.records)

    async def open(self) -> None:
        pass

    async def next(self, take: Callable[[list[Message]], object]) -> None:
        take(cast("list[Message]", self.records[self.position : self.position + 2]))
        self.position += 2

    async def close(self) -> None:
        pass


class FakeCluster:
    """Has one topic of one partition, which holds what the reader gives.

    Attributes:
        first: What the nodes say that are asked before one that knows the topic; None: nothing.
    """

    def __init__(self, first: Iterable[TopicFacts | RetriableError | None] = ()) -> None:
        self.first = iter(first)

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        facts = next(self.first, TopicFacts("id", 1, 1))
        if isinstance(facts, RetriableError):
            raise facts
        return {} if facts is None else dict.fromkeys(topics, facts)

    def start_offsets(self, places: Sequence[ChangelogPartition]) -> dict[Any, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Sequence[ChangelogPartition]) -> dict[Any, int]:
        return dict.fromkeys(places, len(FakeReader.records))

    def borrow(self) -> "FakeCluster":
        return self

    def give_back(self) -> None:
        pass


class ScannedStore(MemoryStore):
    """Counts how often it is read as a whole."""

    scans = 0

    @override
    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return super().scan(prefix)


@dataclass
class Replay:
    """Restores one store from given records."""

    store: ScannedStore
    monkeypatch: pytest.MonkeyPatch
    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: FakeClock = field(default_factory=FakeClock)

    async def run(
        self, records: Sequence[tuple[bytes | None, bytes | None]], content: ContentSummary
    ) -> dict[bytes, bytes]:
        messages = [FakeMessage(key, value) for key, value in records]
        self.monkeypatch.setattr(FakeReader, "records", messages)
        self.monkeypatch.setattr(restore, "PartitionReader", FakeReader)
        marker = KafkaStateCheckpointMarker("topic", 0, len(records) - 1, "id", "1_aa", content)
        manager = KafkaRestoreManager(
            RestoreContext(
                TASK,
                {STORE: Path("unused")},
                (),
                lambda _name, _path: self.store,
                lambda _name, _path: self.store,
                lambda _: None,
                lambda _: None,
                SerialExecutor(),
                self.clock,
            ),
            SETTINGS,
            KAFKA,
            cast("SharedCluster", self.cluster),
            InFlightLimit(1),
        )
        markers = {KAFKA: {STORE: marker.encode(KAFKA)}}
        await manager.init(CheckpointV2(CheckpointId(1, 1), {}, markers))
        self.monkeypatch.setattr(self.store, "close", lambda: None)
        await manager.restore()
        scans = self.store.scans
        found = dict(self.store.scan())
        self.store.scans = scans
        return found


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    return Replay(ScannedStore(StoreName("s"), tmp_path / "store", is_new=True), monkeypatch)


@pytest.mark.asyncio
async def test_a_changelog_with_every_key_once_is_proven_without_reading_the_store(
    replay: Replay,
) -> None:
    records = [*CONTENT.items(), (None, b"of no key")]
    assert await replay.run(records, ContentSummary.of(CONTENT.items())) == CONTENT
    assert replay.store.scans == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "before",
    [[(b"a", b"0")], [(b"z", b"1"), (b"z", None)], [(b"a", None)], [(b"a", b"1")] * 9],
    ids=["overwritten", "deleted", "tombstone", "many"],
)
async def test_a_changelog_with_old_records_is_proven_by_what_the_store_holds(
    replay: Replay, before: list[Change]
) -> None:
    records = [*before, *CONTENT.items()]
    assert await replay.run(records, ContentSummary.of(CONTENT.items())) == CONTENT
    assert replay.store.scans == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "records",
    [
        [(b"a", b"1"), (b"b", b"2")],
        [(b"a", b"1"), (b"b", b"2"), (b"b", b"2")],
        [(b"a", b"1"), (b"b", b"2"), (b"c", b"4")],
        [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")],
        [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"c", None)],
    ],
    ids=["one less", "one twice", "another value", "one more", "one deleted"],
)
async def test_other_content_than_the_committed_one_is_found_out(
    replay: Replay, records: list[Change]
) -> None:
    with pytest.raises(CheckpointCorruptError, match="does not give the committed content"):
        await replay.run(records, ContentSummary.of(CONTENT.items()))

"""Several tasks of a process at one topic, without a cluster."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message
from typing_extensions import override

from statekeep.backends.kafka import compacted_topic
from statekeep.backends.kafka.cluster import TopicFacts
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.errors import ConfigError, RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
OnDelivery = Callable[[KafkaError | None, None], None]


class FakeProducer:
    """Takes its time with each record, but for those that it refuses."""

    def __init__(self) -> None:
        self.delivered: list[bytes] = []
        self._queue: list[tuple[bytes, OnDelivery]] = []
        self._flushes = 0

    def produce(
        self, topic: str, data: bytes, key: bytes, partition: int, *, on_delivery: OnDelivery
    ) -> None:
        self._queue.append((key, on_delivery))

    def flush(self, timeout_s: float) -> None:
        self._flushes += 1
        for entry in list(self._queue):
            key, on_delivery = entry
            if key == b"bad":
                self._queue.remove(entry)
                on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            elif self._flushes % 8 == 0:
                self._queue.remove(entry)
                self.delivered.append(key)
                on_delivery(None, None)


class FakeCluster:
    closed = 0
    topic_id = "first"
    end: int | None = None

    def describe(self, topics: list[str]) -> dict[str, TopicFacts]:
        return {topic: TopicFacts(self.topic_id, 1, 1) for topic in topics}

    def end_offsets(self, places: list[ChangelogPartition]) -> dict[ChangelogPartition, int]:
        if self.end is None:
            raise RetriableError("away")
        return dict.fromkeys(places, self.end)

    def close(self) -> None:
        type(self).closed += 1


@dataclass
class Clients:
    """What was built.

    Attributes:
        producers: All, also those that were released.
        cluster_count: How many clients for topics.
    """

    producers: list[FakeProducer] = field(default_factory=list)
    cluster_count: int = 0

    def producer(self, *_: object) -> FakeProducer:
        self.producers.append(FakeProducer())
        return self.producers[-1]

    def cluster(self, *_: object) -> FakeCluster:
        self.cluster_count += 1
        return FakeCluster()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    async def prepare(*_: object, **__: Any) -> None:
        await asyncio.sleep(0)

    made = Clients()
    monkeypatch.setattr(compacted_topic, "build_producer", made.producer)
    monkeypatch.setattr(compacted_topic, "Cluster", made.cluster)
    monkeypatch.setattr(compacted_topic, "prepare_topics", prepare)
    return made


@pytest.fixture
def topic() -> CompactedTopic:
    return CompactedTopic(SETTINGS, "topic", executor=SerialExecutor(), clock=FakeClock())


@pytest.mark.asyncio
async def test_a_write_that_fails_leaves_those_beside_it_alone(
    clients: Clients, topic: CompactedTopic
) -> None:
    keys = [b"bad", b"a", b"b"]
    ends = await asyncio.gather(
        *(topic.send([(key, b"1")]) for key in keys), return_exceptions=True
    )
    assert [type(end) for end in ends] == [RetriableError, type(None), type(None)]
    assert [producer.delivered for producer in clients.producers] == [[b"a", b"b"]]


@pytest.mark.asyncio
async def test_after_a_failure_the_next_write_goes_by_a_client_of_its_own(
    clients: Clients, topic: CompactedTopic
) -> None:
    with pytest.raises(RetriableError):
        await topic.send([(b"bad", b"1")])
    await topic.send([(b"a", b"1")])
    await topic.send([(b"b", b"1")])
    assert [producer.delivered for producer in clients.producers] == [[], [b"a", b"b"]]


@pytest.mark.asyncio
async def test_one_client_for_topics_is_built_and_closed_for_all(
    clients: Clients, topic: CompactedTopic
) -> None:
    before = FakeCluster.closed
    await asyncio.gather(*(topic.send([(b"a", b"1")]) for _ in range(4)))
    await topic.close()
    assert (clients.cluster_count, FakeCluster.closed - before) == (1, 1)


@pytest.mark.asyncio
async def test_all_who_wait_for_a_cluster_that_is_away_share_one_time_out(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(*_: object, **__: Any) -> None:
        await clock.sleep(SETTINGS.timeout_ms / 1000)
        raise RetriableError("away")

    clock = FakeClock()
    topic = CompactedTopic(SETTINGS, "topic", executor=SerialExecutor(), clock=clock)
    monkeypatch.setattr(compacted_topic, "prepare_topics", prepare)
    ends = await asyncio.gather(
        *(topic.send([(b"a", b"1")]) for _ in range(64)), return_exceptions=True
    )
    assert {(type(end), str(end)) for end in ends} == {(RetriableError, "away")}
    assert len(clock.slept) == 1
    with pytest.raises(RetriableError):
        await topic.send([(b"a", b"1")])
    assert len(clock.slept) == 2


@pytest.mark.asyncio
@pytest.mark.usefixtures("clients")
async def test_all_who_read_from_a_cluster_that_went_away_share_one_time_out() -> None:
    clock = FakeClock()
    topic = CompactedTopic(SETTINGS, "topic", executor=SerialExecutor(), clock=clock)
    ends = await asyncio.gather(*(topic.read_new() for _ in range(64)), return_exceptions=True)
    assert {type(end) for end in ends} == {RetriableError}
    assert sum(clock.slept) * 1000 == pytest.approx(SETTINGS.timeout_ms)


class FullCluster(FakeCluster):
    """Has three records."""

    @override
    def end_offsets(self, places: list[ChangelogPartition]) -> dict[ChangelogPartition, int]:
        return dict.fromkeys(places, 3)

    def start_offsets(self, places: list[ChangelogPartition]) -> dict[ChangelogPartition, int]:
        return dict.fromkeys(places, 0)


class FakeReader:
    """Gives the offsets of the records in place of them."""

    def __init__(
        self,
        settings: KafkaSettings,
        place: ChangelogPartition,
        start: int,
        end: int,
        **_: object,
    ) -> None:
        self.position = start
        self._end = end

    @property
    def is_done(self) -> bool:
        return self.position >= self._end

    async def open(self) -> None:
        pass

    async def next(self, take: Callable[[list[int]], object]) -> None:
        take([self.position])
        self.position += 1

    async def close(self) -> None:
        pass


@pytest.mark.asyncio
@pytest.mark.usefixtures("clients")
async def test_records_that_are_not_wanted_are_dropped_and_come_again_after_a_rewind(
    topic: CompactedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted_topic, "Cluster", lambda *_: FullCluster())
    monkeypatch.setattr(compacted_topic, "PartitionReader", FakeReader)
    second = cast("Message", 1)
    assert list(map(str, await topic.read_new(lambda record: record is not second))) == ["0", "2"]
    assert not await topic.read_new()
    topic.rewind()
    assert list(map(str, await topic.read_new())) == ["0", "1", "2"]


@pytest.mark.asyncio
@pytest.mark.usefixtures("clients")
async def test_a_topic_that_was_made_anew_is_not_followed_on(
    topic: CompactedTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCluster, "end", 0)
    assert not await topic.read_new()
    monkeypatch.setattr(FakeCluster, "topic_id", "second")
    with pytest.raises(ConfigError, match="another one has its name") as caught:
        await topic.read_new()
    assert "start the job again" in caught.value.hints[0]

"""A broker in memory, behind the clients that the Kafka backend builds: everything above is real."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from golden_topics_kit import TopicFile, TopicRecord

from statekeep.backends.kafka import (
    admin,
    cluster,
    compacted_topic,
    job_log,
    reader,
    writer,
)
from statekeep.backends.kafka.cluster import TopicFacts, TopicForm
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings

OnDelivery = Callable[[KafkaError | None, Message], None]
SERVERS: Final = "127.0.0.1:1"
"""Without a server: what gets round the broker in memory does not get far."""
_MINUTE_MS: Final = 60_000


@dataclass(slots=True)
class Transaction:
    """Records that are visible together or never."""

    is_open: bool = True
    is_committed: bool = False


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """What a consumer gives: a record, or an event."""

    record: TopicRecord
    transaction: Transaction
    code: int | None = None

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return list(self.record.headers) or None

    def offset(self) -> int:
        return self.record.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self.record.timestamp_ms

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


@dataclass(slots=True)
class FakePartition:
    """The one partition of a topic."""

    topic_id: str
    start: int = 0
    end: int = 0
    messages: list[FakeMessage] = field(default_factory=list[FakeMessage])

    def append(self, record: TopicRecord, transaction: Transaction) -> FakeMessage:
        self.messages.append(FakeMessage(record, transaction))
        self.end += 1
        return self.messages[-1]

    @property
    def stable_end(self) -> int:
        """Where a reader of what is committed stops: at the first open transaction."""
        is_open = (m.offset() for m in self.messages if m.transaction.is_open)
        return min(is_open, default=self.end)


class FakeBroker:
    """Topics of one partition.

    Attributes:
        topics: By name.
        owners: Who holds each transactional id.
    """

    def __init__(self, files: Iterable[TopicFile] = ()) -> None:
        self.topics: dict[str, FakePartition] = {}
        self.owners: dict[str, FakeProducer] = {}
        for file in files:
            partition = FakePartition(file.topic_id, file.start, file.end)
            done = Transaction(is_open=False, is_committed=True)
            partition.messages = [FakeMessage(record, done) for record in file.records]
            self.topics[file.topic] = partition

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let every client of the backend be one of this broker."""
        for module in (admin, compacted_topic, job_log, cluster):
            monkeypatch.setattr(module, "Cluster", lambda *_: FakeCluster(self))
        monkeypatch.setattr(reader, "build_consumer", self._consumer)
        for module in (compacted_topic, writer):
            monkeypatch.setattr(module, "build_producer", self._producer)

    def _consumer(self, _: KafkaSettings, *, is_committed_only: bool) -> "FakeConsumer":
        return FakeConsumer(self, is_committed_only=is_committed_only)

    def _producer(
        self,
        _settings: KafkaSettings,
        transactional_id: str | None,
        _on_error: object,
        *,
        is_gapless: bool = False,
    ) -> "FakeProducer":
        del is_gapless
        return FakeProducer(self, transactional_id)


class FakeCluster:
    """Answers what `Cluster` asks."""

    def __init__(self, broker: FakeBroker) -> None:
        self._topics = broker.topics

    def close(self) -> None:
        pass

    def node_count(self) -> int:
        return 1

    def describe(self, topics: Iterable[str]) -> Mapping[str, TopicFacts]:
        found = {topic: self._topics[topic] for topic in topics if topic in self._topics}
        return {topic: TopicFacts(part.topic_id, 1, 1) for topic, part in found.items()}

    def ensure(self, topic: str, form: TopicForm) -> str:
        assert form.partitions == 1
        made = FakePartition(f"id of {topic}")
        return self._topics.setdefault(topic, made).topic_id

    def check(self, topic: str, form: TopicForm) -> None:
        pass

    def start_offsets(
        self, places: Iterable[ChangelogPartition]
    ) -> Mapping[ChangelogPartition, int]:
        return {place: self._topics[place.topic].start for place in places}

    def end_offsets(
        self, places: Iterable[ChangelogPartition], *, is_committed_only: bool = False
    ) -> Mapping[ChangelogPartition, int]:
        found = {place: self._topics[place.topic] for place in places}
        return {p: f.stable_end if is_committed_only else f.end for p, f in found.items()}

    def delete_before(self, place: ChangelogPartition, offset: int) -> None:
        partition = self._topics[place.topic]
        partition.start = max(partition.start, offset)
        partition.messages = [m for m in partition.messages if m.offset() >= partition.start]


class FakeConsumer:
    """Reads one topic from an offset on."""

    def __init__(self, broker: FakeBroker, *, is_committed_only: bool) -> None:
        self._topics = broker.topics
        self._is_committed_only = is_committed_only
        self._position = 0
        self._topic = ""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        (partition,) = partitions
        self._topic, self._position = str(partition.topic), int(partition.offset)

    def consume(self, count: int, _timeout_s: float) -> list[Message]:
        partition = self._topics[self._topic]
        end = partition.stable_end if self._is_committed_only else partition.end
        if not partition.start <= self._position <= partition.end:
            return [_event(KafkaError._AUTO_OFFSET_RESET, self._position)]
        found = [
            message
            for message in partition.messages
            if self._position <= message.offset() < end
            and (message.transaction.is_committed or not self._is_committed_only)
        ][:count]
        if not found:
            return [_event(KafkaError._PARTITION_EOF, end)]
        self._position = found[-1].offset() + 1
        return cast("list[Message]", found)

    def close(self) -> None:
        pass


class FakeProducer:
    """Writes at once; tells of deliveries when it is polled. With an id, in transactions."""

    def __init__(self, broker: FakeBroker, transactional_id: str | None) -> None:
        self._broker = broker
        self._id = transactional_id
        self._transaction = Transaction(is_open=False, is_committed=True)
        self._touched: dict[str, FakePartition] = {}
        self._untold: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._untold)

    def init_transactions(self, _timeout_s: float) -> None:
        assert self._id is not None
        before = self._broker.owners.get(self._id)
        self._broker.owners[self._id] = self
        if before is not None:
            before.end(is_committed=False)

    def begin_transaction(self) -> None:
        self._require_owner()
        self._transaction = Transaction()

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes,
        partition: int,
        *,
        on_delivery: OnDelivery | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        assert partition == 0
        found = self._touched.setdefault(topic, self._broker.topics[topic])
        stamp = tuple((headers or {}).items())
        record = TopicRecord(found.end, found.end * _MINUTE_MS, key, value, stamp)
        message = cast("Message", found.append(record, self._transaction))
        if on_delivery is not None:
            self._untold.append(lambda: on_delivery(None, message))

    def poll(self, _timeout_s: float) -> None:
        untold, self._untold = self._untold, []
        for tell in untold:
            tell()

    def flush(self, timeout_s: float) -> None:
        self.poll(timeout_s)

    def purge(self) -> None:
        pass

    def commit_transaction(self, timeout_s: float) -> None:
        self._require_owner()
        self.poll(timeout_s)
        self.end(is_committed=True)

    def end(self, *, is_committed: bool) -> None:
        """End what is open; the record that says so takes an offset of each partition."""
        if self._transaction.is_open:
            self._transaction.is_open = False
            self._transaction.is_committed = is_committed
            for partition in self._touched.values():
                partition.end += 1
        self._touched = {}

    def _require_owner(self) -> None:
        if self._id is not None and self._broker.owners.get(self._id) is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED))


def _event(code: int, offset: int) -> Message:
    record = TopicRecord(offset, 0, None, None)
    return cast("Message", FakeMessage(record, Transaction(), code))

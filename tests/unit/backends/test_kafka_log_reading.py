"""A job log in a topic that is trimmed while it is read, without a cluster."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest
from confluent_kafka import Message

from statekeep.backends.kafka import job_log
from statekeep.backends.kafka.cluster import TopicFacts
from statekeep.backends.kafka.job_log import KafkaJobLog
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.errors import CheckpointCorruptError, ConfigError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")


@dataclass(frozen=True)
class FakeMessage:
    place: int
    name: bytes
    data: bytes

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes:
        return self.data

    def offset(self) -> int:
        return self.place


RECORDS = [
    *(FakeMessage(position, b"%d" % position, b"r%d" % position) for position in range(4)),
    FakeMessage(4, b"floor", b"2"),
]


class FakeTopic:
    """Is its own cluster; its oldest records go, or one is damaged, when a reader begins."""

    def __init__(self) -> None:
        self.topic_id = "first"
        self.start = 0
        self.on_open: Callable[[], None] = lambda: None
        self.damaged = -1

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        return {topic: TopicFacts(self.topic_id, 1, 1) for topic in topics}

    def start_offsets(self, places: Sequence[ChangelogPartition]) -> dict[Any, int]:
        return dict.fromkeys(places, self.start)

    def end_offsets(
        self, places: Sequence[ChangelogPartition], *, is_committed_only: bool
    ) -> dict[Any, int]:
        return dict.fromkeys(places, len(RECORDS))

    def reader(self, _: object, place: object, start: int, end: int, **__: object) -> "FakeReader":
        return FakeReader(self, start, end)


class FakeReader:
    """Gives everything at once."""

    def __init__(self, topic: FakeTopic, start: int, end: int) -> None:
        self.position = start
        self._topic = topic
        self._end = end

    @property
    def is_done(self) -> bool:
        return self.position >= self._end

    async def open(self) -> None:
        self._topic.on_open()

    async def next(self, take: Callable[[list[Message]], object]) -> None:
        if self.position < self._topic.start or self._topic.damaged >= self.position:
            raise CheckpointCorruptError("partition cannot be read")
        take(cast("list[Message]", RECORDS[self.position : self._end]))
        self.position = self._end

    async def close(self) -> None:
        pass


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> FakeTopic:
    made = FakeTopic()
    monkeypatch.setattr(job_log, "Cluster", lambda *_: made)
    monkeypatch.setattr(job_log, "PartitionReader", made.reader)
    return made


@pytest.fixture
def log(topic: FakeTopic) -> KafkaJobLog:
    return KafkaJobLog(SETTINGS, "log", executor=SerialExecutor(), clock=FakeClock())


@pytest.mark.asyncio
async def test_a_log_that_is_trimmed_while_it_is_read_is_read_again(
    topic: FakeTopic, log: KafkaJobLog
) -> None:
    def trim() -> None:
        topic.start = 2

    topic.on_open = trim
    assert await log.read(0) == [(2, b"r2"), (3, b"r3")]


@pytest.mark.asyncio
async def test_a_damaged_record_of_a_log_is_no_reason_to_read_it_again(
    topic: FakeTopic, log: KafkaJobLog
) -> None:
    topic.damaged = 3
    with pytest.raises(CheckpointCorruptError):
        await log.read(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("ask", [KafkaJobLog.is_there, KafkaJobLog.read_floor])
async def test_a_record_of_another_program_is_an_error_that_says_what_to_do(
    log: KafkaJobLog,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[KafkaJobLog], Awaitable[object]],
) -> None:
    foreign = FakeMessage(len(RECORDS), b"not a position", b"")
    monkeypatch.setattr(sys.modules[__name__], "RECORDS", [*RECORDS, foreign])
    with pytest.raises(CheckpointCorruptError, match="not a record of the job log") as caught:
        await ask(log)
    assert "put the record back" in "".join(caught.value.hints)


@pytest.mark.asyncio
async def test_a_log_whose_topic_was_made_anew_is_not_read_on(
    topic: FakeTopic, log: KafkaJobLog
) -> None:
    await log.read(0)
    topic.topic_id = "second"
    with pytest.raises(ConfigError, match="topic_id=first found_topic_id=second") as caught:
        await log.read(0)
    assert "from a mirror" in caught.value.hints[0]


@pytest.mark.asyncio
async def test_what_a_reader_has_passed_leaves_memory_and_can_be_read_again(
    topic: FakeTopic, log: KafkaJobLog
) -> None:
    records = [(2, b"r2"), (3, b"r3")]

    assert await log.read(0) == records
    assert await log.read(3) == records[1:]
    assert await log.read(4) == []
    assert log._records == {}
    assert log._next_position == 4
    assert await log.read_at([3, 1, 2]) == records
    assert log._records == {}
    assert await log.read(0) == records
    assert await log.read_floor() == 2

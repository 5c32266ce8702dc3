"""What a reader makes of what the client library reports, without a cluster."""

from dataclasses import dataclass
from typing import cast

import pytest
from confluent_kafka import KafkaError, Message

from statekeep.backends.kafka import reader
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.errors import CheckpointCorruptError, RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")


@dataclass(frozen=True)
class FakeMessage:
    """A record, or an event if it has an error."""

    place: int
    code: int | None = None

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)

    def offset(self) -> int:
        return self.place


class FakeConsumer:
    """Gives one message at a time, and then nothing."""

    def __init__(self, *messages: FakeMessage) -> None:
        self._left = list(messages)

    def consume(self, wanted: int, timeout_s: float) -> list[Message]:
        given, self._left = self._left[:1], self._left[1:]
        return cast("list[Message]", given)


def reading(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, *messages: FakeMessage
) -> PartitionReader:
    """Return a reader of two records."""
    monkeypatch.setattr(reader, "build_consumer", lambda *_, **__: FakeConsumer(*messages))
    return PartitionReader(
        SETTINGS,
        ChangelogPartition("topic", 0),
        0,
        2,
        is_committed_only=True,
        executor=SerialExecutor(),
        clock=clock,
    )


UNKNOWN = FakeMessage(-1, KafkaError.UNKNOWN_TOPIC_OR_PART)


NO_GROUP = FakeMessage(-1, KafkaError.GROUP_AUTHORIZATION_FAILED)


@pytest.mark.asyncio
@pytest.mark.parametrize("event", [UNKNOWN, NO_GROUP], ids=["unknown topic", "group refused"])
async def test_what_a_node_says_of_a_young_topic_or_of_a_group_is_no_reason_to_end(
    monkeypatch: pytest.MonkeyPatch, event: FakeMessage
) -> None:
    found: list[Message] = []
    records = reading(monkeypatch, FakeClock(), event, FakeMessage(0), FakeMessage(1))
    while not records.is_done:
        await records.next(found.extend)
    assert [message.offset() for message in found] == [0, 1]


@pytest.mark.asyncio
async def test_a_topic_that_stays_unknown_ends_the_reading_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    records = reading(monkeypatch, clock, UNKNOWN)
    await records.next(list)
    clock.advance(SETTINGS.timeout_ms / 1000 + 1)
    with pytest.raises(RetriableError, match="no more records arrive"):
        await records.next(list)


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._BAD_MSG])
async def test_records_that_are_gone_or_damaged_end_the_reading_at_once(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with pytest.raises(CheckpointCorruptError):
        await reading(monkeypatch, FakeClock(), FakeMessage(0, code)).next(list)

"""What a writer asks of its producer, without a cluster."""

from typing import Any, cast

import pytest
from confluent_kafka import Producer

from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.writer import ChangelogWriter, TransactionWriter
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
PLACE = ChangelogPartition("topic", 0)


class FakeProducer:
    """Takes every record, and delivers what is queued at each poll.

    Attributes:
        transactions: The number of records in each transaction that was committed.
    """

    def __init__(self) -> None:
        self.transactions: list[int] = []
        self._taken = 0
        self._queued = 0

    def __len__(self) -> int:
        return self._queued

    def begin_transaction(self) -> None:
        self._taken = 0

    def commit_transaction(self, timeout_s: float) -> None:
        self.transactions.append(self._taken)

    def produce(self, *args: object, **kwargs: object) -> None:
        self._take(1)

    def produce_batch(self, topic: str, messages: list[Any], partition: int) -> int:
        self._take(len(messages))
        return len(messages)

    def poll(self, timeout_s: float) -> None:
        self._queued = 0

    def _take(self, count: int) -> None:
        self._taken += count
        self._queued += count


def writing(producer: FakeProducer, clock: FakeClock) -> ChangelogWriter:
    """Return a writer of transactions that may be open for a minute."""
    writer = TransactionWriter(SETTINGS, "id", executor=SerialExecutor(), clock=clock)
    writer._held = [cast("Producer", producer)]
    return writer


async def write(writer: ChangelogWriter, *keys: bytes) -> None:
    await writer.write(PLACE, [(key, b"1") for key in keys], {})


@pytest.mark.asyncio
async def test_a_transaction_is_committed_long_before_the_cluster_would_abort_it() -> None:
    producer, clock = FakeProducer(), FakeClock()
    writer = writing(producer, clock)
    await write(writer, b"a", b"b")
    clock.advance(20)
    await writer.commit_if_old()
    assert producer.transactions == [2]


@pytest.mark.asyncio
async def test_a_write_leaves_an_old_transaction_to_itself() -> None:
    producer, clock = FakeProducer(), FakeClock()
    writer = writing(producer, clock)
    await write(writer, b"a", b"b")
    clock.advance(20)
    await write(writer, b"c")
    await writer.commit()
    assert producer.transactions == [2, 1]


@pytest.mark.asyncio
async def test_a_young_transaction_takes_what_comes_in_time() -> None:
    producer, clock = FakeProducer(), FakeClock()
    writer = writing(producer, clock)
    await write(writer, b"a", b"b")
    clock.advance(10)
    await writer.commit_if_old()
    await write(writer, b"c")
    await writer.commit()
    assert producer.transactions == [3]


@pytest.mark.asyncio
async def test_where_nothing_is_open_nothing_is_committed() -> None:
    producer, clock = FakeProducer(), FakeClock()
    writer = writing(producer, clock)
    clock.advance(100)
    await writer.commit_if_old()
    assert producer.transactions == []

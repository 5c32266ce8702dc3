"""What a writer asks of its producer, without a cluster."""

from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from statekeep.backends.kafka.clients import QUEUE_RECORDS
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.writer import ChangelogWriter, TransactionWriter
from statekeep.errors import ConfigError, RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
PLACE = ChangelogPartition("topic", 0)


class FakeProducer:
    """Has a queue as the library has, and delivers a part of it at each poll.

    Attributes:
        transactions: The number of records in each transaction that was committed.
    """

    def __init__(self, *, capacity: int = QUEUE_RECORDS, delivered: int = QUEUE_RECORDS) -> None:
        self.transactions: list[int] = []
        self._capacity = capacity
        self._delivered = delivered
        self._taken = 0
        self._queued = 0

    def __len__(self) -> int:
        return self._queued

    def begin_transaction(self) -> None:
        self._taken = 0

    def commit_transaction(self, timeout_s: float) -> None:
        self.transactions.append(self._taken)

    def produce(self, _topic: str, value: bytes, *args: object, **kwargs: object) -> None:
        if len(value) > SETTINGS.max_message_bytes:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if self._queued == self._capacity:
            raise BufferError("Local: Queue full")
        self._taken += 1
        self._queued += 1

    def poll(self, timeout_s: float) -> None:
        self._queued = max(0, self._queued - self._delivered)


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
async def test_the_transactions_with_records_of_a_partition_are_counted() -> None:
    clock, other = FakeClock(), ChangelogPartition("other", 0)
    writer = writing(FakeProducer(), clock)
    await write(writer, b"a", b"b")
    clock.advance(20)
    await writer.write(other, [(b"c", b"1")], {})
    await write(writer, b"d")
    assert writer.commit_counts == {PLACE: 1}
    await writer.commit()
    await writer.commit()
    assert writer.commit_counts == {PLACE: 2, other: 1}


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
async def test_a_young_transaction_takes_any_number_of_bytes() -> None:
    producer = FakeProducer(delivered=500)
    writer = writing(producer, FakeClock())
    for _ in range(100):
        await writer.write(PLACE, [(b"key", bytes(4 << 20))], {})
    await writer.commit()
    assert producer.transactions == [100]


@pytest.mark.asyncio
async def test_where_nothing_is_open_nothing_is_committed() -> None:
    producer, clock = FakeProducer(), FakeClock()
    writer = writing(producer, clock)
    clock.advance(100)
    await writer.commit_if_old()
    assert producer.transactions == []


@pytest.mark.asyncio
async def test_more_tiny_records_than_the_queue_holds_are_written() -> None:
    producer = FakeProducer(delivered=500)
    writer = writing(producer, FakeClock())
    count = QUEUE_RECORDS // 9_000
    for _ in range(count):
        await write(writer, *[b""] * 10_000)
    await writer.commit()
    assert producer.transactions == [count * 10_000]


@pytest.mark.asyncio
@pytest.mark.parametrize("capacity", [0, 1], ids=["first record", "others"])
async def test_a_queue_that_is_full_all_the_same_is_a_reason_to_try_again(capacity: int) -> None:
    writer = writing(FakeProducer(capacity=capacity), FakeClock())
    with pytest.raises(RetriableError):
        await write(writer, b"a", b"b")


@pytest.mark.asyncio
@pytest.mark.parametrize("at", range(3))
async def test_the_record_that_is_too_large_is_named_wherever_it_stands(at: int) -> None:
    entries = [(b"key", b"1")] * 3
    entries[at] = (b"large", bytes(SETTINGS.max_message_bytes + 1))
    with pytest.raises(ConfigError, match=f"bytes={SETTINGS.max_message_bytes + 6} "):
        await writing(FakeProducer(), FakeClock()).write(PLACE, entries, {})

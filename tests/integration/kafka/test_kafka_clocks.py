"""Clocks of hosts that are wrong: a topic of ours takes the time of its own nodes."""

import time
import uuid

import pytest
from confluent_kafka import KafkaError, Message, Producer
from kafka_kit import KAFKA, ChangelogJob
from servers.kafka import KafkaBroker

from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DAY_MS = 86_400_000


def produce_a_day_ahead(servers: str, topic: str) -> list[str]:
    """Write a record as a host whose clock is a day ahead, and return what the cluster says."""
    answers: list[str] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        del message
        answers.append("taken" if error is None else error.name())

    producer = Producer({"bootstrap.servers": servers})
    ahead_ms = time.time_ns() // 1_000_000 + DAY_MS
    producer.produce(topic, b"1", b"0", 0, timestamp=ahead_ms, on_delivery=on_delivery)
    producer.flush(30)
    return answers


@pytest.mark.asyncio
async def test_a_changelog_takes_records_from_a_clock_that_is_ahead(job: ChangelogJob) -> None:
    await job.manager()
    assert produce_a_day_ahead(job.servers, job.topic) == ["taken"]


@pytest.mark.asyncio
async def test_the_job_log_takes_records_from_a_clock_that_is_ahead(broker: KafkaBroker) -> None:
    prefix = f"log-{uuid.uuid4().hex}"
    factory = KafkaBackendFactory(
        KAFKA, {"bootstrap.servers": broker.servers, "topic.prefix": prefix}
    )
    log = factory.job_log("job/main", SerialExecutor(), SystemClock())
    try:
        await log.probe()
        topic = f"{prefix}.job.main.job-log"
        assert produce_a_day_ahead(broker.servers, topic) == ["taken"]
    finally:
        await log.close()


@pytest.mark.asyncio
async def test_a_topic_with_the_timestamps_of_its_writers_is_named_and_its_refusal_explained(
    job: ChangelogJob, caplog: pytest.LogCaptureFixture
) -> None:
    await job.commit(await job.manager(), {b"a": b"1"})
    assert "message.timestamp.type" not in caplog.text
    job.configure_topic(message_timestamp_type="CreateTime", message_timestamp_before_max_ms="1")
    manager = await job.manager()
    assert "message.timestamp.type=CreateTime" in caplog.text
    with pytest.raises(ConfigError, match="reason=INVALID_TIMESTAMP") as caught:
        await job.commit(manager, {b"a": b"2"})
    assert "clock of this machine" in caught.value.hints[0]

"""Changelogs are set up and checked at the start of a job, for all of its tasks."""

import uuid

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kafka_kit import KAFKA
from servers.kafka import KafkaBroker

from statekeep.backends.base import JobTasks
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STORES = (StoreName("s"), StoreName("t"))


async def set_up(broker: KafkaBroker, name: str, tasks: int, **settings: str) -> None:
    written = {key.replace("__", "."): value for key, value in settings.items()}
    factory = KafkaBackendFactory(KAFKA, {"bootstrap.servers": broker.servers, **written})
    job = JobTasks(name, "main", STORES, tasks)
    admin = factory.admin(SerialExecutor(), SystemClock(), job)
    try:
        await admin.create_resources()
        await admin.validate_resources()
    finally:
        await admin.close()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def client(broker: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.servers})


@pytest.mark.asyncio
async def test_each_store_gets_a_topic_with_a_partition_for_each_task(
    broker: KafkaBroker, name: str, client: AdminClient
) -> None:
    own = {
        "stores__s__changelog__min__compaction__lag__ms": "7200000",
        "stores__s__changelog__delete__retention__ms": "90000000",
    }
    await set_up(broker, name, 4, **own)
    topics = client.list_topics(timeout=10).topics
    names = [f"kafka.{name}.main.{store}.changelog" for store in STORES]
    assert [len(topics[topic].partitions) for topic in names] == [4, 4]
    both = {"cleanup.policy": "compact", "max.message.bytes": "10485760"}
    times = [("7200000", "90000000"), ("14400000", "86400000")]
    for topic, (lag_ms, retention_ms) in zip(names, times, strict=True):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = client.describe_configs([resource])[resource].result()
        wanted = {"min.compaction.lag.ms": lag_ms, "delete.retention.ms": retention_ms, **both}
        assert {key: found[key].value for key in wanted} == wanted
    await set_up(broker, name, 6, **own)
    topics = client.list_topics(timeout=10).topics
    assert [len(topics[topic].partitions) for topic in names] == [6, 6]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, ("retention.ms=1000", None)),
        (
            {"cleanup.policy": "compact"},
            ("min.compaction.lag.ms=0", "stores.<store>.changelog.min.compaction.lag.ms"),
        ),
        (
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "14400000"},
            ("max.message.bytes=1048588", "kafka.max.message.bytes"),
        ),
    ],
    ids=["deletes", "compacts too early", "small records only"],
)
async def test_a_topic_that_loses_records_is_refused_at_the_start(
    broker: KafkaBroker,
    name: str,
    client: AdminClient,
    settings: dict[str, str],
    problem: tuple[str, str | None],
) -> None:
    topic = NewTopic(f"kafka.{name}.main.s.changelog", 4, 1, config=settings)
    for future in client.create_topics([topic]).values():
        future.result()
    text, key = problem
    with pytest.raises(ConfigError, match=text) as caught:
        await set_up(broker, name, 4)
    assert caught.value.key == key


@pytest.mark.asyncio
async def test_more_replicas_than_nodes_are_refused_before_a_topic_is_created(
    broker: KafkaBroker, name: str, client: AdminClient
) -> None:
    with pytest.raises(ConfigError, match="nodes=1 replicas=3"):
        await set_up(broker, name, 4, replication__factor="3")
    assert not [topic for topic in client.list_topics(timeout=10).topics if name in topic]

"""How many replicas the topics of a Kafka backend get, without a cluster."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from statekeep.backends.base import TaskIdentity
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.topics import ChangelogTopics
from statekeep.checkpoint.checkpoints import BackendName, StoreName, TaskName
from statekeep.errors import ConfigError

KAFKA = BackendName("kafka")
TASK = TaskIdentity("job", "main", TaskName("Partition 0"), "77aa")
SETTINGS = KafkaSettings(
    servers="127.0.0.1:1",
    topic_prefix="kafka",
    replication_factor=2,
    stores={"s.changelog.replication.factor": "3"},
)


class FakeAdmin:
    """A cluster that takes every topic; what is there has two replicas."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        return {name: self._described(name) for (name,) in [topics.topic_names]}

    def _described(self, name: str) -> "Future[Any]":
        future: Future[Any] = Future()
        if name in self.topics:
            partitions = [SimpleNamespace(replicas=[1, 2])]
            future.set_result(SimpleNamespace(topic_id="id", partitions=partitions))
        else:
            unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            future.set_exception(KafkaException(unknown))
        return future

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, Future[Any]]:
        self.topics |= {topic.topic: topic.replication_factor for topic in topics}
        done: Future[Any] = Future()
        done.set_result(None)
        return {topic.topic: done for topic in topics}

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        found: Future[Any] = Future()
        found.set_result({"cleanup.policy": SimpleNamespace(value="compact")})
        return dict.fromkeys(resources, found)


@pytest.fixture
def admin() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def cluster(admin: FakeAdmin) -> Cluster:
    made = Cluster(SETTINGS)
    made._held = [cast("AdminClient", admin)]
    return made


@pytest.mark.parametrize(("store", "replicas"), [("s", 3), ("other", 2)])
def test_a_changelog_gets_the_replicas_of_its_store(
    admin: FakeAdmin, cluster: Cluster, store: str, replicas: int
) -> None:
    form = ChangelogTopics(SETTINGS, KAFKA, TASK).form(StoreName(store))
    cluster.ensure("changelog", form)
    assert admin.topics == {"changelog": replicas}


def test_a_topic_with_fewer_replicas_than_its_store_asks_for_is_refused_by_that_setting(
    admin: FakeAdmin, cluster: Cluster
) -> None:
    admin.topics["changelog"] = 2
    topics = ChangelogTopics(SETTINGS, KAFKA, TASK)
    cluster.check("changelog", topics.form(StoreName("other")))
    with pytest.raises(ConfigError, match="replicas=2 needed=3") as caught:
        cluster.check("changelog", topics.form(StoreName("s")))
    assert caught.value.key == "stores.s.changelog.replication.factor"

"""What the cluster's answers are taken for, without a cluster."""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statekeep.backends.kafka import cluster as cluster_module
from statekeep.backends.kafka.admin import KafkaAdmin
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.backends.kafka.names import ChangelogPartition, log_topic
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.names import MAIN_OPERATOR, task_scope
from statekeep.errors import RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

PLACE = ChangelogPartition("topic", 0)


class FakeAdmin:
    """Gives one answer to every question for offsets."""

    def __init__(self, answer: int | KafkaError) -> None:
        self._answer = answer

    def list_offsets(self, asked: Iterable[Any], **options: Any) -> dict[Any, Future[Any]]:
        futures: dict[Any, Future[Any]] = {}
        for place in asked:
            futures[place] = Future()
            if isinstance(self._answer, int):
                futures[place].set_result(SimpleNamespace(offset=self._answer))
            else:
                futures[place].set_exception(KafkaException(self._answer))
        return futures


class ListingAdmin:
    """Has some topics."""

    def __init__(self, *topics: str) -> None:
        self._topics = topics

    def list_topics(self, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(topics=dict.fromkeys(self._topics))


class SilentCluster:
    """Answers nothing."""

    def node_count(self) -> int:
        raise RetriableError("no answer")


def cluster(answer: int | KafkaError) -> Cluster:
    made = Cluster(KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka"))
    made._held = [cast("AdminClient", FakeAdmin(answer))]
    return made


def test_an_offset_is_what_the_cluster_says() -> None:
    assert cluster(7).end_offsets([PLACE]) == {PLACE: 7}
    assert cluster(0).start_offsets([PLACE]) == {PLACE: 0}


@pytest.mark.parametrize("is_committed_only", [True, False])
def test_an_offset_that_no_node_reported_is_no_offset(is_committed_only: bool) -> None:  # noqa: FBT001 - a case
    with pytest.raises(RetriableError, match="offsets cannot be read"):
        cluster(-1).end_offsets([PLACE], is_committed_only=is_committed_only)


def test_a_topic_that_a_node_does_not_know_yet_is_asked_for_again() -> None:
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(RetriableError):
        cluster(unknown).start_offsets([PLACE])


@pytest.mark.asyncio
async def test_a_cluster_that_does_not_answer_is_away_and_not_set_up_wrongly() -> None:
    settings = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
    admin = KafkaAdmin(BackendName("far"), settings, None, SerialExecutor(), FakeClock())
    admin._cluster = cast("Cluster", SilentCluster())
    with pytest.raises(RetriableError, match="backend=far") as caught:
        await admin.validate_resources()
    assert "backends.far.bootstrap.servers" in caught.value.hints[0]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("servers", "protocol", "is_warned_of"),
    [
        ("broker.example:9092", {}, True),
        ("broker.example:9092", {"security.protocol": "SASL_PLAINTEXT"}, True),
        ("broker.example:9092", {"security.protocol": "SSL"}, False),
        ("127.0.0.1:9092", {}, False),
    ],
)
async def test_a_start_warns_of_brokers_without_tls(
    caplog: pytest.LogCaptureFixture,
    servers: str,
    protocol: dict[str, str],
    *,
    is_warned_of: bool,
) -> None:
    settings = KafkaSettings(servers=servers, topic_prefix="kafka", client=protocol)
    admin = KafkaAdmin(BackendName("far"), settings, None, SerialExecutor(), FakeClock())
    admin._cluster = cast("Cluster", SilentCluster())
    with pytest.raises(RetriableError):
        await admin.validate_resources()
    assert ("without TLS" in caplog.text) is is_warned_of
    assert ("backends.far.client.security.protocol" in caplog.text) is is_warned_of


@pytest.mark.asyncio
async def test_the_tasks_of_a_job_are_those_whose_logs_have_a_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    factory = KafkaBackendFactory(BackendName("kafka"), settings)
    executor, clock = SerialExecutor(), FakeClock()
    tasks = ["Partition 0", "Partition 12", "totals.of day/1", "köln"]
    logs = [("my job", task) for task in tasks] + [("my job 2", "Partition 1")]
    topics = [log_topic("kafka", task_scope(job, MAIN_OPERATOR, task)) for job, task in logs]
    others = ["kafka.my_2520job.job-log", "kafka.my_2520job.main.counts.changelog", "elsewhere"]
    admin = ListingAdmin(*topics, *others)

    def build(_: KafkaSettings) -> ListingAdmin:
        return admin

    monkeypatch.setattr(cluster_module, "build_admin", build)
    found = await factory.task_logs("my job", MAIN_OPERATOR, executor, clock)
    assert found == sorted(tasks)

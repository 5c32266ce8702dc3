"""Topics and offsets of one cluster; every method blocks, for a bounded time."""

# The library does not say what its futures hold.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls, asks
from statekeep.backends.kafka.client_errors import expected_topic, explained_errors
from statekeep.backends.kafka.clients import build_admin
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings, Replicas
from statekeep.config.kafka_settings import KafkaClusterSettings
from statekeep.config.key import keys_of
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError, RetriableError

T = TypeVar("T")

logger = logging.getLogger(__name__)

BROKER_TIME: Final = MappingProxyType({"message.timestamp.type": "LogAppendTime"})
"""For each topic that is created: records bear the time of the nodes, not of the hosts that write. By it
the cluster compacts; of a clock that is an hour ahead it would refuse records; and it says which of two
forms of a checkpoint is stale."""
_FOREVER: Final = "-1"
_ASKED_BY: Final = MappingProxyType(
    {
        "min.compaction.lag.ms": keys_of(StoreSettings)["changelog_min_compaction_lag_ms"].name,
        "delete.retention.ms": keys_of(StoreSettings)["changelog_delete_retention_ms"].name,
        "max.message.bytes": keys_of(KafkaClusterSettings)["max_message_bytes"].name,
    }
)
"""Settings of ours, by the setting of a topic that they ask for."""
_REQUEST_S: Final = 10
"""Longest wait for one answer: one that went to a node that has just died never comes."""


@dataclass(frozen=True, slots=True)
class TopicForm:
    """How a topic of ours is created, and what it must be like when it is there."""

    partitions: int
    """At least."""
    config: Mapping[str, str]
    """Settings of the topic."""
    replicas: Replicas | None = None
    """None: as ``kafka.replication.factor`` says."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the cluster says of a topic."""

    topic_id: str
    """Another one each time that a topic of the name is created."""
    partitions: int
    replicas: int
    """Of its first partition."""


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """Why a topic that is there will not do."""

    text: str
    """Its setting, and what is needed."""
    key: str | None
    """The setting of ours that asks for it; None: every changelog needs it."""


class Cluster:
    """Asks and changes what is not records. Safe to use from several threads."""

    def __init__(self, settings: KafkaSettings, calls: ClientCalls = NOT_COUNTED) -> None:
        """Build the client; nothing is reached yet."""
        self.calls = calls
        self._settings = settings
        self._held = [build_admin(settings)]
        self._warned: set[str] = set()

    def close(self) -> None:
        """Release the client: drops the last reference, as the library joins threads then."""
        self._held.clear()

    @property
    def _client(self) -> AdminClient:
        return self._held[0]

    @asks("metadata")
    def node_count(self) -> int:
        """Return how many nodes the cluster has.

        Raises:
            ConfigError: It refuses us.
            RetriableError: It does not answer.
        """
        what = f"cluster does not answer: servers={self._settings.servers}"
        with explained_errors(what):
            described = self._client.describe_cluster(request_timeout=self._timeout_s)
            return len(self._wait(described, what).nodes)

    @asks("metadata")
    def topics(self) -> Collection[str]:
        """Return the names of all topics that we may see."""
        with explained_errors("topics cannot be listed"):
            return list(self._client.list_topics(timeout=self._timeout_s).topics)

    @asks("metadata")
    def describe(self, topics: Collection[str]) -> Mapping[str, TopicFacts]:
        """Return the facts of those of ``topics`` that are there."""
        found: dict[str, TopicFacts] = {}
        what = f"topics cannot be described: topics={','.join(topics)}"
        futures = self._client.describe_topics(
            TopicCollection(list(topics)), request_timeout=self._timeout_s
        )
        for topic, future in futures.items():
            with explained_errors(what):
                try:
                    described = self._wait(future, what)
                except KafkaException as exc:
                    if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                        continue
                    raise
                partitions = described.partitions
                found[topic] = TopicFacts(
                    str(described.topic_id), len(partitions), len(partitions[0].replicas)
                )
        return found

    def ensure(self, topic: str, form: TopicForm) -> str | None:
        """Create a topic, or give it partitions that it lacks. Safe against racing callers.

        Returns:
            Its id; None: the node that was asked does not know it yet.

        Raises:
            ConfigError: The cluster does not take it.
        """
        there = self.describe([topic]).get(topic)
        what = f"topic cannot be created: topic={topic}"
        if there is None:
            replicas = form.replicas or self._settings.replicas
            new = NewTopic(topic, form.partitions, replicas.factor, config=dict(form.config))
            with self.calls.counted("create"):
                futures = self._client.create_topics([new], request_timeout=self._timeout_s)
                self._tolerating(KafkaError.TOPIC_ALREADY_EXISTS, futures, what)
            there = self.describe([topic]).get(topic)
        if there is not None and there.partitions < form.partitions:
            with self.calls.counted("create"):
                futures = self._client.create_partitions(
                    [NewPartitions(topic, form.partitions)], request_timeout=self._timeout_s
                )
                # A task with a higher number may have been first.
                self._tolerating(KafkaError.INVALID_PARTITIONS, futures, what)
        return None if there is None else there.topic_id

    def check(self, topic: str, form: TopicForm) -> None:
        """Compare the settings of a topic with what the backend needs.

        Raises:
            ConfigError: Records would be dropped that a restore needs; names the setting.
        """
        what = f"settings of a topic cannot be read: topic={topic}"
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with self.calls.counted("metadata"), expected_topic(), explained_errors(what):
            futures = self._client.describe_configs([resource], request_timeout=self._timeout_s)
            found = {
                name: str(entry.value)
                for name, entry in self._wait(futures[resource], what).items()
            }
        problem = settings_problem(found, form.config) or self._replica_problem(topic, form)
        if problem is not None:
            other = f"set {problem.key}" if problem.key is not None else "name another one"
            raise ConfigError(
                f"topic does not keep what a restore needs: topic={topic} {problem.text}",
                key=problem.key,
                hint=f"change the topic with kafka-configs, or {other}",
            )
        self._warn_of_clocks(topic, found)

    def _warn_of_clocks(self, topic: str, found: Mapping[str, str]) -> None:
        """Say once that the times of a topic are those of its writers."""
        (name, needed), *_ = BROKER_TIME.items()
        if found.get(name, needed) == needed or topic in self._warned:
            return
        self._warned.add(topic)
        logger.warning(
            "topic takes timestamps from the hosts that write to it, so with a wrong clock "
            "records may be refused or compacted too early; change it with kafka-configs: "
            "topic=%s %s=%s needed=%s",
            topic,
            name,
            found[name],
            needed,
        )

    def _replica_problem(self, topic: str, form: TopicForm) -> TopicProblem | None:
        needed, key = form.replicas or self._settings.replicas
        facts = self.describe([topic]).get(topic)
        if facts is None or facts.replicas >= needed:
            return None
        text = f"replicas={facts.replicas} needed={needed}"
        return TopicProblem(text, key)

    def end_offsets(
        self, partitions: Iterable[ChangelogPartition], *, is_committed_only: bool = False
    ) -> Mapping[ChangelogPartition, int]:
        """Return the offsets behind the last records, open transactions included or not."""
        isolation = (
            IsolationLevel.READ_COMMITTED if is_committed_only else IsolationLevel.READ_UNCOMMITTED
        )
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the library left it out
        return self._offsets(partitions, newest, isolation)  # pyright: ignore[reportArgumentType]

    def start_offsets(
        self, partitions: Iterable[ChangelogPartition]
    ) -> Mapping[ChangelogPartition, int]:
        """Return the offsets of the oldest records that are kept."""
        oldest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the library left it out
        return self._offsets(partitions, oldest, IsolationLevel.READ_UNCOMMITTED)  # pyright: ignore[reportArgumentType]

    @asks("delete")
    def delete_before(self, partition: ChangelogPartition, offset: int) -> None:
        """Drop the records of a partition below ``offset``. Idempotent."""
        what = f"records cannot be deleted: topic={partition.topic} offset={offset}"
        with explained_errors(what):
            futures = self._client.delete_records(
                [ClientPartition(partition.topic, partition.partition, offset)],
                request_timeout=self._timeout_s,
            )
            for future in futures.values():
                self._wait(future, what)

    def _offsets(
        self, partitions: Iterable[ChangelogPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> Mapping[ChangelogPartition, int]:
        asked = {
            ClientPartition(partition.topic, partition.partition): spec for partition in partitions
        }
        return self._list_offsets(asked, isolation) if asked else {}

    @asks("offsets")
    def _list_offsets(
        self, asked: Mapping[ClientPartition, OffsetSpec], isolation: IsolationLevel
    ) -> Mapping[ChangelogPartition, int]:
        found: dict[ChangelogPartition, int] = {}
        futures = self._client.list_offsets(
            dict(asked),
            isolation_level=isolation,
            request_timeout=self._timeout_s,
        )
        for client, future in futures.items():
            what = f"offsets cannot be read: topic={client.topic} partition={client.partition}"
            with expected_topic(), explained_errors(what):
                partition = ChangelogPartition(client.topic, client.partition)
                offset = int(self._wait(future, what).offset)
                if offset < 0:  # the library's way to say that a node did not answer in time
                    raise RetriableError(what)
                found[partition] = offset
        return found

    def _tolerating(self, code: int, futures: Mapping[str, "Future[Any]"], what: str) -> None:
        with explained_errors(what):
            for future in futures.values():
                try:
                    self._wait(future, what)
                except KafkaException as exc:
                    if exc.args[0].code() != code:
                        raise

    def _wait(self, future: "Future[T]", what: str) -> T:
        try:
            # Longer than the request: the library's own time-out tells more.
            return future.result(2 * self._timeout_s)
        except FutureTimeoutError as exc:
            raise RetriableError(what) from exc

    @property
    def _timeout_s(self) -> float:
        return min(self._settings.timeout_ms / 1000, _REQUEST_S)


def settings_problem(found: Mapping[str, str], wanted: Mapping[str, str]) -> TopicProblem | None:
    """Return which setting of a topic lets records go that a restore needs; None: none does."""
    policy = found.get("cleanup.policy", "")
    if "delete" in policy.split(","):
        limits = [found.get(name, _FOREVER) for name in ("retention.ms", "retention.bytes")]
        if limits != [_FOREVER, _FOREVER]:
            text = f"cleanup.policy={policy} retention.ms={limits[0]} retention.bytes={limits[1]}"
            return TopicProblem(text, None)
    if "compact" not in wanted.get("cleanup.policy", "") and "compact" in policy:
        return TopicProblem(f"cleanup.policy={policy}", None)
    for name, key in _ASKED_BY.items():
        is_short = name in wanted and int(found.get(name, wanted[name])) < int(wanted[name])
        if is_short and not (name == "delete.retention.ms" and "compact" not in policy):
            return TopicProblem(f"{name}={found[name]} needed={wanted[name]}", key)
    return None


class SharedCluster:
    """Lends a backend's `Cluster` to each caller; it is closed when the last one returns it.

    A client of the library runs a thread for each node and some more, and a process may have many
    tasks. Safe to use from several threads.
    """

    def __init__(self, settings: KafkaSettings, calls: ClientCalls = NOT_COUNTED) -> None:
        """Take the settings; nothing is built yet."""
        self._calls = calls
        self._settings = settings
        self._lock = Lock()
        self._cluster: Cluster | None = None
        self._borrowers = 0

    def borrow(self) -> Cluster:
        """Return the cluster; each call is followed by one of `give_back`. No I/O.

        Raises:
            ConfigError: The library does not take a setting.
        """
        with self._lock:
            if self._cluster is None:
                self._cluster = Cluster(self._settings, self._calls)
            self._borrowers += 1
            return self._cluster

    def give_back(self) -> None:
        """Take the cluster back; from the last borrower, release the client. Blocks then."""
        with self._lock:
            self._borrowers -= 1
            if self._borrowers:
                return
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

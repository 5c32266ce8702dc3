"""The settings of Kafka backends."""

from dataclasses import dataclass
from typing import Final

from statekeep.config.key import setting, setting_without_default
from statekeep.config.values import BOOLEAN, TEXT, byte_count, milliseconds, whole_number

KAFKA_PREFIX: Final = "kafka"
"""What stands before these names in the settings of all Kafka backends."""


@dataclass(frozen=True, slots=True)
class KafkaClusterSettings:
    """A cluster, the form of its topics, and how long to insist."""

    servers: str = setting_without_default("kafka.bootstrap.servers", TEXT, "none")
    """The cluster of kafka backends: `host:port`, separated by commas. *No cluster is right for
    everyone.*"""
    topic_prefix: str = setting("kafka.topic.prefix", TEXT, "", default_text="the backend's name")
    """First part of the names of all topics and transactional ids that a backend uses. *It keeps
    two backends of one cluster apart.*"""
    replication_factor: int = setting(
        "kafka.replication.factor", whole_number(-1, what="replicas"), -1
    )
    """Replicas of the topics that are created; -1: the cluster's default. *The cluster's
    administrator knows how many nodes may fail.*"""
    max_message_bytes: int = setting("kafka.max.message.bytes", byte_count(1 << 16), 10 << 20)
    """Largest record, key and value together; also set on topics that are created. *Values of
    several MB fit; the cluster's own default is 1 MB.*"""
    is_transactional: bool = setting("kafka.transactional", BOOLEAN, True)
    """Writes changelogs in transactions. Without them, offsets show whether another writer wrote
    at the same time; then the commit is written again. *With transactions, the cluster itself
    fences a writer that was replaced.*"""
    transaction_timeout_ms: int = setting(
        "kafka.transaction.timeout.ms", milliseconds(1_000), 60_000
    )
    """After how long the cluster aborts a transaction that its writer has left open. *The backend
    commits its transactions after a quarter of this time; the value is the client's.*"""
    timeout_ms: int = setting("kafka.timeout.ms", milliseconds(1_000), 60_000)
    """How long a read or write may make no progress before it counts as failed. *A node restarts
    in less time.*"""
    max_retry_ms: int = setting("kafka.retry.max.duration.ms", milliseconds(0), 900_000)
    """Longest time that one upload is retried for. *Half of the commit timeout, as for
    blobs.*"""

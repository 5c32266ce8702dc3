"""The settings of Kafka backends: see `statekeep.config.keys`."""

from typing import Final

from statekeep.config.key import Key
from statekeep.config.values import BOOLEAN, TEXT, byte_count, milliseconds, optional, whole_number

BOOTSTRAP_SERVERS: Key[str | None] = Key(
    "kafka.bootstrap.servers",
    optional(TEXT),
    None,
    "The cluster of kafka backends: `host:port`, separated by commas.",
    "No cluster is right for everyone.",
    default_text="none",
)
TOPIC_PREFIX: Key[str | None] = Key(
    "kafka.topic.prefix",
    optional(TEXT),
    None,
    "First part of the names of all topics and transactional ids that a backend uses.",
    "Two backends of one cluster keep apart by it.",
    default_text="the backend's name",
)
REPLICATION_FACTOR = Key(
    "kafka.replication.factor",
    whole_number(-1, what="replicas"),
    -1,
    "Replicas of the topics that are created; -1: the cluster's default.",
    "Who runs the cluster knows how many nodes may fail.",
)
MAX_MESSAGE_BYTES = Key(
    "kafka.max.message.bytes",
    byte_count(1 << 16),
    10 << 20,
    "Largest record, key and value together; also set on topics that are created.",
    "Values of several MB fit; the cluster's own default is 1 MB.",
)
IS_TRANSACTIONAL = Key(
    "kafka.transactional",
    BOOLEAN,
    True,  # noqa: FBT003 - the default of a boolean setting, beside its name
    "Writes changelogs in transactions. Without them a commit is proven by its offsets: it is "
    "written again if anybody else wrote meanwhile.",
    "A writer that was replaced is fenced by the cluster itself.",
)
TRANSACTION_TIMEOUT_MS = Key(
    "kafka.transaction.timeout.ms",
    milliseconds(1_000),
    60_000,
    "After how long the cluster aborts a transaction that its writer has left open.",
    "The backend commits one after a quarter of it; the value is the client's.",
)
TIMEOUT_MS = Key(
    "kafka.timeout.ms",
    milliseconds(1_000),
    60_000,
    "How long a read or write may make no progress before it counts as failed.",
    "Outlasts the restart of a node.",
)
MAX_RETRY_MS = Key(
    "kafka.retry.max.duration.ms",
    milliseconds(0),
    900_000,
    "Longest time that one upload is retried for.",
    "Half of the commit timeout, as for blobs.",
)

ALL: Final[tuple[Key[object], ...]] = (
    BOOTSTRAP_SERVERS,
    TOPIC_PREFIX,
    REPLICATION_FACTOR,
    MAX_MESSAGE_BYTES,
    IS_TRANSACTIONAL,
    TRANSACTION_TIMEOUT_MS,
    TIMEOUT_MS,
    MAX_RETRY_MS,
)

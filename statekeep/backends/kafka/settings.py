"""The settings of a Kafka backend: a cluster, the form of its topics, and how long to insist."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, NamedTuple, Self, TypeVar

from statekeep.backends.retry import RetryPolicy
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config import kafka_keys, store_keys
from statekeep.config.key import Key
from statekeep.config.redact import is_secret_name, redact
from statekeep.errors import ConfigError

T = TypeVar("T")

DEFAULTS_PREFIX: Final = "kafka"
"""What stands before these names in the settings of all Kafka backends."""
CLIENT_PREFIX: Final = "client."
_STORES: Final = "stores."
_CHANGELOG: Final = ".changelog"

_OURS: Final = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "message.max.bytes",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Settings of the client library on which exactness rests."""


class Replicas(NamedTuple):
    """How many replicas a topic is to have."""

    factor: int
    """-1: the cluster's default."""
    key: str
    """The setting that says so."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """One Kafka backend, checked."""

    servers: str
    """``host:port``, separated by commas."""
    topic_prefix: str
    """First part of every topic and transactional id."""
    replication_factor: int = kafka_keys.REPLICATION_FACTOR.default
    """Of topics that are created; -1: the cluster's default."""
    max_message_bytes: int = kafka_keys.MAX_MESSAGE_BYTES.default
    """Largest record, key and value together."""
    is_transactional: bool = kafka_keys.IS_TRANSACTIONAL.default
    """Whether changes are written in transactions."""
    transaction_timeout_ms: int = kafka_keys.TRANSACTION_TIMEOUT_MS.default
    """After this long the cluster aborts what a dead writer left open."""
    timeout_ms: int = kafka_keys.TIMEOUT_MS.default
    """How long a call may make no progress."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """For uploads."""
    client: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Handed to the client library as they are; may hold secrets."""
    stores: Mapping[str, str] = field(default_factory=dict[str, str])
    """``<store>.changelog*``, as the job's settings have them."""

    @classmethod
    def parse(cls, backend: str, settings: Mapping[str, str]) -> Self:
        """Read a backend's section of the configuration.

        Args:
            backend: Name of the backend, for errors and as the default prefix.
            settings: Its settings, without ``backends.<name>.`` or ``kafka.``.

        Raises:
            ConfigError: A setting is unknown, missing, or of the wrong type.
        """
        section = _Section(backend, settings)
        section.refuse_unknown()
        servers = section.read(kafka_keys.BOOTSTRAP_SERVERS)
        if servers is None:
            raise ConfigError(
                f"kafka backend has no cluster: backend={backend}",
                key=f"backends.{backend}.bootstrap.servers",
                hint=f"set {kafka_keys.BOOTSTRAP_SERVERS.name}, such as broker:9092",
            )
        return cls(
            servers=servers,
            topic_prefix=section.read(kafka_keys.TOPIC_PREFIX) or backend,
            replication_factor=section.read(kafka_keys.REPLICATION_FACTOR),
            max_message_bytes=section.read(kafka_keys.MAX_MESSAGE_BYTES),
            is_transactional=section.read(kafka_keys.IS_TRANSACTIONAL),
            transaction_timeout_ms=section.read(kafka_keys.TRANSACTION_TIMEOUT_MS),
            timeout_ms=section.read(kafka_keys.TIMEOUT_MS),
            retry=RetryPolicy(
                max_duration_ms=section.read(kafka_keys.MAX_RETRY_MS),
                settings_prefix=f"backends.{backend}.",
                duration_setting="retry.max.duration.ms",
            ),
            client=section.below(CLIENT_PREFIX),
            stores=section.below(_STORES),
        )

    def changelog(self, backend: str, store: StoreName) -> str | None:
        """Return the topic that ``stores.<store>.changelog`` names, if it does.

        It may begin with the backend's name and a dot, as in Samza; that is left out.
        """
        topic = self.stores.get(f"{store}{_CHANGELOG}")
        return None if topic is None else topic.removeprefix(f"{backend}.")

    def refuse_shared_changelogs(self, backend: str, topics: Mapping[StoreName, str]) -> None:
        """Make sure that no two stores have one changelog: each would delete what the other wrote.

        Args:
            backend: Name of the backend.
            topics: The changelogs of the stores that are backed up to it, named ones and others.

        Raises:
            ConfigError: Two have one.
        """
        stores: dict[str, StoreName] = {}
        for store, topic in topics.items():
            other = stores.setdefault(topic, store)
            if other != store:
                named = other if self.changelog(backend, store) is None else store
                raise ConfigError(
                    f"two stores have one changelog: backend={backend} topic={topic} "
                    f"stores={other},{store}",
                    key=f"{_STORES}{named}{_CHANGELOG}",
                    hint="name a topic for each store, or none: each gets one of its own",
                )

    def min_compaction_lag_ms(self, store: StoreName) -> int:
        """Return how long the cluster leaves records of a store uncompacted."""
        return self._of_store(store_keys.CHANGELOG_MIN_COMPACTION_LAG_MS, store)

    def delete_retention_ms(self, store: StoreName) -> int:
        """Return how long the cluster keeps tombstones of a store."""
        return self._of_store(store_keys.CHANGELOG_DELETE_RETENTION_MS, store)

    def traceable_ms(self, store: StoreName) -> int:
        """Return for how long at least a tombstone surely tells of a record that is gone."""
        return (self.min_compaction_lag_ms(store) + self.delete_retention_ms(store)) * 9 // 10

    @property
    def replicas(self) -> Replicas:
        """How many replicas a topic gets that nothing else is said of."""
        return Replicas(self.replication_factor, kafka_keys.REPLICATION_FACTOR.name)

    def changelog_replicas(self, store: StoreName) -> Replicas:
        """Return how many replicas a store's changelog gets."""
        key = store_keys.CHANGELOG_REPLICATION_FACTOR
        factor = self._of_store(key, store)
        return self.replicas if factor is None else Replicas(factor, key.of(store))

    def _of_store(self, key: Key[T], store: StoreName) -> T:
        for name in (store, "default"):
            text = self.stores.get(key.of(name).removeprefix(_STORES))
            if text is not None:
                return key.type.parse(text)
        return key.default


class _Section:
    """The settings of one backend, read by key."""

    def __init__(self, backend: str, settings: Mapping[str, str]) -> None:
        self._backend = backend
        self._settings = settings

    def refuse_unknown(self) -> None:
        known = [_short(key) for key in kafka_keys.ALL]
        for name in self._settings:
            option = name.removeprefix(CLIENT_PREFIX)
            if option != name and option in _OURS:
                raise ConfigError(
                    f"the backend sets this itself: backend={self._backend} key={name}",
                    key=f"backends.{self._backend}.{name}",
                )
            if name in known or option != name or name.startswith(_STORES):
                continue
            nearest = get_close_matches(name, [*known, CLIENT_PREFIX], n=1, cutoff=0)[0]
            raise ConfigError(
                "unknown setting of a kafka backend: "
                f"backend={self._backend} key={name} nearest={nearest}",
                key=f"backends.{self._backend}.{name}",
                hint=f"known are {', '.join(known)} and {CLIENT_PREFIX}*",
            )

    def read(self, key: Key[T]) -> T:
        name = _short(key)
        text = self._settings.get(name)
        if text is None:
            return key.default
        try:
            return key.type.parse(text)
        except ValueError as exc:
            shown = redact(text, is_secret=is_secret_name(name))
            raise ConfigError(
                f"{name} must be {key.type.requirement}: backend={self._backend} value={shown!r}",
                key=f"backends.{self._backend}.{name}",
            ) from exc

    def below(self, prefix: str) -> Mapping[str, str]:
        return {
            name.removeprefix(prefix): value
            for name, value in self._settings.items()
            if name.startswith(prefix)
        }


def _short(key: Key[object]) -> str:
    return key.name.removeprefix(f"{DEFAULTS_PREFIX}.")

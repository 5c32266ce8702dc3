"""The settings of a Kafka backend: a cluster, the form of its topics, and how long to insist."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from statekeep.backends.retry import RetryPolicy
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.backend_section import BackendSection
from statekeep.config.kafka_settings import KAFKA_PREFIX, KafkaClusterSettings
from statekeep.config.key import keys_of
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError

DEFAULTS_PREFIX: Final = KAFKA_PREFIX
CLIENT_PREFIX: Final = "client."
_STORES: Final = "stores."
_CHANGELOG: Final = ".changelog"
_KEYS: Final = keys_of(KafkaClusterSettings)
_STORE_KEYS: Final = keys_of(StoreSettings)

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
class KafkaSettings(KafkaClusterSettings):
    """One Kafka backend, checked."""

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
        section = BackendSection("kafka", backend, DEFAULTS_PREFIX, settings)
        for option in section.below(CLIENT_PREFIX):
            if option in _OURS:
                name = f"{CLIENT_PREFIX}{option}"
                raise ConfigError(
                    f"the backend sets this itself: backend={backend} key={name}",
                    key=f"backends.{backend}.{name}",
                )
        section.refuse_unknown((KafkaClusterSettings,), CLIENT_PREFIX, (_STORES,))
        if section.read(_KEYS["servers"]) is None:
            raise ConfigError(
                f"kafka backend has no cluster: backend={backend}",
                key=f"backends.{backend}.bootstrap.servers",
                hint=f"set {_KEYS['servers'].name}, such as broker:9092",
            )
        return section.fill(
            cls,
            topic_prefix=section.read(_KEYS["topic_prefix"]) or backend,
            retry=RetryPolicy(
                max_duration_ms=section.read(_KEYS["max_retry_ms"]),
                settings_prefix=f"backends.{backend}.",
                duration_setting=section.short(_KEYS["max_retry_ms"]),
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
        return int(self._of_store("changelog_min_compaction_lag_ms", store))

    def delete_retention_ms(self, store: StoreName) -> int:
        """Return how long the cluster keeps tombstones of a store."""
        return int(self._of_store("changelog_delete_retention_ms", store))

    def traceable_ms(self, store: StoreName) -> int:
        """Return for how long at least a tombstone is kept that marks a deleted record."""
        return (self.min_compaction_lag_ms(store) + self.delete_retention_ms(store)) * 9 // 10

    @property
    def replicas(self) -> Replicas:
        """How many replicas a topic gets that nothing else is said of."""
        return Replicas(self.replication_factor, _KEYS["replication_factor"].name)

    def changelog_replicas(self, store: StoreName) -> Replicas:
        """Return how many replicas a store's changelog gets."""
        field = "changelog_replication_factor"
        factor: int | None = self._of_store(field, store)
        return self.replicas if factor is None else Replicas(factor, _STORE_KEYS[field].of(store))

    def _of_store(self, field: str, store: StoreName) -> Any:  # noqa: ANN401 - as the field
        key = _STORE_KEYS[field]
        for name in (store, "default"):
            text = self.stores.get(key.of(name).removeprefix(_STORES))
            if text is not None:
                return key.type.parse(text)
        return key.default

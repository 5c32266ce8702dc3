"""Clients of one cluster, built alike: what exactness rests on is set here and nowhere else."""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.errors import ConfigError

logger = logging.getLogger(__name__)

_GROUP: Final = "statekeep"
"""The library wants one; nothing is ever stored under it."""
_LINGER_MS: Final = 20
_QUEUE_KBYTES: Final = 128 << 10
"""More than a `ChangelogWriter` ever leaves in the queue, so that it is never full."""
QUEUE_RECORDS: Final = 1_000_000
"""How many records the queue of a producer holds; as above."""
_REFRESH_MS: Final = 5_000
"""How soon a client for topics learns which node is the controller now: until then it waits for one
that may be dead. The library's own default is five minutes."""
_FETCH_BYTES: Final = 8 << 20
"""The most that one answer brings, and that a consumer fetches ahead: each one has a queue."""
_FULL_QUEUE_MS: Final = 10
"""How long a consumer whose queue is full waits before it looks again. The library's own default is a
second: a replay would spend half of its time so."""
_FETCH_WAIT_MS: Final = 20
"""How long the cluster holds back an answer without records: the end of a log is known so soon."""


def build_producer(
    settings: KafkaSettings,
    transactional_id: str | None,
    on_error: Callable[[KafkaError], None],
    *,
    is_gapless: bool = False,
) -> Producer:
    """Build a producer; without a transactional id it is idempotent only. No I/O.

    Args:
        settings: Of the cluster.
        transactional_id: None: no transactions.
        on_error: Called with what the library reports while it is polled.
        is_gapless: Records do not expire, and after one that is refused none is sent any more.
    """
    config: dict[str, Any] = {
        **_common(settings),
        "acks": "all",
        "enable.idempotence": True,
        "message.max.bytes": settings.max_message_bytes,
        "linger.ms": settings.client.get("linger.ms", _LINGER_MS),
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        "queue.buffering.max.messages": QUEUE_RECORDS,
        "message.timeout.ms": settings.timeout_ms,
        "error_cb": on_error,
    }
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
        config["transaction.timeout.ms"] = settings.transaction_timeout_ms
        config["message.timeout.ms"] = min(settings.timeout_ms, settings.transaction_timeout_ms)
    if is_gapless:
        # The library's guarantee leaves out the records that expire.
        config["enable.gapless.guarantee"] = True
        config["message.timeout.ms"] = 0
    with _refused_settings(settings):
        return Producer(config, logger=logger)


def build_consumer(settings: KafkaSettings, *, is_committed_only: bool) -> Consumer:
    """Build a consumer for single partitions from given offsets. No I/O."""
    config: dict[str, Any] = {
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "fetch.max.bytes": max(4 * _FETCH_BYTES, settings.max_message_bytes),
        "max.partition.fetch.bytes": _FETCH_BYTES,
        "queued.min.messages": 200_000,
        "queued.max.messages.kbytes": _FETCH_BYTES >> 10,
        "fetch.queue.backoff.ms": _FULL_QUEUE_MS,
        **_common(settings),
        "group.id": _GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "check.crcs": True,
        "error_cb": _log_error,
        "isolation.level": "read_committed" if is_committed_only else "read_uncommitted",
    }
    with _refused_settings(settings):
        return Consumer(config, logger=logger)


def build_admin(settings: KafkaSettings) -> AdminClient:
    """Build a client for topics and offsets. No I/O."""
    config: dict[str, Any] = {
        "topic.metadata.refresh.interval.ms": _REFRESH_MS,
        **_common(settings),
        "error_cb": _log_error,
    }
    with _refused_settings(settings):
        return AdminClient(config, logger=logger)


def _common(settings: KafkaSettings) -> Mapping[str, Any]:
    return {
        "client.id": f"statekeep-{settings.topic_prefix}",
        **settings.client,
        "bootstrap.servers": settings.servers,
        # A deleted topic would come back in the cluster's own form.
        "allow.auto.create.topics": False,
    }


@contextmanager
def _refused_settings(settings: KafkaSettings) -> Generator[None]:
    """Name the settings when the library does not take them; its own text may quote a secret.

    Raises:
        ConfigError: A setting below ``client.`` is unknown to the library, or of another form.
    """
    try:
        yield
    except KafkaException:
        keys = ",".join(sorted(settings.client))
        raise ConfigError(
            f"client library refuses a setting: servers={settings.servers} client_keys={keys}",
            key="backends.<backend>.client",
            hint="names and values are those of librdkafka's CONFIGURATION.md",
        ) from None


def _log_error(error: KafkaError) -> None:
    """Log it; the library goes on by itself, and calls fail by their own time-outs."""
    logger.debug("client reports an error: reason=%s", error.name())

"""What the errors of the client library mean for a caller."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    ConfigError,
    RetriableError,
    StateBackupError,
)

_FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001  # public names of the library
)
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._INVALID_ARG,  # noqa: SLF001
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.POLICY_VIOLATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
_REMEDIES: Final[Mapping[int, tuple[str | None, str]]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "kafka.max.message.bytes",
        "raise kafka.max.message.bytes, and max.message.bytes of the topic",
    ),
    KafkaError.INVALID_TIMESTAMP: (
        None,
        "set the clock of this machine, or message.timestamp.type=LogAppendTime of the topic",
    ),
}
"""The setting at fault, if it is one of ours, and what to do."""
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_DAMAGED: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError._BAD_MSG,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.INVALID_MSG,
    }
)


class ProducerFencedError(Exception):
    """Raised when another producer has taken the transactional id.

    Not a `StateBackupError`: who holds the id decides what it means.
    """


def explained(error: KafkaError, what: str) -> StateBackupError | ProducerFencedError:
    """Return the error of ours that an error of the library amounts to.

    Args:
        error: Of the library.
        what: What was tried, with its ``key=value`` facts.
    """
    code = error.code()
    text = f"{what} reason={error.name()}"
    if code in _FENCED:
        return ProducerFencedError(text)
    if code in _REMEDIES:
        key, hint = _REMEDIES[code]
        return ConfigError(text, key=key, hint=hint)
    if code in _REFUSED:
        return ConfigError(text, key="kafka.client")
    if code in _GONE:
        return BlobNotFoundError(text)
    if code in _DAMAGED:
        return CheckpointCorruptError(text)
    return RetriableError(text)


@contextmanager
def expected_topic() -> Generator[None]:
    """Take a topic that is unknown for one that not every node knows of yet.

    Raises:
        RetriableError: In place of `BlobNotFoundError`.
    """
    try:
        yield
    except BlobNotFoundError as exc:
        raise RetriableError(exc.blob_id) from exc


@contextmanager
def explained_errors(what: str) -> Generator[None]:
    """Turn what the library raises into errors of ours.

    Raises:
        ProducerFencedError: Another producer has taken the transactional id.
        ConfigError: The cluster refuses us.
        BlobNotFoundError: There is no such topic or partition.
        CheckpointCorruptError: An offset is out of range, or a record is damaged.
        RetriableError: Anything else: the cluster may answer later.
    """
    try:
        yield
    except KafkaException as exc:
        error: KafkaError = exc.args[0]
        raise explained(error, what) from exc

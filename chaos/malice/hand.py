"""The process that writes to servers as an attacker would: past the runtime, by plain clients.

``python -m chaos.malice.hand`` answers requests as `chaos.evidence.reader` does.
"""

import base64
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit

from chaos.evidence.reader import serve

_TIMEOUT_S: Final = 30
_CHUNK: Final = 1 << 24


@cache
def _hdfs(address: str) -> Any:  # noqa: ANN401 - no types
    import hdfs_native  # noqa: PLC0415 - only what is asked for is loaded

    return hdfs_native.Client(address)


def hdfs_write(address: str, root: str, name: str, data: str, zeros: int) -> None:
    """Put a file in the place of whatever has the name: bytes in Base64, and zeros behind them."""
    import hdfs_native  # noqa: PLC0415

    hdfs_delete(address, root, name)
    options = hdfs_native.WriteOptions(overwrite=True, create_parent=True)
    with _hdfs(address).create(f"{urlsplit(root).path.rstrip('/')}/{name}", options) as file:
        file.write(base64.b64decode(data))
        while zeros > 0:
            file.write(bytes(min(zeros, _CHUNK)))
            zeros -= _CHUNK


def hdfs_delete(address: str, root: str, name: str) -> None:
    """Delete a file, if it is there."""
    _hdfs(address).delete(f"{urlsplit(root).path.rstrip('/')}/{name}", recursive=True)


def hdfs_make_directory(address: str, root: str, name: str) -> None:
    """Put a directory in the place of whatever has the name."""
    hdfs_delete(address, root, name)
    _hdfs(address).mkdirs(f"{urlsplit(root).path.rstrip('/')}/{name}", create_parent=True)


def kafka_read_all(
    address: str, prefix: str
) -> list[tuple[str, int, list[tuple[int, str, str | None]]]]:
    """Return the committed records of all partitions of the topics whose names begin so.

    Each with its topic, its number and its records: offset, key and value in Base64.
    """
    from confluent_kafka import (  # noqa: PLC0415
        OFFSET_BEGINNING,
        Consumer,
        KafkaError,
        KafkaException,
        TopicPartition,
    )

    settings = {
        "bootstrap.servers": address,
        "group.id": "malice",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    found: dict[tuple[str, int], list[tuple[int, str, str | None]]] = {}
    try:
        for name, topic in consumer.list_topics(timeout=_TIMEOUT_S).topics.items():
            if name.startswith(prefix):
                found.update({(name, number): [] for number in topic.partitions})
        unread = set(found)
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in sorted(found)])
        while unread:
            message = consumer.poll(_TIMEOUT_S)
            if message is None:
                raise TimeoutError(prefix)
            place = message.topic() or "", message.partition() or 0
            error = message.error()
            if error is None:
                found[place].append(_record_of(message))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                unread.discard(place)
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    return [(*place, records) for place, records in sorted(found.items())]


def _record_of(message: Any) -> tuple[int, str, str | None]:  # noqa: ANN401 - no types
    value = message.value()
    text = None if value is None else base64.b64encode(value).decode()
    return message.offset() or 0, base64.b64encode(message.key() or b"").decode(), text


def kafka_write(
    address: str, topic: str, partition: int, records: list[tuple[str, str | None]]
) -> None:
    """Write records, keys and values in Base64, without any transaction."""
    from confluent_kafka import Producer  # noqa: PLC0415

    producer = Producer({"bootstrap.servers": address, "message.max.bytes": 8 << 20})
    for key, value in records:
        data = None if value is None else base64.b64decode(value)
        producer.produce(topic, data, base64.b64decode(key), partition)
    producer.flush(_TIMEOUT_S)


def kafka_cut(address: str, topic: str, partition: int, offset: int) -> None:
    """Delete the records before an offset."""
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    place = TopicPartition(topic, partition, offset)
    for done in _admin(address).delete_records([place]).values():
        done.result(_TIMEOUT_S)


def kafka_rewrite(address: str, topic: str, partitions: list[list[tuple[str, str | None]]]) -> None:
    """Delete a topic and make it anew, with these records in its partitions."""
    from confluent_kafka.admin import NewTopic  # noqa: PLC0415

    admin = _admin(address)
    for done in admin.delete_topics([topic], operation_timeout=_TIMEOUT_S).values():
        done.result(_TIMEOUT_S)
    for _ in range(50):  # the name is free a moment later
        new = NewTopic(topic, len(partitions), 1, config={"retention.ms": "-1"})
        try:
            for done in admin.create_topics([new]).values():
                done.result(_TIMEOUT_S)
            break
        except Exception as exc:
            if "TOPIC_ALREADY_EXISTS" not in str(exc):
                raise
    for number, records in enumerate(partitions):
        kafka_write(address, topic, number, records)


@cache
def _admin(address: str) -> Any:  # noqa: ANN401 - no types
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    return AdminClient({"bootstrap.servers": address})


_CALLS: Final[Mapping[str, Callable[..., object]]] = {
    "hdfs_delete": hdfs_delete,
    "hdfs_make_directory": hdfs_make_directory,
    "hdfs_write": hdfs_write,
    "kafka_cut": kafka_cut,
    "kafka_read_all": kafka_read_all,
    "kafka_rewrite": kafka_rewrite,
    "kafka_write": kafka_write,
}


if __name__ == "__main__":
    serve(_CALLS)

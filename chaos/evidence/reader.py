"""The process that reads what servers and databases hold: their libraries have threads, the harness forks.

``python -m chaos.evidence.reader`` answers requests, one JSON document a line, in their order.
"""

import base64
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_S = 30
_TEMPORARY = ".tmp-"


@cache
def _s3(endpoint: str) -> Any:  # noqa: ANN401 - the SDK makes its classes as it goes
    import boto3  # noqa: PLC0415 - only what is asked for is loaded

    return boto3.client("s3", endpoint_url=endpoint)


def s3_names(endpoint: str, root: str, prefix: str) -> list[str]:
    """Return the objects of ``s3://bucket/path`` below a prefix."""
    place = urlsplit(root)
    base = place.path.strip("/") + "/"
    pages = _s3(endpoint).get_paginator("list_objects_v2")
    found = pages.paginate(Bucket=place.netloc, Prefix=f"{base}{prefix}/")
    return [entry["Key"].removeprefix(base) for page in found for entry in page.get("Contents", ())]


def s3_unfinished(endpoint: str, root: str, prefix: str) -> list[str]:
    """Return what the uploads in parts below a prefix that have not ended are to become."""
    place = urlsplit(root)
    base = place.path.strip("/") + "/"
    pages = _s3(endpoint).get_paginator("list_multipart_uploads")
    found = pages.paginate(Bucket=place.netloc, Prefix=f"{base}{prefix}/")
    return [entry["Key"].removeprefix(base) for page in found for entry in page.get("Uploads", ())]


def s3_read(endpoint: str, root: str, name: str) -> str | None:
    """Return an object in Base64; None if there is none."""
    client, place = _s3(endpoint), urlsplit(root)
    key = f"{place.path.strip('/')}/{name}"
    try:
        answer = client.get_object(Bucket=place.netloc, Key=key)
    except client.exceptions.NoSuchKey:
        return None
    return base64.b64encode(answer["Body"].read()).decode()


@cache
def _hdfs(address: str) -> Any:  # noqa: ANN401 - no types
    import hdfs_native  # noqa: PLC0415

    return hdfs_native.Client(address)


def hdfs_names(address: str, root: str, prefix: str) -> list[str]:
    """Return the files below a directory; temporary ones do not count."""
    files, _ = _hdfs_tree(address, root, prefix)
    return [name for name in files if not name.rpartition("/")[2].startswith(_TEMPORARY)]


def hdfs_unfinished(address: str, root: str, prefix: str) -> list[str]:
    """Return what the temporary files below a directory were to become."""
    files, _ = _hdfs_tree(address, root, prefix)
    split = [name.rpartition("/") for name in files]
    return [
        f"{directory}/{name.removeprefix(_TEMPORARY).partition('-')[2]}"
        for directory, _, name in split
        if name.startswith(_TEMPORARY)
    ]


def hdfs_empty_directories(address: str, root: str, prefix: str) -> list[str]:
    """Return the directories below one in which nothing is."""
    files, directories = _hdfs_tree(address, root, prefix)
    parents = {name.rpartition("/")[0] for name in (*files, *directories)}
    return [name for name in directories if name not in parents]


def _hdfs_tree(address: str, root: str, prefix: str) -> tuple[list[str], list[str]]:
    """Return the files and the directories below a directory."""
    base = urlsplit(root).path.rstrip("/") + "/"
    try:
        found = list(_hdfs(address).list_status(f"{base}{prefix}", recursive=True))
    except FileNotFoundError:
        return [], []
    names = [(entry.isdir, urlsplit(entry.path).path.removeprefix(base)) for entry in found]
    return [n for is_dir, n in names if not is_dir], [n for is_dir, n in names if is_dir]


def hdfs_read(address: str, root: str, name: str) -> str | None:
    """Return a file in Base64; None if there is none."""
    try:
        with _hdfs(address).read(f"{urlsplit(root).path.rstrip('/')}/{name}") as file:
            return base64.b64encode(file.read()).decode()
    except FileNotFoundError:
        return None


def kafka_read(address: str, topic: str, partition: int) -> list[tuple[int, str, str | None]]:
    """Return the committed records of a partition: offset, key and value in Base64."""
    from confluent_kafka import (  # noqa: PLC0415
        OFFSET_BEGINNING,
        Consumer,
        KafkaError,
        KafkaException,
        TopicPartition,
    )

    settings = {
        "bootstrap.servers": address,
        "group.id": "chaos",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer(settings)
    found: list[tuple[int, str, str | None]] = []
    try:
        topics = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics
        if topics[topic].error is not None or partition not in topics[topic].partitions:
            return found
        # Where it begins the library finds out by itself, also while a node comes back.
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(_TIMEOUT_S)
            if message is None:
                raise TimeoutError(topic)
            error = message.error()
            if error is None:
                key, value = message.key() or b"", message.value()
                text = None if value is None else base64.b64encode(value).decode()
                found.append((message.offset() or 0, base64.b64encode(key).decode(), text))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                return found
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()


def database_read(directory: str) -> list[tuple[str, str]]:
    """Return keys and values of a RocksDB database, in Base64."""
    from rocksdict import AccessType, Options, Rdict  # noqa: PLC0415

    database = Rdict(directory, Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        return [(_text(key), _text(value)) for key, value in database.items()]
    finally:
        database.close()


def _text(data: Any) -> str:  # noqa: ANN401 - bytes, in raw mode
    return base64.b64encode(data).decode()


_CALLS: Mapping[str, Callable[..., object]] = {
    "s3_names": s3_names,
    "s3_read": s3_read,
    "s3_unfinished": s3_unfinished,
    "hdfs_empty_directories": hdfs_empty_directories,
    "hdfs_names": hdfs_names,
    "hdfs_unfinished": hdfs_unfinished,
    "hdfs_read": hdfs_read,
    "kafka_read": kafka_read,
    "database_read": database_read,
}


def serve(calls: Mapping[str, Callable[..., object]]) -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"found": calls[name](*arguments)}
        except Exception as exc:  # noqa: BLE001 - passed on to the caller
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(_CALLS)

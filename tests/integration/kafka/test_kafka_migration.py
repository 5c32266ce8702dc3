"""The walk-through in docs/how-to/move-state.md from Kafka to a blob store, and from a blob store to Kafka."""

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from migration_kit import STEPS, Reader
from servers.kafka import KafkaBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BLOB = {"factory": "blob", "uri": "file:///srv/{name}"}


def kafka(broker: KafkaBroker) -> dict[str, str]:
    """A place of its own in the cluster."""
    return {
        "factory": "kafka",
        "bootstrap.servers": broker.servers,
        "topic.prefix": f"move-{uuid.uuid4().hex[:12]}",
    }


def delete_topics(broker: KafkaBroker, prefix: str) -> None:
    """Delete what a place holds."""
    admin = AdminClient({"bootstrap.servers": broker.servers})
    topics = [name for name in admin.list_topics().topics if name.startswith(prefix)]
    assert topics
    for future in admin.delete_topics(topics).values():
        future.result()


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reader:
    return Reader(tmp_path, monkeypatch, capsys, {})


def test_the_page_leads_from_kafka_to_a_blob_store(
    reader: Reader, broker: KafkaBroker, tmp_path: Path
) -> None:
    reader.places = {"old": kafka(broker), "new": BLOB}
    reader.follow("A job to try it with", *STEPS)
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def test_the_page_leads_from_a_blob_store_to_kafka(
    reader: Reader, broker: KafkaBroker, tmp_path: Path
) -> None:
    reader.places = {"old": BLOB, "new": kafka(broker)}
    reader.follow("A job to try it with", *STEPS)
    (tmp_path / "old").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def test_a_stopped_job_moves_from_kafka_by_one_command(
    reader: Reader, broker: KafkaBroker, tmp_path: Path
) -> None:
    reader.places = {"old": kafka(broker), "new": kafka(broker)}
    reader.follow("A job to try it with", *STEPS, "A job that is stopped anyway")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def test_a_stopped_job_moves_to_kafka_by_one_command(
    reader: Reader, broker: KafkaBroker, tmp_path: Path
) -> None:
    reader.places = {"old": BLOB, "new": BLOB, "third": kafka(broker)}
    reader.follow("A job to try it with", *STEPS, "A job that is stopped anyway")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back_to_kafka(
    reader: Reader, broker: KafkaBroker, tmp_path: Path, step: int
) -> None:
    reader.places = {"old": kafka(broker), "new": BLOB}
    reader.follow("A job to try it with")
    reader.go_back(step)
    (tmp_path / "new").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back_from_kafka_to_a_blob_store(
    reader: Reader, broker: KafkaBroker, tmp_path: Path, step: int
) -> None:
    reader.places = {"old": BLOB, "new": kafka(broker)}
    reader.follow("A job to try it with")
    reader.go_back(step)
    delete_topics(broker, reader.places["new"]["topic.prefix"])
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")

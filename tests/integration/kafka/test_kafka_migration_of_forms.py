"""The walk-through in docs/migration.md from form 1 to form 2 of checkpoints, with a topic on a broker."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_kit import KAFKA
from migration_kit import Reader
from servers.kafka import KafkaBroker

from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.checkpoint.checkpoint_manager import CheckpointForms
from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName
from statekeep.clock import SystemClock
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NUMBERS = SystemStreamPartition("example", "numbers", 0)
Newest = Callable[..., int | None]


@pytest.fixture
def job_id() -> str:
    """An instance of the page's job that has no topic yet."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def newest(broker: KafkaBroker, job_id: str) -> Newest:
    """The number that somebody finds who reads these forms from the topic."""
    factory = KafkaBackendFactory(KAFKA, {"bootstrap.servers": broker.servers})

    async def read(forms: CheckpointForms) -> int | None:
        manager = factory.checkpoint_manager(
            "counter", job_id, forms, SerialExecutor(), SystemClock()
        )
        try:
            found = await manager.read_last(TaskName("Partition 0"))
        finally:
            await manager.close()
        return None if found is None else int(found.input_offsets[NUMBERS])

    return lambda *versions: asyncio.run(read(CheckpointForms(read_versions=versions)))


@pytest.fixture
def reader(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broker: KafkaBroker,
    job_id: str,
) -> Reader:
    places = {
        "old": {"factory": "blob", "uri": "file:///srv/{name}"},
        "topic": {"factory": "kafka", "bootstrap.servers": broker.servers},
    }
    reader = Reader(tmp_path, monkeypatch, capsys, places)
    reader.own = {"job.id": job_id}
    reader.follow("A job to try it with")
    return reader


def test_each_step_leaves_the_forms_on_the_broker_that_the_page_says(
    reader: Reader, newest: Newest, tmp_path: Path
) -> None:
    reader.follow("Form 1 to form 2 of checkpoints")
    assert (newest(1), newest(2)) == (19, None)
    reader.follow("Form 1 to form 2, step 1")
    assert (newest(1), newest(2)) == (29, 29)
    reader.follow("Form 1 to form 2, step 2")
    assert (newest(1), newest(2)) == (29, 39)
    reader.follow("Form 1 to form 2, the way back")
    assert (newest(1), newest(2)) == (59, 49)
    assert newest(2, 1) == 49
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")

"""A broker that is down for several commits while its backend is listed as optional."""

import logging
import shutil
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest
from servers.kafka import KafkaBroker, kafka_broker
from servers.process import required

from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TASK = TaskName("Partition 0")
INPUT = SystemStreamPartition("kafka", "clicks", 0)


@pytest.fixture
def mortal() -> Generator[KafkaBroker]:
    logging.getLogger("statekeep.backends.kafka.clients").setLevel(logging.CRITICAL + 1)
    with required(kafka_broker()) as started:
        yield started


def config(broker: KafkaBroker, root: Path, **more: str) -> Config:
    settings = {
        "job.name": root.name,
        "job.logged.store.base.dir": str(root / "local"),
        "job.log.backend": "blob",
        "stores.backup.factories": "blob,kafka",
        "stores.backup.optional": "kafka",
        "backends.blob.uri": (root / "blobs").as_uri(),
        "kafka.bootstrap.servers": broker.servers,
        "kafka.timeout.ms": "3s",
        "task.commit.optional.timeout.ms": "20s",
        "kafka.retry.max.duration.ms": "1s",
    }
    return load_dict(settings | {key.replace("__", "."): value for key, value in more.items()})


async def commit(task: Task, number: int) -> set[str]:
    """Change some keys, commit, and return which backends have a marker."""
    store = task.store("s")
    for key in range(number, 1000, 7):
        store.put(b"%d" % key, b"%d" % number)
    store.delete(b"%d" % (number * 3))
    made = await (await task.commit({INPUT: str(number)}, force=True)).wait()
    assert made is not None
    await task.wait()
    return set(made.state_markers)


@pytest.mark.asyncio
async def test_an_optional_broker_is_left_out_while_it_is_down_and_whole_once_it_is_back(
    mortal: KafkaBroker, tmp_path: Path
) -> None:
    root = tmp_path / uuid.uuid4().hex
    async with Container(config(mortal, root)) as container:
        task = await container.start_task(TASK, ["s"])
        assert await commit(task, 1) == {"blob", "kafka"}
        mortal.kill()
        for number in (2, 3, 4):
            assert await commit(task, number) == {"blob"}
        assert task.metrics.counters["optional-upload-failures"] == 3
        mortal.start()
        assert await commit(task, 5) == {"blob", "kafka"}
        mortal.kill()
        assert await commit(task, 6) == {"blob"}
    async with Container(config(mortal, root)) as container:  # while it is down
        task = await container.start_task(TASK, ["s"])
        mortal.start()
        assert await commit(task, 7) == {"blob", "kafka"}
        expected = dict(task.store("s").scan())

    shutil.rmtree(root / "local")
    kafka_alone = {"stores__restore__factories": "kafka", "stores__backup__optional": ""}
    async with Container(config(mortal, root, **kafka_alone)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "kafka"}
        assert dict(task.store("s").scan()) == expected
        assert task.input_offsets == {INPUT: "7"}

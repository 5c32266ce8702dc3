"""A program in plain Python that keeps state, log and checkpoints in Kafka alone."""

import shutil
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from servers.kafka import KafkaBroker

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

INPUT = SystemStreamPartition("kafka", "clicks.v1", 0)
TASK = "Partition 0"


def config(broker: KafkaBroker, root: Path, **more: str) -> Config:
    return load_dict(
        {
            "job.name": root.name.replace("_", "-"),
            "job.logged.store.base.dir": root / "local",
            "stores.backup.factories": "kafka",
            "kafka.bootstrap.servers": broker.servers,
            "kafka.topic.prefix": root.parent.name,
            **{name.replace("__", "."): value for name, value in more.items()},
        },
        "test",
    )


async def put_and_commit(task: Task, text: bytes, offset: int) -> None:
    task.store("s").put(b"k", text)
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / uuid.uuid4().hex


@pytest.mark.asyncio
async def test_a_task_goes_on_from_kafka_alone(broker: KafkaBroker, root: Path) -> None:
    async with Container(config(broker, root)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", 1)
        await put_and_commit(task, b"two", 2)
        task.store("s").put(b"k", b"never committed")
    shutil.rmtree(root / "local")
    async with Container(config(broker, root)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "kafka"}
        assert task.restored.failures == ()
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"two", "2")


@pytest.mark.asyncio
async def test_with_the_changelog_gone_the_other_backend_restores_and_fills_it_again(
    broker: KafkaBroker, root: Path
) -> None:
    both = {
        "stores__backup__factories": "kafka,files",
        "backends__files__factory": "blob",
        "backends__files__uri": (root / "files").as_uri(),
    }
    async with Container(config(broker, root, **both)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", 1)
    admin = AdminClient({"bootstrap.servers": broker.servers})
    names = admin.list_topics(timeout=10).topics
    (changelog,) = [n for n in names if root.name in n and n.endswith(".changelog")]
    for future in admin.delete_topics([changelog]).values():
        future.result()
    shutil.rmtree(root / "local")
    async with Container(config(broker, root, **both)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "files"}
        await put_and_commit(task, b"two", 2)
    shutil.rmtree(root / "local")
    async with Container(config(broker, root, **both)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "kafka"}
        assert task.store("s").get(b"k") == b"two"


@pytest.mark.asyncio
async def test_more_replicas_than_nodes_are_refused_at_the_start(
    broker: KafkaBroker, root: Path
) -> None:
    with pytest.raises(ConfigError, match="nodes=1 replicas=3"):
        async with Container(config(broker, root, kafka__replication__factor="3")):
            pass


@pytest.mark.asyncio
async def test_a_cluster_that_does_not_answer_is_refused_at_the_start(
    broker: KafkaBroker, root: Path
) -> None:
    nowhere = {"kafka__bootstrap__servers": "127.0.0.1:1", "kafka__timeout__ms": "1s"}
    with pytest.raises(ConfigError, match="unreachable"):
        async with Container(config(broker, root, **nowhere)):
            pass

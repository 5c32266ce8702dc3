"""Samza's checkpoint topic on a real broker, and a job of Samza that goes on here."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kafka_kit import KAFKA, read_partition
from servers.kafka import KafkaBroker

from statekeep.backends.kafka.checkpoint_topic import (
    checkpoint_key,
    checkpoint_topic,
)
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoint_manager import CheckpointForms, CheckpointManager
from statekeep.checkpoint.checkpoints import (
    CheckpointV1,
    CheckpointV2,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2, encode_checkpoint_v1
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import CheckpointCorruptError, RestoreFailedError
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TASK = TaskName("Partition 0")
CLICKS = SystemStreamPartition("kafka", "page.clicks", 0)
MINUTE = 60_000
NewManager = Callable[..., CheckpointManager]


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest_asyncio.fixture
async def new_manager(broker: KafkaBroker, name: str) -> AsyncGenerator[NewManager]:
    async with AsyncExitStack() as stack:
        settings = {"bootstrap.servers": broker.servers, "max.message.bytes": "1000000"}
        factory = KafkaBackendFactory(KAFKA, settings)

        def make(
            *, write: tuple[int, ...] = (1, 2), read: tuple[int, ...] = (2, 1)
        ) -> CheckpointManager:
            forms = CheckpointForms(write, read, 10 * MINUTE)
            made = factory.checkpoint_manager(name, "1", forms, SerialExecutor(), SystemClock())
            stack.push_async_callback(made.close)
            return made

        yield make


def checkpoint(offset: str) -> CheckpointV2:
    return CheckpointV2(CheckpointId(5, 6), {CLICKS: offset}, {})


def put(broker: KafkaBroker, topic: str, *records: tuple[bytes | None, bytes | None, int]) -> None:
    """Write records with times of their own, as Samza or somebody else."""
    producer = Producer({"bootstrap.servers": broker.servers})
    for key, value, time_ms in records:
        producer.produce(topic, value, key, 0, timestamp=time_ms)
    producer.flush()


def v1(offset: str) -> bytes:
    return encode_checkpoint_v1(CheckpointV1({CLICKS: offset}))


def v2(offset: str) -> bytes:
    return json.dumps(
        {
            "checkpoint-id": "5-6",
            "input-offsets": {"kafka.page.clicks.0": offset},
            "state-checkpoint-markers": {},
            "version": 2,
        }
    ).encode()


@pytest.mark.asyncio
async def test_both_forms_stand_under_keys_of_their_own(
    broker: KafkaBroker, name: str, new_manager: NewManager
) -> None:
    manager = new_manager()
    assert await manager.read_last(TASK) is None
    resource = ConfigResource(ResourceType.TOPIC, checkpoint_topic(name, "1"))
    admin = AdminClient({"bootstrap.servers": broker.servers})
    assert (
        admin.describe_configs([resource])[resource].result()["cleanup.policy"].value == "compact"
    )
    await manager.write(TASK, checkpoint("7"))
    await manager.write(TASK, checkpoint("8"))
    records = list(read_partition(broker.servers, checkpoint_topic(name, "1"), 0))
    assert [record.key for record in records] == 2 * [checkpoint_key(TASK, n) for n in (1, 2)]
    read = decode_checkpoint_v2(records[-1].value or b"", "topic")
    assert read == checkpoint("8")
    assert await manager.read_last(TASK) == checkpoint("8")
    assert await manager.read_last(TaskName("Partition 1")) is None


@pytest.mark.asyncio
async def test_a_stale_form_loses_and_unknown_ones_are_left_out(
    broker: KafkaBroker,
    name: str,
    new_manager: NewManager,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, old, new = checkpoint_topic(name, "1"), checkpoint_key(TASK, 1), checkpoint_key(TASK, 2)
    admin = AdminClient({"bootstrap.servers": broker.servers})
    config = {"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result()
    manager = new_manager()
    assert await manager.read_last(TASK) is None
    unknown = new.replace(b"checkpoint-v2", b"checkpoint-v3")
    put(broker, topic, (new, v2("2"), 1), (old, v1("1"), 10 * MINUTE), (unknown, b"?", 2))
    with caplog.at_level(logging.WARNING, "statekeep"):
        assert await manager.read_last(TASK) == checkpoint("2")
    assert "type=checkpoint-v3" in caplog.text
    put(broker, topic, (old, v1("11"), 12 * MINUTE))
    chosen = await new_manager().read_last(TASK)
    assert chosen is not None
    assert chosen.input_offsets == {CLICKS: "11"}
    put(broker, topic, (old, None, 13 * MINUTE))
    assert await manager.read_last(TASK) == checkpoint("2")
    assert await new_manager(read=(1,)).read_last(TASK) is None


@pytest.mark.asyncio
async def test_in_a_topic_of_ours_a_form_is_as_old_as_the_broker_says(
    broker: KafkaBroker, name: str, new_manager: NewManager
) -> None:
    manager = new_manager()
    assert await manager.read_last(TASK) is None
    newer, older = checkpoint_key(TASK, 2), checkpoint_key(TASK, 1)
    clock_ahead_ms = 100 * MINUTE
    put(broker, checkpoint_topic(name, "1"), (newer, v2("2"), 1), (older, v1("1"), clock_ahead_ms))
    assert await manager.read_last(TASK) == checkpoint("2")


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [b"", b"{}", b"Partition 0"])
async def test_a_record_that_is_no_checkpoint_is_named(
    broker: KafkaBroker, name: str, new_manager: NewManager, key: bytes
) -> None:
    manager = new_manager()
    assert await manager.read_last(TASK) is None
    put(broker, checkpoint_topic(name, "1"), (key, b"{}", 1))
    with pytest.raises(CheckpointCorruptError, match="offset=0"):
        await manager.read_last(TASK)


def settings_of(broker: KafkaBroker, root: Path, name: str) -> dict[str, str]:
    return {
        "job.name": name,
        "job.logged.store.base.dir": str(root / "local"),
        "stores.s.changelog": f"kafka.{name}-changelog",
        "kafka.bootstrap.servers": broker.servers,
        "kafka.max.message.bytes": "1000000",
        "task.checkpoint.factory": "kafka",
        "task.checkpoint.write.versions": "1,2",
    }


def config(broker: KafkaBroker, root: Path, name: str, **more: str) -> Config:
    own = {key.replace("__", "."): value for key, value in more.items()}
    return load_dict(settings_of(broker, root, name) | own, "test")


def samza_job(broker: KafkaBroker, name: str, *, age_ms: int = 0) -> dict[bytes, bytes]:
    """Leave what a job of Samza leaves: a changelog with an uncommitted end, and checkpoints."""
    changelog, topic = f"{name}-changelog", checkpoint_topic(name, "1")
    admin = AdminClient({"bootstrap.servers": broker.servers})
    lag = {"cleanup.policy": "compact", "min.compaction.lag.ms": "14400000"}
    topics = [NewTopic(changelog, 1, 1, config=lag), NewTopic(topic, 1, 1, config=lag)]
    for future in admin.create_topics(topics).values():
        future.result()
    put(broker, changelog, (b"a", b"1", 1), (b"b", b"1", 1), (b"a", None, 2), (b"c", b"98", 3))
    made = CheckpointId(time.time_ns() // 1_000_000 - age_ms, 6).serialize()
    ssp = SystemStreamPartition("kafka", changelog, 0)
    first = encode_checkpoint_v1(CheckpointV1({CLICKS: "40", ssp: f"{made}:1"}))
    put(broker, topic, (checkpoint_key(TASK, 1), first, 1))
    samza_commit(broker, name, made, end=2)
    return {b"b": b"1"}


def samza_commit(broker: KafkaBroker, name: str, made: str, *, end: int) -> None:
    """Write a checkpoint of form 2 with this id, and this offset of the changelog."""
    stream = f"{name}-changelog"
    marker = {
        "version": 1,
        "changelog-ssp": {"system": "kafka", "partition": 0, "stream": stream, "keyBucket": -1},
        "changelog-offset": str(end),
    }
    factory = "org.apache.samza.storage.KafkaChangelogStateBackendFactory"
    data = json.loads(v2("41")) | {
        "checkpoint-id": made,
        "state-checkpoint-markers": {factory: {"s": json.dumps(marker)}},
    }
    put(
        broker,
        checkpoint_topic(name, "1"),
        (checkpoint_key(TASK, 2), json.dumps(data).encode(), 1),
    )


@pytest.mark.asyncio
async def test_a_job_of_samza_goes_on_here_from_its_last_checkpoint(
    broker: KafkaBroker, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = samza_job(broker, name)
    async with Container(config(broker, tmp_path, name)) as container:
        task = await container.start_task(TASK, ["s"])
        assert dict(task.store("s").scan()) == state
        assert task.input_offsets == {CLICKS: "41"}
        assert "not verified" in caplog.text
        task.store("s").put(b"d", b"2")
        await (await task.commit({CLICKS: "50"}, force=True)).wait()
    shutil.rmtree(tmp_path / "local")
    async with Container(config(broker, tmp_path, name)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.failures == ()
        assert dict(task.store("s").scan()) == {**state, b"d": b"2"}
        assert task.input_offsets == {CLICKS: "50"}


@pytest.mark.asyncio
async def test_a_job_of_samza_that_reads_form_1_goes_on_from_that(
    broker: KafkaBroker, name: str, tmp_path: Path
) -> None:
    samza_job(broker, name)
    only_first = config(broker, tmp_path, name, task__checkpoint__read__versions="1")
    async with Container(only_first) as container:
        task = await container.start_task(TASK, ["s"])
        assert dict(task.store("s").scan()) == {b"a": b"1", b"b": b"1"}
        assert task.input_offsets == {CLICKS: "40"}


@pytest.mark.asyncio
async def test_each_commit_is_there_for_samza_to_read(
    broker: KafkaBroker, name: str, tmp_path: Path, new_manager: NewManager
) -> None:
    async with Container(config(broker, tmp_path, name)) as container:
        task = await container.start_task(TASK, ["s"])
        task.store("s").put(b"k", b"1")
        await (await task.commit({CLICKS: "7"}, force=True)).wait()
    found = await new_manager().read_last(TASK)
    assert found is not None
    assert found.input_offsets == {CLICKS: "7"}
    marker = json.loads(found.markers_of(KAFKA)["s"])  # type: ignore[index]  # a store's name
    records = {
        r.key: r.value for r in read_partition(broker.servers, checkpoint_topic(name, "1"), 0)
    }
    legacy = json.loads(records[checkpoint_key(TASK, 1)] or b"")
    ends = {entry["stream"]: entry["offset"] for entry in legacy.values()}
    end = f"{found.checkpoint_id.serialize()}:{marker['changelog-offset']}"
    assert ends == {"page.clicks": "7", f"{name}-changelog": end}


@pytest.mark.asyncio
async def test_a_samza_job_whose_changelog_is_gone_does_not_start_empty(
    broker: KafkaBroker, name: str, tmp_path: Path
) -> None:
    samza_job(broker, name)
    admin = AdminClient({"bootstrap.servers": broker.servers})
    for future in admin.delete_topics([f"{name}-changelog"]).values():
        future.result()
    async with Container(config(broker, tmp_path, name)) as container:
        with pytest.raises(RestoreFailedError):
            await container.start_task(TASK, ["s"])


def reset(broker: KafkaBroker, root: Path, name: str) -> None:
    """Give the command that lets the job start anew, with settings that leave out Samza's topic."""
    settings = settings_of(broker, root, name)
    lines = [f"{k}={value}" for k, value in settings.items() if k != "task.checkpoint.factory"]
    (root / "job.properties").write_text("\n".join(lines), encoding="utf-8")
    of_job = ["--task", TASK, "--config", str(root / "job.properties")]
    command = [sys.executable, "-m", "statekeep.cli", "reset", "--yes", *of_job]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.asyncio
async def test_a_samza_job_whose_changelog_may_be_compacted_starts_once_it_has_committed_again(
    broker: KafkaBroker, name: str, tmp_path: Path
) -> None:
    state = samza_job(broker, name, age_ms=4 * 60 * MINUTE)
    async with Container(config(broker, tmp_path, name)) as container:
        with pytest.raises(RestoreFailedError) as caught:
            await container.start_task(TASK, ["s"])
        assert "commit under Samza" in caught.value.hints[0]
    samza_commit(broker, name, CheckpointId.at(time.time_ns()).serialize(), end=3)
    await asyncio.to_thread(reset, broker, tmp_path, name)
    async with Container(config(broker, tmp_path, name)) as container:
        task = await container.start_task(TASK, ["s"])
        assert dict(task.store("s").scan()) == {**state, b"c": b"98"}
        task.store("s").put(b"d", b"2")
        await (await task.commit({CLICKS: "50"}, force=True)).wait()

"""Makes the golden topics on a broker of its own: ``python tests/golden_topics_maker.py DIRECTORY``.

For a form of records that is new, into a folder that is new: what stands in the old ones stays.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from golden_topics_kit import TopicFile, TopicRecord

from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.serde import AttemptEntry, FailedTask, FinishedTask, encode_attempt_entry
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.inspection.job import open_log_storage
from statekeep.inspection.removal import reset_job
from statekeep.testing.executor import SerialExecutor

KAFKA: Final = BackendName("kafka")
TASK: Final = TaskName("Partition 0")
INPUT: Final = SystemStreamPartition("kafka", "clicks.v1", 0)
STORES: Final = ("counts", "unused")
"""Nothing is ever written to the second one."""
COMMITS: Final[Mapping[str, int]] = {"orders": 30, "plain": 4, "ended": 2}
"""By job; of ``orders`` so many that its log was trimmed."""
ENTRIES: Final[Mapping[str, AttemptEntry]] = {
    "3-4/Partition 0": FailedTask("snapshot", "not there any more"),
    "3-5/Partition 0": FinishedTask(
        CheckpointV2(
            CheckpointId(1_700_000_000_123, 456_789),
            {INPUT: "7"},
            {KAFKA: {StoreName("state"): Marker("as of a changelog")}},
        ),
        VersionId.parse("18_5f0c3a9be1d24477"),
        61_204,
        212,
        CheckpointId(1_700_000_000_001, 0),
    ),
    "3-5/Partition 1": FailedTask("upload", "no space left: root=file:///srv/backups"),
}
"""Of two attempts of a job on Spark, the first of which is then deleted."""

DropBefore = Callable[[str, int], None]


def config_of(job: str, servers: str, local: Path, **more: str) -> Config:
    """Return the settings of one of the jobs, and of more, whose dots are ``__``."""
    settings = {
        "job.name": job,
        "job.logged.store.base.dir": str(local),
        "stores.backup.factories": KAFKA,
        "kafka.bootstrap.servers": servers,
        "kafka.timeout.ms": "10s",
        "checkpoint.retain.commits": "2",
        "task.commit.ms": "0",
    }
    if job == "plain":
        settings |= {
            "kafka.transactional": "false",
            "stores.counts.changelog": "kafka.plain-counts",
            "stores.unused.changelog": "kafka.plain-unused",
        }
    return load_dict(settings | {key.replace("__", "."): value for key, value in more.items()})


async def make_topics(servers: str, directory: Path, drop_before: DropBefore) -> list[str]:
    """Run the jobs; return the names of the topics.

    Args:
        servers: Of a cluster without topics of these names.
        directory: For local state and for what the stores hold in the end, ``<job>.json``.
        drop_before: Lets the records of a topic go that are below an offset.
    """
    for job, commits in COMMITS.items():
        config, content = config_of(job, servers, directory / "local"), dict[bytes, bytes]()
        await _commit(config, content, range(1, commits // 2 + 1))
        if job == "plain":
            drop_before("plain-counts", 2)
        await _commit(config, content, range(commits // 2 + 1, commits + 1))
        if job == "ended":
            async with open_log_storage(config, SystemClock(), task=TASK) as storage:
                await reset_job(storage, config, owner="golden:1", is_dropping_savepoints=False)
            content = {}
        text = {key.decode(): value.decode() for key, value in sorted(content.items())}
        (directory / f"{job}.json").write_text(json.dumps(text, indent=0) + "\n", encoding="utf-8")
    await _write_entries(servers)
    return [
        *(f"kafka.{job}.main.{store}.changelog" for job in ("orders", "ended") for store in STORES),
        *(f"plain-{store}" for store in STORES),
        *(f"kafka.{job}.main.Partition_5f0.job-log" for job in COMMITS),
        "kafka.orders.main.Partition_5f0.checkpoints",
        "kafka.on-spark.checkpoints",
    ]


async def _commit(config: Config, content: dict[bytes, bytes], numbers: range) -> None:
    """Start the job, and make a commit for each number."""
    async with Container(config) as container:
        task = await container.start_task(TASK, STORES)
        for number in numbers:
            changes: dict[bytes, bytes | None] = {
                b"key-%d" % (number % 7): b"value of commit %d" % number,
                b"key-%d" % (number % 7 + 1): None,
            }
            task.store(STORES[0]).write(changes)
            for key, value in changes.items():
                if value is None:
                    content.pop(key, None)
                else:
                    content[key] = value
            await (await task.commit({INPUT: str(number)}, force=True)).wait()


async def _write_entries(servers: str) -> None:
    factory = KafkaBackendFactory(KAFKA, {"bootstrap.servers": servers})
    store = factory.checkpoint_store("on-spark", SerialExecutor(), SystemClock())
    try:
        for key, entry in ENTRIES.items():
            attempt, _, task = key.partition("/")
            await store.write(attempt, TaskName(task), encode_attempt_entry(entry))
        await store.delete("3-4")
    finally:
        await store.close()


def record(servers: str, topic: str) -> TopicFile:
    """Return what is committed in the first partition of a topic."""
    cluster = Cluster(KafkaSettings.parse(KAFKA, {"bootstrap.servers": servers}))
    partition = ChangelogPartition(topic, 0)
    start, end = (
        cluster.start_offsets([partition])[partition],
        cluster.end_offsets([partition])[partition],
    )
    found = TopicFile(topic, cluster.describe([topic])[topic].topic_id, start, end, [])
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "golden",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    records: list[TopicRecord] = []
    try:
        while (message := consumer.poll(10)) is not None and message.error() is None:
            headers = dict(message.headers() or ()).items()
            records.append(
                TopicRecord(
                    message.offset() or 0,
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple((name, as_bytes(value)) for name, value in headers),
                )
            )
    finally:
        consumer.close()
    return replace(found, records=records)


def as_bytes(value: bytes | str | None) -> bytes | None:
    """Return the value of a header as it was sent."""
    return value.encode() if isinstance(value, str) else value


def drop_before(servers: str, topic: str, offset: int) -> None:
    """Let the oldest records of a compacted topic go."""
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    cluster = Cluster(KafkaSettings.parse(KAFKA, {"bootstrap.servers": servers}))
    # A topic that is only compacted does not let itself be cut.
    for policy in ("delete", "compact"):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in client.incremental_alter_configs([resource]).values():
            future.result()
        if policy == "delete":
            cluster.delete_before(ChangelogPartition(topic, 0), offset)


def main() -> None:
    """Start a broker and fill a directory."""
    from servers.kafka import kafka_broker  # noqa: PLC0415 - who reads the files needs no broker

    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    with kafka_broker() as broker, tempfile.TemporaryDirectory() as scratch:
        directory, servers = Path(scratch), broker.servers
        topics = asyncio.run(
            make_topics(servers, directory, lambda *args: drop_before(servers, *args))
        )
        for topic in topics:
            record(servers, topic).write(target / f"{topic}.jsonl")
        for path in directory.glob("*.json"):
            (target / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()

"""A program in plain Python that keeps state, log and checkpoints in Kafka alone."""

import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka_kit import ChangelogJob, read_partition
from servers.kafka import KafkaBroker
from typing_extensions import override

from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.writer import ChangelogWriter
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import (
    CheckpointCorruptError,
    CommitFailedError,
    ConfigError,
    RetriableError,
)
from statekeep.events import Event, EventSource, Listener, RequestDone
from statekeep.stores.delta import Change
from statekeep.testing.versions import STORE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

INPUT = SystemStreamPartition("kafka", "clicks.v1", 0)
TASK = "Partition 0"
KIT_TASK = "Partition 2"
"""The task of `kafka_kit.ChangelogJob`, whose store is `STORE`."""


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
        "kafka__timeout__ms": "5s",
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
    with pytest.raises(RetriableError, match="does not answer"):
        async with Container(config(broker, root, **nowhere)):
            pass


def kit_config(broker: KafkaBroker, root: Path, **more: str) -> Config:
    """Name topics as a `ChangelogJob` of the root's name does, which looks into them."""
    return config(broker, root, kafka__topic__prefix="kafka", **more)


async def commit_once(settings: Config, key: bytes, offset: int) -> Mapping[str, str]:
    """Start the task, commit one more key, and return what its store was restored from."""
    async with Container(settings) as container:
        task = await container.start_task(KIT_TASK, [STORE])
        task.store(STORE).put(key, b"value of %s" % key)
        await (await task.commit({INPUT: str(offset)}, force=True)).wait()
        return {str(store): source for store, source in task.restored.sources.items()}


@pytest.mark.asyncio
async def test_a_marker_that_was_found_bad_is_never_again_source_or_base(
    broker: KafkaBroker, root: Path
) -> None:
    files = {"backends__files__factory": "blob", "backends__files__uri": (root / "f").as_uri()}
    both = kit_config(broker, root, stores__backup__factories="kafka,files", **files)
    await commit_once(both, b"a", 1)
    await commit_once(both, b"b", 2)
    # The newest record stays, so that nothing but its content says what the changelog lacks.
    ChangelogJob(broker.servers, root, root.name).delete_records_before(2)
    for failed in (["kafka"], []):
        shutil.rmtree(root / "local")
        async with Container(both) as container:
            task = await container.start_task(KIT_TASK, [STORE])
            assert task.restored.sources == {STORE: "files"}
            assert [failure.backend for failure in task.restored.failures] == failed
    await commit_once(both, b"c", 3)
    shutil.rmtree(root / "local")
    alone = kit_config(
        broker,
        root,
        stores__backup__factories="kafka,files",
        stores__restore__factories="kafka",
        **files,
    )
    async with Container(alone) as container:
        task = await container.start_task(KIT_TASK, [STORE])
        assert (task.restored.sources, task.restored.failures) == ({STORE: "kafka"}, ())
        assert [key for key, _ in task.store(STORE).scan()] == [b"a", b"b", b"c"]


@pytest.mark.asyncio
async def test_with_the_newest_records_damaged_a_task_goes_on_from_an_older_commit(
    broker: KafkaBroker, root: Path
) -> None:
    settings, job = kit_config(broker, root), ChangelogJob(broker.servers, root, root.name)
    await commit_once(settings, b"a", 1)
    await commit_once(settings, b"b", 2)
    path = broker.partition_directory(f"{job.topic}-2") / f"{0:020d}.log"
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"value of b"))
        file.write(b"V")
    shutil.rmtree(root / "local")
    async with Container(settings) as container:
        task = await container.start_task(KIT_TASK, [STORE])
        assert [failure.is_marker_bad for failure in task.restored.failures] == [True]
        assert dict(task.store(STORE).scan()) == {b"a": b"value of a"}
        assert task.input_offsets == {INPUT: "1"}
        task.store(STORE).put(b"c", b"1")
        with pytest.raises(CommitFailedError) as caught:
            await (await task.commit({INPUT: "2"}, force=True)).wait()
        assert isinstance(caught.value.__cause__, CheckpointCorruptError)
        assert "delete the topic" in caught.value.__cause__.hints[0]
    job.delete_topic()
    await commit_once(settings, b"d", 2)
    shutil.rmtree(root / "local")
    async with Container(settings) as container:
        task = await container.start_task(KIT_TASK, [STORE])
        assert [key for key, _ in task.store(STORE).scan()] == [b"a", b"d"]


@pytest.mark.asyncio
async def test_two_stores_are_committed_together_though_a_zombie_comes_in_between(
    broker: KafkaBroker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = ("s", "t")
    settings = kit_config(broker, root)
    topics = {store: f"kafka.{root.name}.main.{store}.changelog" for store in stores}
    enqueue = ChangelogWriter._enqueue
    seen_before: list[list[bytes | None]] = []

    def committed(store: str) -> list[bytes | None]:
        return [record.value for record in read_partition(broker.servers, topics[store], 0)]

    def enqueue_late(
        writer: ChangelogWriter,
        place: ChangelogPartition,
        entries: Sequence[Change],
        headers: Mapping[str, bytes],
    ) -> None:
        if place.topic == topics["t"] and not seen_before:
            seen_before.append(committed("s"))
            wake_zombie(broker, root, topics.values())
        enqueue(writer, place, entries, headers)

    async with Container(settings) as container:
        task = await container.start_task(TASK, stores)
        for number in (b"1", b"2"):
            for store in stores:
                task.store(store).put(b"k", number)
            await (await task.commit({INPUT: number.decode()}, force=True)).wait()
            monkeypatch.setattr(ChangelogWriter, "_enqueue", enqueue_late)
    assert seen_before == [[b"1"]]
    for store in stores:
        # What it wrote becomes a tombstone, and the values of the try before never show.
        assert committed(store)[:2] == [b"1", b"zombie"]
        assert set(committed(store)[2:]) == {b"2", None}
    shutil.rmtree(root / "local")
    async with Container(settings) as container:
        task = await container.start_task(TASK, stores)
        assert task.restored.failures == ()
        assert [dict(task.store(store).scan()) for store in stores] == 2 * [{b"k": b"2"}]


def wake_zombie(broker: KafkaBroker, root: Path, topics: Iterable[str]) -> None:
    """Write a key to each topic as a process that takes the task's transactional id does."""
    producer = Producer(
        {
            "bootstrap.servers": broker.servers,
            "log_level": 0,
            "transactional.id": f"kafka.{root.name}.main.Partition_200",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, b"zombie", b"z", 0)
    producer.commit_transaction(30)


class Counting(Listener):
    """Adds up the calls to the client that were answered."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        if isinstance(event, RequestDone) and event.outcome == "done":
            self.counts[event.operation] += event.count

    @override
    def close(self) -> None:
        """The counts stay."""


@pytest.mark.asyncio
async def test_the_calls_to_the_client_are_counted(broker: KafkaBroker, root: Path) -> None:
    listener = Counting()
    async with Container(config(broker, root), listeners=[listener]) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"1", 1)
    assert listener.counts["create"] == 3  # log, checkpoints, changelog
    assert listener.counts["init-transactions"] == 2
    assert min(listener.counts[name] for name in ("metadata", "offsets", "produce")) > 0
    assert listener.counts["commit-transaction"] == listener.counts["produce"] - 1  # its events

"""The Kafka backend keeps to the contract, on a real broker."""

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka_kit import read_partition
from servers.kafka import KafkaBroker
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.checkpoint.checkpoints import BackendName, Marker
from statekeep.errors import ConfigError, VersionDamagedError
from statekeep.stores.memory import IMAGE_FILE
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.backend_hooks import FIRST, SECOND
from statekeep.testing.backend_tests import StateBackendTests
from statekeep.testing.clock import FakeClock
from statekeep.testing.sealed_files import StoreContent

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class TestKafkaBackend(StateBackendTests):
    """What occupies storage is a partition: within it the next commit overwrites, by key."""

    is_transactional = "true"

    @pytest.fixture(autouse=True)
    def _on_broker(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.uid = uuid.uuid4().hex

    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        settings = {
            "bootstrap.servers": self.broker.servers,
            "topic.prefix": f"kit-{self.uid}-{place.name}",
            "transactional": self.is_transactional,
        }
        return KafkaBackendFactory(BackendName("kafka"), settings)

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        read = KafkaStateCheckpointMarker.decode(marker)
        assert read.offset is not None
        content: dict[str, bytes] = {}
        for record in read_partition(self.broker.servers, read.topic, read.partition):
            if record.offset > read.offset:
                break
            if record.value is None:
                content.pop(record.key.decode(), None)
            else:
                content[record.key.decode()] = record.value
        return content

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        prefix = factory.settings["topic.prefix"]
        topics = AdminClient({"bootstrap.servers": self.broker.servers}).list_topics(timeout=10)
        return {
            f"{topic}-{partition}"
            for topic, facts in topics.topics.items()
            if topic.startswith(f"{prefix}.")
            for partition in facts.partitions
            if next(read_partition(self.broker.servers, topic, partition), None)
        }

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        read = KafkaStateCheckpointMarker.decode(marker)
        return {f"{read.topic}-{read.partition}"}

    @override
    def damage(self, factory: StateBackendFactory, name: str) -> None:
        """Flip a bit of a record in the broker's own file."""
        path = self.broker.partition_directory(name) / f"{0:020d}.log"
        data = path.read_bytes()
        was_damaged = b"girst" in data
        at = data.index(b"girst" if was_damaged else b"firstfirst")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"f" if was_damaged else b"g")

    @override
    def remove(self, factory: StateBackendFactory, name: str) -> None:
        """Delete the topic of a partition, or of a marker."""
        is_marker = name.startswith("{")
        topic = (
            KafkaStateCheckpointMarker.decode(Marker(name)).topic
            if is_marker
            else name.rpartition("-")[0]
        )
        admin = AdminClient({"bootstrap.servers": self.broker.servers})
        for future in admin.delete_topics([topic]).values():
            future.result()

    @override
    @pytest.mark.asyncio
    async def test_a_base_of_another_lineage_is_not_built_on(
        self, task: BackendHarness, factory: StateBackendFactory
    ) -> None:
        """The partition is the same one, but every key is written anew."""
        root = task.seal(FIRST)
        await task.commit(task.seal(SECOND, parent=root))
        topic, number = next(iter(self.stored(factory))).rsplit("-", 1)
        before = len(list(read_partition(self.broker.servers, topic, int(number))))
        second = await task.commit(task.seal(SECOND, parent=root))
        after = len(list(read_partition(self.broker.servers, topic, int(number))))
        assert after - before == len(SECOND)
        assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}

    @override
    @pytest.mark.asyncio
    async def test_a_clean_up_of_a_log_that_was_reset_leaves_the_new_logs_backups_alone(
        self,
        task: BackendHarness,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: FakeClock,
        tmp_path: Path,
    ) -> None:
        """The partition is the same one: before the reset says so, the new job may not have it."""
        zombie = self.harness(factory, executor, clock, tmp_path / "old", job_uid="90bc")
        await zombie.start()
        old = await zombie.commit(zombie.seal(FIRST))
        first = task.seal(FIRST)
        with pytest.raises(ConfigError, match="job_uid=90bc own_job_uid=77aa"):
            await task.commit(first)
        await zombie.manager.clean_up([], [(old.attempt[0] + 1, 0)])
        new = await task.commit(task.seal(SECOND, parent=first))
        await zombie.manager.clean_up([], [old.attempt])
        await zombie.manager.clean_up([], [(old.attempt[0] + 1, 0)])
        assert (await task.restore(new.checkpoint)).content == {STORE: SECOND}
        after = await task.commit(task.seal(FIRST, parent=first))
        assert (await task.restore(after.checkpoint)).content == {STORE: FIRST}
        await zombie.close()

    @override
    @pytest.mark.asyncio
    async def test_a_damaged_local_version_does_not_become_a_backup(
        self, task: BackendHarness
    ) -> None:
        """The image of a store in memory is one file."""
        version = task.seal(FIRST)
        path = version.store_directory(STORE) / IMAGE_FILE
        path.write_bytes(path.read_bytes().replace(b"firstfirst", b"firstgirst", 1))
        with pytest.raises(VersionDamagedError):
            await task.commit(version)

    @override
    @pytest.mark.asyncio
    async def test_progress_adds_up_to_what_was_announced(self, task: BackendHarness) -> None:
        """Keys are fetched too."""
        commit = await task.commit(task.seal(FIRST))
        restored = await task.restore(commit.checkpoint)
        size = sum(len(key) + len(value) for key, value in FIRST.items())
        assert restored.total_bytes == restored.fetched_bytes == size


class TestKafkaBackendWithoutTransactions(TestKafkaBackend):
    """The same, with records that readers see at once."""

    is_transactional = "false"

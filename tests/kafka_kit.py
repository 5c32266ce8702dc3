"""Plays the part of the container for one task whose store goes to a changelog."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from typing_extensions import override

from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    RestoreContext,
    TaskBackupManager,
    TaskIdentity,
)
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    TaskName,
    VersionId,
)
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.stores.factory import open_store, open_to_load
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE, seal_version

KAFKA: Final = BackendName("kafka")
SIPS: Final = {"client_queued_max_messages_kbytes": "1024"}
"""For a client that leaves most of 50 MB with the broker: by default it fetches nearly all of them
ahead, and would not notice what happens to the broker while it hands them on."""
KEEPING: Final = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "14400000",
    "max.message.bytes": "10485760",
}
"""Settings of a topic that keeps what a restore needs."""
Changes = Mapping[bytes, bytes | None]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit, recorded or not."""

    checkpoint: CheckpointV2
    version: SealedVersion
    content: Mapping[bytes, bytes]

    @property
    def marker(self) -> str:
        """The store's marker."""
        return self.checkpoint.state_markers[KAFKA][STORE]


class ChangelogJob:
    """One task, its versions and its commits; the base of a commit is the newest recorded one.

    Attributes:
        content: What the head version holds.
        base: The newest recorded commit.
        sent: Bytes that uploads have told of.
    """

    def __init__(
        self,
        servers: str,
        root: Path,
        name: str,
        *,
        job_uid: str = "77aa",
        executor: BlockingExecutor | None = None,
        **settings: str,
    ) -> None:
        self.task = TaskIdentity(name, "main", TaskName("Partition 2"), job_uid)
        self.servers = servers
        self.topic = f"kafka.{name}.main.{STORE}.changelog"
        self.content: dict[bytes, bytes] = {}
        self.base: Committed | None = None
        self.head: SealedVersion | None = None
        self.sent: list[int] = []
        self.factory = KafkaBackendFactory(
            KAFKA,
            {
                "bootstrap.servers": servers,
                **{name.replace("_", "."): value for name, value in settings.items()},
            },
        )
        self.versions = TaskDirectory.of(root / "local", self.task)
        self._executor = executor or SerialExecutor()
        self._root = root
        self._contexts: dict[CheckpointId, CommitContext] = {}
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()

    async def manager(self) -> TaskBackupManager:
        """Return a new backup manager of the task, closed by `close`."""
        context = BackupContext(
            self.task, (STORE,), self._contexts.__getitem__, self._executor, SystemClock()
        )
        manager = self.factory.backup_manager(context)
        self._stack.push_async_callback(manager.close)
        await manager.init()
        return manager

    async def close(self) -> None:
        """Close every manager."""
        await self._stack.aclose()

    def seal(self, changes: Changes) -> SealedVersion:
        """Make the next version, on the head."""
        number = next(self._numbers)
        committed = self.base.version.id if self.base else None
        name = str(VersionId(number, f"{number:08x}"))
        self.head = seal_version(self.versions, name, self.head, changes, committed=committed)
        for key, value in changes.items():
            if value is None:
                self.content.pop(key, None)
            else:
                self.content[key] = value
        return self.head

    def rewind(self, to: Committed) -> None:
        """Go back to a committed version, as a recovery does."""
        self.head, self.content = to.version, dict(to.content)

    def continue_after(self, commit: Committed) -> None:
        """Go on from a commit of another `ChangelogJob` of the same task."""
        self._numbers = itertools.count(commit.version.id.batch + 10)
        self.base = commit
        self.rewind(commit)

    def open_attempt(self, version: SealedVersion, *, epoch: int = 1) -> CheckpointId:
        """Begin a commit."""
        number = next(self._numbers)
        checkpoint_id = CheckpointId(time.time_ns() // 1_000_000, number)
        self._contexts[checkpoint_id] = CommitContext(
            checkpoint_id,
            epoch,
            number,
            version,
            self.base.checkpoint if self.base else None,
            self.base.version.id if self.base else None,
            self.sent.append,
        )
        return checkpoint_id

    async def upload(
        self, manager: TaskBackupManager, version: SealedVersion, *, epoch: int = 1
    ) -> Committed:
        """Upload a version; the commit is not recorded."""
        checkpoint_id = self.open_attempt(version, epoch=epoch)
        markers = await manager.upload(checkpoint_id, manager.snapshot(checkpoint_id))
        checkpoint = CheckpointV2(checkpoint_id, {}, {KAFKA: dict(markers)})
        return Committed(checkpoint, version, dict(self.content))

    async def commit(
        self, manager: TaskBackupManager, changes: Changes, *, epoch: int = 1
    ) -> Committed:
        """Seal, upload and record."""
        self.base = await self.upload(manager, self.seal(changes), epoch=epoch)
        return self.base

    async def restore(self, checkpoint: CheckpointV2) -> dict[bytes, bytes]:
        """Restore into a new directory and return what is in it."""
        directory = self._root / f"restored-{next(self._numbers)}"
        done: list[int] = []
        total: list[int] = []
        manager = self.factory.restore_manager(
            RestoreContext(
                self.task,
                {STORE: directory},
                (),
                lambda name, path: open_to_load(name, "rocksdb", path, is_new=True),
                lambda name, path: open_to_load(name, "rocksdb", path, is_new=False),
                done.append,
                total.append,
                self._executor,
                SystemClock(),
            )
        )
        try:
            await manager.init(checkpoint)
            await manager.restore()
        finally:
            await manager.close()
        assert sum(done) == sum(total)
        store = open_store(STORE, "rocksdb", directory, is_new=True)
        try:
            return dict(store.scan())
        finally:
            store.close()

    def sipping(self) -> "ChangelogJob":
        """Return the same job by a client that fetches little ahead; for restores, needs no close."""
        return ChangelogJob(
            self.servers, self.versions.root, self.task.job_name, executor=self._executor, **SIPS
        )

    def records(self, *, is_committed_only: bool = True) -> list[tuple[bytes, bytes | None]]:
        """Return every record of the task's partition, in order, read without the backend."""
        found = read_partition(self.servers, self.topic, 2, is_committed_only=is_committed_only)
        return [(record.key, record.value) for record in found]

    def zombie(self) -> Producer:
        """Return a producer that has taken the task's transactional id."""
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "log_level": 0,
                "transactional.id": f"kafka.{self.task.job_name}.main.Partition_202",
            }
        )
        producer.init_transactions(30)
        return producer

    def write(
        self,
        producer: Producer,
        entries: Iterable[tuple[bytes, bytes | None]],
        *,
        end: Callable[[Producer], None] | None = Producer.commit_transaction,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write a transaction to the task's partition and end it, unless ``end`` is None."""
        producer.begin_transaction()
        for key, value in entries:
            producer.produce(self.topic, value, key, 2, headers=dict(headers or {}))
        producer.flush()
        if end is not None:
            end(producer)

    def end_offset(self) -> int:
        """Return where the committed records of the task's partition end."""
        cluster = Cluster(KafkaSettings.parse(KAFKA, self.factory.settings))
        place = ChangelogPartition(self.topic, 2)
        return cluster.end_offsets([place], is_committed_only=True)[place]

    def delete_topic(self) -> None:
        """Delete the changelog."""
        for future in self._admin.delete_topics([self.topic]).values():
            future.result()

    def delete_records_before(self, offset: int) -> None:
        """Let the oldest records of the task's partition go, as a limit of age does."""
        self.configure_topic(cleanup_policy="delete")
        before = TopicPartition(self.topic, 2, offset)
        while True:
            try:
                self._admin.delete_records([before])[before].result()
            except KafkaException as exc:  # the node has not heard of the policy yet
                if exc.args[0].code() != KafkaError.POLICY_VIOLATION:
                    raise
            else:
                break
        self.configure_topic(cleanup_policy="compact")

    def recreate_topic(self, **settings: str) -> None:
        """Delete the changelog and create another one of its name; ``_`` stands for a dot."""
        self.delete_topic()
        config = {**KEEPING, **{name.replace("_", "."): v for name, v in settings.items()}}
        topic = NewTopic(self.topic, 3, -1, config=config)
        while True:
            try:
                self._admin.create_topics([topic])[self.topic].result()
            except KafkaException as exc:  # the old one is still on its way out
                if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            else:
                return

    def configure_topic(self, **wanted: str) -> None:
        """Change settings of the changelog; ``_`` stands for a dot."""
        resource = ConfigResource(
            ResourceType.TOPIC,
            self.topic,
            incremental_configs=[
                ConfigEntry(
                    name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET
                )
                for name, value in wanted.items()
            ],
        )
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result()

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})


class Interrupting(BoundedExecutor):
    """Calls ``interrupt`` once, on the loop, before the n-th blocking call of some name."""

    def __init__(self) -> None:
        super().__init__(4, "outage")
        self._step = ""
        self._left = 0
        self._interrupt: Callable[[], object] = lambda: None

    def arm(self, step: str, interrupt: Callable[[], object], *, nth: int = 1) -> None:
        """Set what happens before which call, counted from now on.

        Args:
            step: Name of the function or method that is called.
            interrupt: What happens.
            nth: Before the how manieth.
        """
        self._step, self._left, self._interrupt = step, nth, interrupt

    @property
    def has_struck(self) -> bool:
        """Whether it has happened: without it a test proves nothing."""
        return self._left == 0

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._left and getattr(call, "__name__", "") == self._step:
            self._left -= 1
            if not self._left:
                self._interrupt()
        return await super().run(call, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it stands in a partition."""

    key: bytes
    value: bytes | None
    offset: int
    is_stamped: bool


def read_partition(
    servers: str, topic: str, partition: int, *, is_committed_only: bool = True
) -> Iterator[Record]:
    """Yield every record of a partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "kit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
            "isolation.level": "read_committed" if is_committed_only else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    try:
        while True:
            message = consumer.poll(10)
            assert message is not None
            if message.error() is not None:
                return
            key, offset = message.key(), message.offset()
            assert key is not None
            assert offset is not None
            yield Record(key, message.value(), offset, bool(message.headers()))
    finally:
        consumer.close()

"""The Kafka backend: everything that `statekeep.backends.kafka` offers, put together."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    JobTasks,
    RestoreContext,
    StateBackendAdmin,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.kafka.admin import KafkaAdmin
from statekeep.backends.kafka.backup import KafkaBackupManager
from statekeep.backends.kafka.calls import ClientCalls
from statekeep.backends.kafka.checkpoint_store import KafkaCheckpointStore
from statekeep.backends.kafka.cluster import SharedCluster
from statekeep.backends.kafka.job_log import KafkaJobLog
from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import log_topic, task_of_log, topic_name
from statekeep.backends.kafka.restore import REPLAYS_AT_ONCE, KafkaRestoreManager
from statekeep.backends.kafka.settings import DEFAULTS_PREFIX, KafkaSettings
from statekeep.backends.kafka.topics import ChangelogTopics, retrier_of
from statekeep.backends.optional_powers import SnapshotNode
from statekeep.backends.pacing import InFlightLimit
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock, SystemClock
from statekeep.events import Report


class KafkaBackendFactory(StateBackendFactory):
    """State backups as changelogs: one topic per store, one partition per task."""

    properties = BackendProperties(
        needs_changes=True, can_hold_job_log=True, keeps_every_commit=False
    )
    defaults_prefix: ClassVar[str] = DEFAULTS_PREFIX

    def __init__(
        self,
        name: BackendName,
        settings: Mapping[str, str],
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Check the settings.

        Args:
            name: Of the backend.
            settings: See `KafkaSettings`.
            new_uid: Draws names that are never drawn again.
        """
        super().__init__(name, settings)
        self._kafka_settings = KafkaSettings.parse(name, settings)
        self._calls = ClientCalls(name, SystemClock())
        self._clusters = SharedCluster(self._kafka_settings, self._calls)
        self._replays = InFlightLimit(REPLAYS_AT_ONCE)
        self._new_uid = new_uid

    @override
    def report_requests(self, report: Report) -> None:
        self._calls.report = report

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return KafkaBackupManager(
            context,
            self._kafka_settings,
            self.name,
            self._clusters,
            new_uid=self._new_uid,
            calls=self._calls,
        )

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return KafkaRestoreManager(
            context,
            self._kafka_settings,
            self.name,
            self._clusters,
            self._replays,
            calls=self._calls,
        )

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return KafkaAdmin(
            self.name, self._kafka_settings, tasks, executor, clock, calls=self._calls
        )

    @override
    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        topic = log_topic(self._kafka_settings.topic_prefix, scope)
        return KafkaJobLog(
            self._kafka_settings, topic, executor=executor, clock=clock, calls=self._calls
        )

    @override
    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        topic = topic_name(self._kafka_settings.topic_prefix, *scope.split("/"), "checkpoints")
        return KafkaCheckpointStore(
            self._kafka_settings, topic, executor=executor, clock=clock, calls=self._calls
        )

    async def task_logs(
        self, job_name: str, operator: str, executor: BlockingExecutor, clock: Clock
    ) -> Sequence[str]:
        """Return the tasks whose logs have a topic: see `ListsTaskLogs`."""
        cluster = self._clusters.borrow()
        try:
            topics = await retrier_of(self._kafka_settings, clock).run(
                lambda: run_to_end(executor, cluster.topics),
                operation="list the topics of job logs",
                subject=job_name,
            )
        finally:
            await run_to_end(executor, self._clusters.give_back)
        prefix = self._kafka_settings.topic_prefix
        found = (task_of_log(prefix, job_name, operator, topic) for topic in topics)
        return sorted({task for task in found if task is not None})

    async def describe(
        self,
        task: TaskIdentity,  # noqa: ARG002 - the marker names everything in full
        store: StoreName,  # noqa: ARG002 - as above
        marker: Marker,
        executor: BlockingExecutor,  # noqa: ARG002 - nothing is fetched
        clock: Clock,  # noqa: ARG002 - as above
    ) -> Sequence[SnapshotNode]:
        """Return what a marker says of its changelog: see `DescribesSnapshots`."""
        found = KafkaStateCheckpointMarker.decode(marker)
        return [
            SnapshotNode(
                f"changelog up to offset {found.offset}",
                found.content.live_bytes,
                {
                    "topic": found.topic,
                    "partition": found.partition,
                    "topic_id": found.topic_id,
                    "version": str(found.version),
                    "keys": found.content.live_keys,
                },
            )
        ]

    def writes_over(self, task: TaskIdentity, store: StoreName, marker: Marker) -> bool:
        """Return whether a store's changelog is the one of a marker: see `WritesInPlace`."""
        partition = ChangelogTopics(self._kafka_settings, self.name, task).partition(store)
        return partition.topic == KafkaStateCheckpointMarker.decode(marker).topic

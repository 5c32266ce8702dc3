"""Which topics a task's changelogs are, and what they must be like."""

from statekeep.backends.base import TaskIdentity
from statekeep.backends.kafka.cluster import TopicForm
from statekeep.backends.kafka.names import (
    ChangelogPartition,
    changelog_partition,
    changelog_topic,
)
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import BackendName, StoreName


class ChangelogTopics:
    """The changelogs of one task: a topic per store, in it the partition of the task's number."""

    def __init__(self, settings: KafkaSettings, backend: BackendName, task: TaskIdentity) -> None:
        """Name them.

        Raises:
            ConfigError: The task has no number.
        """
        self._settings = settings
        self._backend = backend
        self._task = task
        self._partition = changelog_partition(task)

    def place(self, store: StoreName) -> ChangelogPartition:
        """Return where a store's changes go.

        Raises:
            ConfigError: A name is too long for a topic.
        """
        named = self._settings.changelog(self._backend, store)
        prefix = self._settings.topic_prefix
        topic = changelog_topic(prefix, self._task, store) if named is None else named
        return ChangelogPartition(topic, self._partition)

    def form(self, store: StoreName) -> TopicForm:
        """Return what a store's topic must be like."""
        settings = self._settings
        return TopicForm(
            partitions=self._partition + 1,
            config={
                "cleanup.policy": "compact",
                "min.compaction.lag.ms": str(settings.min_compaction_lag_ms(store)),
                "delete.retention.ms": str(settings.delete_retention_ms(store)),
                "max.message.bytes": str(settings.max_message_bytes),
            },
        )

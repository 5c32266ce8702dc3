"""Which topics a task's changelogs are, what they must be like, and how they come to be."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.kafka.cluster import BROKER_TIME, Cluster, TopicForm
from statekeep.backends.kafka.names import (
    ChangelogPartition,
    changelog_partition,
    changelog_topic,
)
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.retry import Retrier
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.clock import Clock
from statekeep.errors import ConfigError, RetriableError

_ASKED_AGAIN_MS: Final = 100
_LONGEST_PAUSE_MS: Final = 1_000


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

    def partition(self, store: StoreName) -> ChangelogPartition:
        """Return where a store's changes go.

        Raises:
            ConfigError: A name is too long for a topic.
        """
        named = self._settings.changelog(self._backend, store)
        prefix = self._settings.topic_prefix
        topic = changelog_topic(prefix, self._task, store) if named is None else named
        return ChangelogPartition(topic, self._partition)

    def partitions(self, stores: Iterable[StoreName]) -> Mapping[StoreName, ChangelogPartition]:
        """Return where the changes of all stores go that are backed up here.

        Raises:
            ConfigError: Two of them have one topic, or a name is too long for one.
        """
        partitions = {store: self.partition(store) for store in stores}
        self._settings.refuse_shared_changelogs(
            self._backend, {store: partition.topic for store, partition in partitions.items()}
        )
        return partitions

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
                **BROKER_TIME,
            },
            replicas=settings.changelog_replicas(store),
        )


async def prepare_topics(
    cluster: Cluster,
    forms: Mapping[str, TopicForm],
    *,
    settings: KafkaSettings,
    executor: BlockingExecutor,
    clock: Clock,
) -> Mapping[str, str | None]:
    """Create the topics that are missing and check all of them.

    Returns once the cluster answers for their last partitions: nodes learn of a topic one after
    the other, and a partition has no leader at first.

    Args:
        cluster: Where.
        forms: ``{topic: what it must be like}``.
        settings: How long to insist.
        executor: For blocking calls.
        clock: For pauses.

    Returns:
        The id of each topic that was checked, or of one that had its name before; None: unknown as yet.

    Raises:
        ConfigError: The cluster refuses a topic, or one that is there loses what we need.
        RetriableError: No answer within the time-out.
    """

    async def prepare() -> Mapping[str, str | None]:
        ids: dict[str, str | None] = {}
        for topic, form in forms.items():
            ids[topic] = await run_to_end(executor, cluster.ensure, topic, form)
            await run_to_end(executor, cluster.check, topic, form)
        last = [ChangelogPartition(topic, form.partitions - 1) for topic, form in forms.items()]
        await run_to_end(executor, cluster.end_offsets, last)
        return ids

    return await retrier_of(settings, clock).run(
        prepare, operation="prepare topics", subject=",".join(forms)
    )


class TopicWatch:
    """Notices that a topic that is read and written for long is no more the one that it was."""

    def __init__(self, topic: str, hint: str) -> None:
        """Take what to watch; nothing is asked yet.

        Args:
            topic: Its name.
            hint: What to do where another topic has the name.
        """
        self._topic = topic
        self._hint = hint
        self._id: str | None = None

    async def check(self, cluster: Cluster, executor: BlockingExecutor) -> None:
        """Make sure that the topic is the one of the first call.

        Raises:
            ConfigError: It was deleted, and another one of its name was made.
            RetriableError: It is not there, or the cluster does not answer.
        """
        facts = (await run_to_end(executor, cluster.describe, [self._topic])).get(self._topic)
        if facts is None:
            raise RetriableError(
                f"topic is gone, or not every node knows of it yet: topic={self._topic}"
            )
        if self._id is None:
            self._id = facts.topic_id
        if facts.topic_id != self._id:
            raise ConfigError(
                f"topic was deleted, and another one has its name: topic={self._topic} "
                f"topic_id={self._id} found_topic_id={facts.topic_id}",
                hint=self._hint,
            )


def retrier_of(settings: KafkaSettings, clock: Clock) -> Retrier:
    """Return what repeats a question to the cluster until ``kafka.timeout.ms`` is over."""
    policy = replace(
        settings.retry,
        max_duration_ms=settings.timeout_ms,
        duration_setting="timeout.ms",
        backoff_delay_ms=_ASKED_AGAIN_MS,
        backoff_max_delay_ms=_LONGEST_PAUSE_MS,
    )
    return Retrier(policy, clock)

"""Restoring a task's stores from their changelogs: replay up to the marker, then verify."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final, cast

from confluent_kafka import Message
from typing_extensions import override

from statekeep.backends.awaiting import run_all, run_to_end
from statekeep.backends.base import RestoreContext, TaskRestoreManager
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.cluster import Cluster, SharedCluster
from statekeep.backends.kafka.marker import ContentSummary, KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.topics import retrier_of
from statekeep.backends.pacing import InFlightLimit
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName
from statekeep.errors import (
    BackendClosedError,
    BlobNotFoundError,
    CheckpointCorruptError,
    RetriableError,
)
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change

logger = logging.getLogger(__name__)


REPLAYS_AT_ONCE: Final = 16
"""Of all tasks and stores of a container: each one has a client that fetches megabytes ahead."""


class _UnknownChangelogError(RetriableError):
    """Raised when the node that was asked does not know what a marker names."""


@dataclass(frozen=True, slots=True)
class _OffsetRange:
    """What has to be read for one store."""

    marker: KafkaStateCheckpointMarker
    start: int
    end: int


class _Replayed:
    """Adds up the records of a replay for as long as they can be the content itself.

    If nothing was deleted, and the sum is that of the content, no key came twice: the sum is of as
    many records as there are keys, and another record in the place of one of them shows. So what was
    written need not be read once more.

    Attributes:
        content: The sum; None: something was deleted, or there are more records than keys.
    """

    def __init__(self, expected: ContentSummary) -> None:
        """Take what the content adds up to."""
        self._most_keys = expected.live_keys
        self.content: ContentSummary | None = ContentSummary()

    def add(self, changes: Sequence[Change]) -> None:
        """Take in the next records."""
        if self.content is None:
            return
        has_deletes = None in map(itemgetter(1), changes)
        if has_deletes or self.content.live_keys + len(changes) > self._most_keys:
            self.content = None
        else:
            puts = cast("Sequence[tuple[bytes, bytes]]", changes)
            self.content = self.content.plus(ContentSummary.of(puts))


class KafkaRestoreManager(TaskRestoreManager):
    """Replays the changelog of each store from its oldest record to the marker.

    Nothing is written to the cluster and no transactional id is taken, so that tools may restore
    beside a running job: a marker is only ever recorded once its transaction is committed, and no
    transaction of the task can be open before one that came after it.

    The content is then compared with the marker's count and digest: a topic that was compacted
    beyond the marker, lost records, or was filled by another writer, is found out.
    """

    def __init__(
        self,
        context: RestoreContext,
        settings: KafkaSettings,
        backend: BackendName,
        clusters: SharedCluster,
        replays: InFlightLimit,
        *,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Take what the restore needs; no I/O.

        Args:
            context: What to restore.
            settings: Of the cluster.
            backend: Name of the backend.
            clusters: Lends the client for offsets.
            replays: Bounds the changelogs that are read at once; a replay waits for no other.
            calls: Count what is fetched.
        """
        self._calls = calls
        self._replays = replays
        self._context = context
        self._settings = settings
        self._backend = backend
        self._clusters = clusters
        self._ranges: dict[StoreName, _OffsetRange] = {}
        self._is_closed = False

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        self._check_open()
        cluster = self._clusters.borrow()
        try:
            for store in self._context.directories:
                marker = self._marker(checkpoint, store)
                self._ranges[store] = await self._find(cluster, marker)
        finally:
            await run_to_end(self._context.executor, self._clusters.give_back)

    @override
    async def restore(self) -> None:
        self._check_open()
        self._context.on_total(sum(map(_size, self._ranges.values())))
        await run_all(
            self._replays.run(partial(self._restore_store, store, offsets))
            for store, offsets in self._ranges.items()
        )

    @override
    async def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"kafka restore manager is closed: task={self._context.task.task_name}"
            raise BackendClosedError(msg)

    def _marker(self, checkpoint: CheckpointV2, store: StoreName) -> KafkaStateCheckpointMarker:
        marker = checkpoint.markers_of(self._backend).get(store)
        if marker is None:
            msg = (
                f"checkpoint has no marker: task={self._context.task.task_name} "
                f"checkpoint_id={checkpoint.checkpoint_id} backend={self._backend} store={store}"
            )
            raise CheckpointCorruptError(msg)
        return KafkaStateCheckpointMarker.decode(marker)

    async def _find(self, cluster: Cluster, marker: KafkaStateCheckpointMarker) -> _OffsetRange:
        """Look for what a marker names until the cluster has answered.

        One node that does not know of it is no answer: it may not have heard of the topic, of its
        partitions, or that it is another one.

        Raises:
            BlobNotFoundError: No node knew of it until the time-out.
        """

        async def find() -> _OffsetRange:
            return await run_to_end(self._context.executor, _find, cluster, marker)

        try:
            return await retrier_of(self._settings, self._context.clock).run(
                find, operation="look for changelog", subject=marker.topic
            )
        except _UnknownChangelogError as exc:
            raise BlobNotFoundError(_name(marker)) from exc

    async def _restore_store(self, store: StoreName, offsets: _OffsetRange) -> None:
        run = self._context.executor
        started_ns = self._context.clock.monotonic_ns()
        directory = self._context.directories[store]
        target = await run_to_end(run, self._context.open_store, store, directory)
        try:
            content = await self._replay(target, offsets)
            await run_to_end(run, target.flush)  # raises for writes that have failed
            if content is None or content != offsets.marker.content:
                content = await run_to_end(run, _summary, target)
        finally:
            await run_to_end(run, target.close)
        _verify(offsets.marker, content)
        logger.debug(
            "changelog replayed: task=%s backend=%s store=%s bytes=%d elapsed_ms=%d "
            "records=%d live_keys=%d",
            self._context.task.task_name,
            self._backend,
            store,
            content.live_bytes,
            (self._context.clock.monotonic_ns() - started_ns) // 1_000_000,
            offsets.end - offsets.start,
            content.live_keys,
        )

    async def _replay(self, target: KeyValueStore, offsets: _OffsetRange) -> ContentSummary | None:
        """Apply the records, and return what they add up to where each may be of a key of its own.

        Progress is reported as the part of the offsets already read.
        """
        replayed = _Replayed(offsets.marker.content)

        def take(records: list[Message]) -> None:
            changes = [(key, r.value()) for r in records if (key := r.key()) is not None]
            target.load(changes)
            replayed.add(changes)

        reader = PartitionReader(
            self._settings,
            ChangelogPartition(offsets.marker.topic, offsets.marker.partition),
            offsets.start,
            offsets.end,
            is_committed_only=True,
            executor=self._context.executor,
            clock=self._context.clock,
            calls=self._calls,
        )
        total, reported = _size(offsets), 0
        try:
            await reader.open()
            while not reader.is_done:
                await reader.next(take)
                passed = min(reader.position, offsets.end) - offsets.start
                share = total * passed // (offsets.end - offsets.start)
                self._context.on_bytes(share - reported)
                reported = share
        finally:
            await reader.close()
        return replayed.content


def _find(cluster: Cluster, marker: KafkaStateCheckpointMarker) -> _OffsetRange:
    """Look for what a marker names, as the table in the documentation says.

    Raises:
        _UnknownChangelogError: The node that was asked does not know the topic or the partition, or
            knows another topic of the name.
        CheckpointCorruptError: The marker lies beyond the end, or before the beginning.
    """
    facts = cluster.describe([marker.topic]).get(marker.topic)
    if (
        facts is None
        or marker.partition >= facts.partitions
        or (marker.topic_id and marker.topic_id != facts.topic_id)
    ):
        msg = f"a node does not know the changelog: topic={_name(marker)}"
        raise _UnknownChangelogError(msg)
    partition = ChangelogPartition(marker.topic, marker.partition)
    if marker.offset is None:
        return _OffsetRange(marker, 0, 0)
    start, end = (
        cluster.start_offsets([partition])[partition],
        cluster.end_offsets([partition])[partition],
    )
    if not start <= marker.offset < end:
        msg = (
            f"changelog has not the marker's offset: topic={marker.topic} "
            f"partition={marker.partition} offset={marker.offset} start={start} end={end}"
        )
        raise CheckpointCorruptError(msg)
    return _OffsetRange(marker, start, marker.offset + 1)


def _verify(marker: KafkaStateCheckpointMarker, content: ContentSummary) -> None:
    if content != marker.content:
        msg = (
            f"changelog does not give the committed content: topic={marker.topic} "
            f"partition={marker.partition} offset={marker.offset} "
            f"expected_keys={marker.content.live_keys} actual_keys={content.live_keys} "
            f"expected_digest={marker.content.hexdigest} actual_digest={content.hexdigest}"
        )
        raise CheckpointCorruptError(msg)


def _name(marker: KafkaStateCheckpointMarker) -> str:
    """Return the partition that a marker names, and of which topic of the name, if it says so."""
    name = f"{marker.topic}-{marker.partition}"
    return f"{name}#{marker.topic_id}" if marker.topic_id else name


def _summary(store: KeyValueStore) -> ContentSummary:
    return ContentSummary.of(store.scan())


def _size(offsets: _OffsetRange) -> int:
    """Return the bytes that a replay is announced as: the content, or a byte per record."""
    return max(offsets.marker.content.live_bytes, offsets.end - offsets.start)

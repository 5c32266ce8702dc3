"""Backing up a task's stores to their changelogs: what changed, in transactions."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import (
    BackupContext,
    CommitContext,
    Snapshot,
    TaskBackupManager,
    take_snapshot,
)
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.client_errors import ProducerFencedError
from statekeep.backends.kafka.cluster import Cluster, SharedCluster, TopicFacts
from statekeep.backends.kafka.epochs import EpochStamp, Owners, given_up, is_own
from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import ChangelogPartition, transactional_id
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.topics import ChangelogTopics, prepare_topics
from statekeep.backends.kafka.upload import StorePartition, StoreUpload
from statekeep.backends.kafka.writer import ChangelogWriter, PlainWriter, TransactionWriter
from statekeep.backends.retry import Retrier
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, Marker, StoreName
from statekeep.errors import (
    BackendClosedError,
    CheckpointCorruptError,
    RetriableError,
    UnknownFormatError,
)
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_FENCED_TRIES: Final = 3
"""How often an upload takes the transactional id back from writers that belong to no newer epoch."""
_ALL: Final = 0
"""Attempts are counted from 1: this one is closed where all before an epoch are, which has ended the job."""


class KafkaBackupManager(TaskBackupManager):
    """Writes the changes of a commit, keyed, to the task's partition of each store's changelog.

    One producer and transactional id over all stores. What stands behind the marker of the
    committed base, left by an aborted attempt, a predecessor or a zombie, is put right by the next
    commit: each of its keys gets the value that it has in the version (R10). Between commits only
    the producer is kept, and a share of the client for topics; whether the producer still owns the
    transactional id shows when it commits.
    """

    def __init__(
        self,
        context: BackupContext,
        settings: KafkaSettings,
        backend: BackendName,
        clusters: SharedCluster,
        *,
        new_uid: Callable[[], str],
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Take what the backup needs; no I/O.

        Args:
            context: The task.
            settings: Of the backend.
            backend: Name under which the markers stand.
            clusters: Lends the client for topics and offsets.
            new_uid: Draws names of work directories.
            calls: Count what is asked of the client.

        Raises:
            ConfigError: The task has no number, a name is too long for a topic, or two stores have one
                changelog.
        """
        self._context = context
        self._settings = settings
        self._backend = backend
        self._new_uid = new_uid
        self._calls = calls
        self._topics = ChangelogTopics(settings, backend, context.task)
        self._partitions = self._topics.partitions(context.stores)
        self._retrier = Retrier(settings.retry, context.clock)
        self._clusters = clusters
        self._cluster: Cluster | None = None
        self._checked_ids: Mapping[str, str | None] = {}
        self._writer: ChangelogWriter | None = None
        self._seen: dict[ChangelogPartition, tuple[StorePartition, Owners]] = {}
        self._is_closed = False

    @override
    async def init(self) -> None:
        self._check_open()
        if self._cluster is None:
            self._cluster = self._clusters.borrow()
        await self._retrier.run(self._ensure_topics, operation="create topics")

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        commit = self._context.commit(checkpoint_id)
        return take_snapshot(commit, self._backend, self._context.stores)

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        self._check_open()
        commit = self._context.commit(checkpoint_id)
        return await self._retrier.run(
            lambda: self._upload_unless_fenced(commit, snapshot),
            operation="upload",
            subject=str(commit.version.id),
        )

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        """Say so in the changelogs if the job has ended, and nothing in them is needed any more.

        Not in those that are another job's, or of which nothing says whose they are. Else do nothing:
        what aborted attempts left is overwritten by the next commit, and compacted.
        """
        self._check_open()
        if retained or [attempt for _, attempt in closed_attempts] != [_ALL]:
            return
        entry, headers = given_up(self._context.task.job_uid)
        await self._drop_writer()
        try:
            # Takes the transactional id: what a container is about to write counts no more.
            writer = await self._open_writer()
            for partition in self._partitions.values():
                if await self._is_own(partition):
                    await writer.write(partition, [entry], headers)
            await writer.commit()
        except ProducerFencedError as exc:
            error = RetriableError(
                f"a job that has ended still writes: task={self._context.task.task_name}"
            )
            error.add_note("hint: stop its program, then repeat the command")
            raise error from exc
        finally:
            await self._drop_writer()

    @override
    async def close(self) -> None:
        self._is_closed = True
        await self._drop_writer()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await run_to_end(self._context.executor, self._clusters.give_back)

    async def _is_own(self, partition: ChangelogPartition) -> bool:
        own = EpochStamp(self._context.task.job_uid, _ALL, _ALL)
        found = await is_own(
            self._settings,
            self._reach(),
            own,
            partition,
            executor=self._context.executor,
            clock=self._context.clock,
            calls=self._calls,
        )
        if not found:
            logger.info(
                "changelog is not cleared, as it has no records of this job, or also those of "
                "other jobs: "
                "task=%s backend=%s topic=%s partition=%d",
                self._context.task.task_name,
                self._backend,
                partition.topic,
                partition.partition,
            )
        return found

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"kafka backup manager is closed: task={self._context.task.task_name}"
            raise BackendClosedError(msg)

    async def _upload_unless_fenced(
        self, commit: CommitContext, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        """Upload; a writer of no newer epoch that took the transactional id loses it again.

        Raises:
            TaskFencedError: A newer epoch has written.
            RetriableError: The cluster does not answer, or others keep taking the id.
        """
        last_error: ProducerFencedError | None = None
        for _ in range(_FENCED_TRIES):
            try:
                return await self._upload(commit, snapshot)
            except ProducerFencedError as exc:
                last_error = exc
                logger.warning(
                    "transactional id was taken by another writer, or its transaction timed out; "
                    "taking it back: task=%s checkpoint_id=%s backend=%s "
                    "transaction_timeout_ms=%d",
                    self._context.task.task_name,
                    commit.checkpoint_id,
                    self._backend,
                    self._settings.transaction_timeout_ms,
                )
        error = RetriableError(
            f"another writer keeps taking the transactional id: task={self._context.task.task_name}"
        )
        error.add_note(
            "hint: either another process writes as this task, or the machine is too busy to commit "
            "within kafka.transaction.timeout.ms: raise that"
        )
        raise error from last_error

    async def _upload(
        self, commit: CommitContext, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        """One try; after any error the producer is dropped, which aborts its transaction."""
        started_ns = self._context.clock.monotonic_ns()
        stamp = EpochStamp(self._context.task.job_uid, commit.epoch, commit.attempt)
        try:
            writer = await self._open_writer()
            sent_before = writer.sent_bytes
            uploads = [
                StoreUpload(
                    settings=self._settings,
                    commit=commit,
                    store=store,
                    at=at,
                    base=self._usable_base(commit, store, at),
                    changes=snapshot.stores[store].changes,
                    is_known_own=self._is_known_own(commit, store, at),
                    stamp=stamp,
                    writer=writer,
                    executor=self._context.executor,
                    clock=self._context.clock,
                    uid=self._new_uid(),
                    seen=self._seen,
                )
                for store, at in (await self._look_up_partitions()).items()
            ]
            markers = {upload.store: await upload.run() for upload in uploads}
            fault_point("transaction.before_commit")
            await writer.commit()
            fault_point("transaction.after_commit")
            await self._check_same_topics(uploads)
        except BaseException:
            await self._drop_writer()
            raise
        commit.count_bytes(writer.sent_bytes - sent_before)
        for upload in uploads:
            logger.debug(
                "store uploaded: task=%s checkpoint_id=%s backend=%s store=%s records=%d "
                "elapsed_ms=%d is_full=%s",
                self._context.task.task_name,
                commit.checkpoint_id,
                self._backend,
                upload.store,
                upload.record_count,
                (self._context.clock.monotonic_ns() - started_ns) // 1_000_000,
                upload.is_full,
            )
        finished = {upload.store: await upload.finish(markers[upload.store]) for upload in uploads}
        fault_point("upload.before_marker")
        return {store: marker.encode(self._backend) for store, marker in finished.items()}

    async def _check_same_topics(self, uploads: Sequence[StoreUpload]) -> None:
        """Make sure that the records went to the topics that the uploads began with.

        Raises:
            RetriableError: One was deleted, and perhaps another one of its name was made.
        """
        ids = {upload.at.partition.topic: upload.at.topic_id for upload in uploads}
        facts = await run_to_end(self._context.executor, self._reach().describe, ids)
        for topic, topic_id in ids.items():
            if topic not in facts or facts[topic].topic_id != topic_id:
                raise RetriableError(f"topic was deleted during an upload: topic={topic}")

    async def _open_writer(self) -> ChangelogWriter:
        if self._writer is None:
            writer_class = TransactionWriter if self._settings.is_transactional else PlainWriter
            self._writer = writer_class(
                self._settings,
                transactional_id(self._settings.topic_prefix, self._context.task),
                executor=self._context.executor,
                clock=self._context.clock,
                calls=self._calls,
            )
            await self._writer.open()
        self._writer.offsets.clear()
        self._writer.commit_counts.clear()
        return self._writer

    async def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.discard()

    async def _ensure_topics(self) -> None:
        self._checked_ids = await prepare_topics(
            self._reach(),
            {
                self._partitions[store].topic: self._topics.form(store)
                for store in self._context.stores
            },
            settings=self._settings,
            executor=self._context.executor,
            clock=self._context.clock,
        )

    async def _look_up_partitions(self) -> Mapping[StoreName, StorePartition]:
        """Ask where each changelog begins and ends.

        A topic that was deleted is made anew; one that another process has made anew is checked first.

        Raises:
            ConfigError: A topic that was made anew loses what we need.
            RetriableError: The cluster does not answer, or does not agree yet on what is there.
        """
        cluster, run = self._reach(), self._context.executor
        topics = {partition.topic for partition in self._partitions.values()}
        facts = await run_to_end(run, cluster.describe, topics)
        if not self._are_checked(facts):
            await self._ensure_topics()
            facts = await run_to_end(run, cluster.describe, topics)
        if not self._are_checked(facts):
            raise RetriableError(f"topics are not there yet: topics={','.join(sorted(topics))}")
        starts = await run_to_end(run, cluster.start_offsets, self._partitions.values())
        ends = await run_to_end(run, cluster.end_offsets, self._partitions.values())
        return {
            store: StorePartition(
                partition, facts[partition.topic].topic_id, starts[partition], ends[partition]
            )
            for store, partition in self._partitions.items()
        }

    def _are_checked(self, facts: Mapping[str, TopicFacts]) -> bool:
        """Whether all topics are there, and each is the one whose settings were looked at."""
        return {topic: found.topic_id for topic, found in facts.items()} == self._checked_ids

    def _usable_base(
        self, commit: CommitContext, store: StoreName, at: StorePartition
    ) -> KafkaStateCheckpointMarker | None:
        """Return the marker that an increment may build on by R9; None: the upload is full."""
        base = self._marker_of_base(commit, store, at)
        lineage = (commit.version.id, *commit.version.lineage)
        if base is None or commit.base_version not in lineage:
            return None
        is_whole = (
            base.topic_id == at.topic_id
            and base.version == str(commit.base_version)
            and (base.offset is None or (at.start <= base.start and base.offset < at.end))
        )
        return base if is_whole else None

    def _is_known_own(self, commit: CommitContext, store: StoreName, at: StorePartition) -> bool:
        """Whether a commit says that what stands in the topic is the job's.

        One that has written nothing says nothing of what came later.
        """
        base = self._marker_of_base(commit, store, at)
        return base is not None and base.offset is not None

    def _marker_of_base(
        self, commit: CommitContext, store: StoreName, at: StorePartition
    ) -> KafkaStateCheckpointMarker | None:
        """Return the marker of the committed base, if it is of the topic that is there now."""
        marker = commit.base.markers_of(self._backend).get(store) if commit.base else None
        if marker is None:
            return None
        try:
            base = KafkaStateCheckpointMarker.decode(marker)
        except (CheckpointCorruptError, UnknownFormatError):
            return None
        is_here = ChangelogPartition(base.topic, base.partition) == at.partition
        return base if is_here and base.topic_id == at.topic_id else None

    def _reach(self) -> Cluster:
        if self._cluster is None:
            msg = f"init comes first: task={self._context.task.task_name}"
            raise BackendClosedError(msg)
        return self._cluster

"""The checkpoint store in a compacted topic: one key per task and attempt."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.client_errors import explained, explained_errors
from statekeep.backends.kafka.clients import build_producer
from statekeep.backends.kafka.cluster import Cluster, TopicForm
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.run_to_end import run_to_end
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.clock import Clock
from statekeep.errors import RetriableError, StateBackupError

_SEPARATOR: Final = "/"
_FLUSH_S: Final = 5.0


class KafkaCheckpointStore(CheckpointStore):
    """Entries are records with the key ``<attempt>/<task>``; a tombstone deletes one.

    What was read is kept, so that a call reads no more than what is new.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        *,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        """Build the store; nothing is reached yet.

        Args:
            settings: Of the cluster.
            topic: Of this store alone.
            executor: For blocking calls.
            clock: For time-outs.
        """
        self._settings = settings
        self._place = ChangelogPartition(topic, 0)
        self._executor = executor
        self._clock = clock
        self._cluster: Cluster | None = None
        self._producers: list[Producer] = []
        self._entries: dict[str, bytes] = {}
        self._next_offset = 0

    @override
    async def write(self, attempt: str, task_name: TaskName, data: bytes) -> None:
        await self._send([(f"{attempt}{_SEPARATOR}{task_name}", data)])

    @override
    async def read(
        self, attempt: str, *, known: Collection[TaskName] = ()
    ) -> Mapping[TaskName, bytes]:
        await self._catch_up()
        found = {TaskName(_task(key)): self._entries[key] for key in self._keys_of(attempt)}
        return {task: data for task, data in found.items() if task not in known}

    @override
    async def delete(self, attempt: str) -> None:
        await self._catch_up()
        await self._send([(key, None) for key in self._keys_of(attempt)])

    @override
    async def close(self) -> None:
        await run_to_end(self._executor, self._producers.clear)
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await run_to_end(self._executor, cluster.close)

    def _keys_of(self, attempt: str) -> list[str]:
        return [key for key in self._entries if key.startswith(f"{attempt}{_SEPARATOR}")]

    async def _send(self, entries: Sequence[tuple[str, bytes | None]]) -> None:
        """Write records and wait until they are durable."""
        if not entries:
            return
        await self._reach()
        failures: list[StateBackupError] = []
        missing = [len(entries)]
        what = f"checkpoint cannot be written: topic={self._place.topic}"

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            del message
            missing[0] -= 1
            if error is not None:
                found = explained(error, what)
                failures.append(
                    found if isinstance(found, StateBackupError) else RetriableError(what)
                )

        def send() -> None:
            with explained_errors(what):
                for key, data in entries:
                    self._producers[0].produce(
                        self._place.topic, data, key.encode(), 0, on_delivery=on_delivery
                    )

        if not self._producers:
            self._producers.append(build_producer(self._settings, None, _ignore))
        await run_to_end(self._executor, send)
        since_ns = self._clock.monotonic_ns()
        while missing[0]:
            await run_to_end(self._executor, self._producers[0].flush, _FLUSH_S)
            elapsed_ms = (self._clock.monotonic_ns() - since_ns) / 1e6
            if missing[0] and elapsed_ms > 2 * self._settings.timeout_ms:
                raise RetriableError(what)
        if failures:
            raise failures[0]

    async def _catch_up(self) -> None:
        """Read what was written since the last call."""
        run, cluster = self._executor, await self._reach()
        end = (await run_to_end(run, cluster.end_offsets, [self._place]))[self._place]
        if end <= self._next_offset:
            return
        start = (await run_to_end(run, cluster.start_offsets, [self._place]))[self._place]
        reader = PartitionReader(
            self._settings,
            self._place,
            max(start, self._next_offset),
            end,
            is_committed_only=True,
            executor=run,
            clock=self._clock,
        )
        found: list[Message] = []
        try:
            await reader.open()
            while not reader.is_done:
                await reader.next(found.extend)
        finally:
            await reader.close()
        for record in found:
            key, data = (record.key() or b"").decode(), record.value()
            if data is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = data
        self._next_offset = end

    async def _reach(self) -> Cluster:
        """Return the cluster, with the topic in it."""
        if self._cluster is None:
            cluster = Cluster(self._settings)
            form = TopicForm(
                partitions=1,
                config={
                    "cleanup.policy": "compact",
                    "max.message.bytes": str(self._settings.max_message_bytes),
                },
            )
            try:
                await run_to_end(self._executor, cluster.ensure, self._place.topic, form)
            except BaseException:
                await run_to_end(self._executor, cluster.close)
                raise
            self._cluster = cluster
        return self._cluster


def _task(key: str) -> str:
    return key.partition(_SEPARATOR)[2]


def _ignore(error: KafkaError) -> None:
    """Deliveries tell what went wrong with each record."""
    del error

"""A compacted topic of one partition, followed and written: the newest record of a key counts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.client_errors import explained, explained_errors
from statekeep.backends.kafka.clients import build_producer
from statekeep.backends.kafka.cluster import BROKER_TIME, Cluster, TopicForm
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings, Replicas
from statekeep.backends.kafka.topics import TopicWatch, prepare_topics, retrier_of
from statekeep.clock import Clock
from statekeep.errors import RetriableError, StateBackupError
from statekeep.stores.delta import Change

_FLUSH_S: Final = 5.0
_HINT: Final = (
    "start the job again: it goes on from its last commit, with the topic that is there now"
)


@dataclass(slots=True)
class _Sender:
    """A producer, and how many are sending by it: the last one may have to release it."""

    held: list[Producer]
    user_count: int = 0


class _Turns:
    """One caller at a time. Who has waited while another one gave up shares its failure.

    Else the time-outs of all who wait add up where the cluster is away.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failure_count = 0
        self._failure = ""

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[None]:
        """Wait for a turn, and hold it for the length of the block.

        Raises:
            RetriableError: Another caller's turn has ended so meanwhile.
        """
        seen_count = self._failure_count
        async with self._lock:
            if self._failure_count > seen_count:
                raise RetriableError(self._failure)
            try:
                yield
            except RetriableError as exc:
                self._failure_count += 1
                self._failure = str(exc)
                raise


class CompactedTopic:
    """Reads what is new and writes records durably; created at first use.

    Coroutines of one event loop; the tasks of a process send at the same time.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        *,
        executor: BlockingExecutor,
        clock: Clock,
        replicas: Replicas | None = None,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build it; nothing is reached yet.

        Args:
            settings: Of the cluster.
            topic: Its name.
            executor: For blocking calls.
            clock: For time-outs.
            replicas: How many the topic gets; None: as ``kafka.replication.factor`` says.
            calls: Count what is asked of the client.
        """
        self.name = topic
        self._replicas = replicas
        self._calls = calls
        self._settings = settings
        self._partition = ChangelogPartition(topic, 0)
        self._watch = TopicWatch(topic, _HINT)
        self._executor = executor
        self._clock = clock
        self._cluster: Cluster | None = None
        self._getting_ready = _Turns()
        self._reading = _Turns()
        self._sender: _Sender | None = None
        self._next_offset = 0

    def rewind(self) -> None:
        """Begin at the first record again at the next `read_new`; not while one is under way."""
        self._next_offset = 0

    async def read_new(
        self, is_wanted: Callable[[Message], bool] = lambda _: True
    ) -> Sequence[Message]:
        """Return the committed records since the last call, in order; at first all of them.

        Args:
            is_wanted: Called on an executor thread; other records are dropped as they come.

        Raises:
            ConfigError: The cluster refuses us, or the topic was deleted and made anew.
            RetriableError: It does not answer in time.
        """
        await self._reach()
        async with self._reading.take():
            return await retrier_of(self._settings, self._clock).run(
                lambda: self._read_new(is_wanted), operation="read", subject=self.name
            )

    async def _read_new(self, is_wanted: Callable[[Message], bool]) -> Sequence[Message]:
        run, cluster = self._executor, await self._reach()
        await self._watch.check(cluster, run)
        end = (await run_to_end(run, cluster.end_offsets, [self._partition]))[self._partition]
        if end <= self._next_offset:
            return []
        start = (await run_to_end(run, cluster.start_offsets, [self._partition]))[self._partition]
        reader = PartitionReader(
            self._settings,
            self._partition,
            max(start, self._next_offset),
            end,
            is_committed_only=True,
            executor=run,
            clock=self._clock,
            calls=self._calls,
        )
        found: list[Message] = []
        try:
            await reader.open()
            while not reader.is_done:
                await reader.next(lambda records: found.extend(filter(is_wanted, records)))
        finally:
            await reader.close()
        self._next_offset = end
        return found

    async def send(self, entries: Sequence[Change]) -> None:
        """Write records and wait until they are durable; a value of None is a tombstone.

        Raises:
            ConfigError: The cluster refuses us, or a record is too large.
            RetriableError: Unknown whether all of them are durable; the next call begins with a
                client of its own.
        """
        if not entries:
            return
        await self._reach()
        if self._sender is None:
            self._sender = _Sender([build_producer(self._settings, None, _ignore)])
        sender = self._sender
        sender.user_count += 1
        try:
            with self._calls.counted("produce"):
                await self._send(sender, entries)
        except BaseException:
            if self._sender is sender:
                self._sender = None
            raise
        finally:
            sender.user_count -= 1
            await self._release(sender)

    async def close(self) -> None:
        """Release clients. Idempotent."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await self._release(sender)
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await run_to_end(self._executor, cluster.close)

    async def _release(self, sender: _Sender) -> None:
        """Drop a producer that is no longer used; on a pool thread, since that joins threads."""
        if sender is not self._sender and not sender.user_count:
            await run_to_end(self._executor, sender.held.clear)

    async def _send(self, sender: _Sender, entries: Sequence[Change]) -> None:
        failures: list[StateBackupError] = []
        missing = [len(entries)]
        what = f"records cannot be written: topic={self.name}"

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
                    sender.held[0].produce(self.name, data, key, 0, on_delivery=on_delivery)

        def flush() -> None:
            with explained_errors(what):
                sender.held[0].flush(_FLUSH_S)

        await run_to_end(self._executor, send)
        since_ns = self._clock.monotonic_ns()
        while missing[0]:
            await run_to_end(self._executor, flush)
            elapsed_ms = (self._clock.monotonic_ns() - since_ns) / 1e6
            if missing[0] and elapsed_ms > 2 * self._settings.timeout_ms:
                raise RetriableError(what)
        if failures:
            raise failures[0]

    async def _reach(self) -> Cluster:
        """Return the cluster, with the topic in it."""
        async with self._getting_ready.take():
            if self._cluster is None:
                self._cluster = await self._get_ready()
            return self._cluster

    async def _get_ready(self) -> Cluster:
        cluster = Cluster(self._settings, self._calls)
        form = TopicForm(
            partitions=1,
            config={
                "cleanup.policy": "compact",
                "max.message.bytes": str(self._settings.max_message_bytes),
                **BROKER_TIME,
            },
            replicas=self._replicas,
        )
        try:
            await prepare_topics(
                cluster,
                {self.name: form},
                settings=self._settings,
                executor=self._executor,
                clock=self._clock,
            )
        except BaseException:
            await run_to_end(self._executor, cluster.close)
            raise
        return cluster


def _ignore(error: KafkaError) -> None:
    """Deliveries tell what went wrong with each record."""
    del error

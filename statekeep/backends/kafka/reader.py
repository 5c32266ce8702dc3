"""Reading a range of one partition, without a consumer group."""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, Message, TopicPartition

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.client_errors import ProducerFencedError, explained, explained_errors
from statekeep.backends.kafka.clients import build_consumer
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.clock import Clock
from statekeep.errors import BlobNotFoundError, RetriableError

_BATCH: Final = 500
"""Records at once: of many more the garbage collector takes a third of a restore."""
_BATCHES: Final = 20
"""Of one call on an executor thread."""
_WAIT_S: Final = 0.05
"""How long a batch is waited for that is not full: the last one of a range."""
_OF_NO_CONCERN: Final = KafkaError.GROUP_AUTHORIZATION_FAILED
"""The library asks for the coordinator of a group that nothing here ever uses."""


class PartitionReader:
    """Reads the records of one partition from ``start`` up to, not including, ``end``.

    Attributes:
        position: Everything below it has been read, or is no record for us (control records,
            aborted ones, ones that compaction has dropped).
    """

    def __init__(
        self,
        settings: KafkaSettings,
        partition: ChangelogPartition,
        start: int,
        end: int,
        *,
        is_committed_only: bool,
        executor: BlockingExecutor,
        clock: Clock,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build the consumer; no I/O.

        Args:
            settings: Of the cluster.
            partition: The partition.
            start: First offset; it is an error if older records only are there.
            end: Behind the last offset wanted.
            is_committed_only: Leave out what belongs to no committed transaction, and wait where
                one is open.
            executor: For blocking calls.
            clock: For time-outs.
            calls: Count what is fetched.
        """
        self.position = start
        self._calls = calls
        self._partition = partition
        self._end = end
        self._timeout_ms = settings.timeout_ms
        self._executor = executor
        self._clock = clock
        self._consumer = build_consumer(settings, is_committed_only=is_committed_only)
        self._start = start
        self._progress_ns = clock.monotonic_ns()

    @property
    def is_done(self) -> bool:
        """Whether ``end`` is reached."""
        return self.position >= self._end

    async def open(self) -> None:
        """Begin to read."""
        partition = TopicPartition(self._partition.topic, self._partition.partition, self._start)
        with explained_errors(self._what("partition cannot be read")):
            await run_to_end(self._executor, self._consumer.assign, [partition])

    async def next(self, take: Callable[[list[Message]], object]) -> None:
        """Hand the next batches of records to ``take``, in order, on an executor thread.

        Waits a moment; there may be none yet.

        A node that does not know the topic is no reason to end: the reader has seen the topic, and
        not every node knows a new one yet.

        Raises:
            CheckpointCorruptError: ``start`` is out of range, or a record is damaged.
            RetriableError: No progress within the time-out: the cluster does not answer, the topic
                was deleted, or another writer's open transaction holds the records back.
        """
        before = self.position
        await run_to_end(self._executor, self._step, take)
        now_ns = self._clock.monotonic_ns()
        if self.position > before:
            self._progress_ns = now_ns
        elif (now_ns - self._progress_ns) / 1e6 > self._timeout_ms:
            raise RetriableError(
                f"{self._what('no more records arrive')} offset={self.position} end={self._end}"
            )

    async def close(self) -> None:
        """Release the consumer. Idempotent."""
        await run_to_end(self._executor, self._consumer.close)

    def _step(self, take: Callable[[list[Message]], object]) -> None:
        """Fetch some batches and hand them on, up to one that is not full: a call if anything came."""
        began_ns, before = self._calls.begin(), self.position
        try:
            for _ in range(_BATCHES):
                if self.is_done or self._take_batch(take) < _BATCH:
                    break
        except BaseException as exc:
            self._calls.ended("fetch", began_ns, exc)
            raise
        if self.position > before:
            self._calls.ended("fetch", began_ns)

    def _take_batch(self, take: Callable[[list[Message]], object]) -> int:
        """Fetch one batch and hand it on; return how many messages it was, events included."""
        wanted = min(_BATCH, self._end - self.position)
        with explained_errors(self._what("partition cannot be read")):
            batch = self._consumer.consume(wanted, _WAIT_S)
        records = [message for message in batch if message.error() is None]
        if len(records) < len(batch):
            self._check_events(batch)
        last = _offset(records[-1]) if records else -1
        if last >= self._end:
            records = [record for record in records if _offset(record) < self._end]
        if records:
            take(records)
        self.position = max(self.position, last + 1)
        return len(batch)

    def _check_events(self, batch: list[Message]) -> None:
        for message in batch:
            error = message.error()
            if error is None or error.code() == _OF_NO_CONCERN:
                continue
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # public name of the library
                self.position = max(self.position, _offset(message))
                continue
            found = explained(error, self._what("partition cannot be read"))
            if not isinstance(found, RetriableError | BlobNotFoundError | ProducerFencedError):
                raise found

    def _what(self, text: str) -> str:
        return f"{text}: topic={self._partition.topic} partition={self._partition.partition}"


def _offset(message: Message) -> int:
    offset = message.offset()
    return -1 if offset is None else offset

"""Writing changes of one task: in transactions, or without them."""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, ParamSpec

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.client_errors import expected_topic, explained
from statekeep.backends.kafka.clients import QUEUE_RECORDS, build_producer
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.clock import Clock
from statekeep.errors import RetriableError
from statekeep.stores.delta import Change

P = ParamSpec("P")

logger = logging.getLogger(__name__)

_CALL_S: Final = 5.0
"""Longest blocking call: a cancel waits for it."""
_OLD: Final = 0.25
"""Part of its time-out after which a transaction is committed, and another one begun: the rest is for
the commit. Not by size: a commit waits until the queue is empty, and nothing fills it meanwhile."""
_QUEUED_BYTES: Final = 32 << 20
"""Bytes that wait to be sent; bounds the memory of an upload."""
_QUEUED_RECORDS: Final = QUEUE_RECORDS // 2
"""Records that wait to be sent, however small: the rest is for the next call of `write`."""


class ChangelogWriter(ABC):
    """The one producer of a task, over all its stores.

    After any error but `RetriableError` from `open` it must be discarded. Coroutines of one event
    loop, one at a time; no call is left running when its caller is cancelled.

    Attributes:
        offsets: Of the last record delivered to each partition by this writer.
        commit_counts: Transactions with records of each partition that this writer has committed.
        sent_bytes: Keys and values that were given to the producer so far.
        calls: Count what is asked of the client.
    """

    is_transactional: bool
    """Whether readers see all records of a commit or none."""

    def __init__(
        self,
        settings: KafkaSettings,
        name: str,
        *,
        transactional_id: str | None,
        executor: BlockingExecutor,
        clock: Clock,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build the producer; no I/O."""
        self.calls = calls
        self.offsets: dict[ChangelogPartition, int] = {}
        self.commit_counts: Counter[ChangelogPartition] = Counter()
        self.sent_bytes = 0
        self._name = name
        self._settings = settings
        self._executor = executor
        self._clock = clock
        self._fatal: KafkaError | None = None
        self._undelivered: KafkaError | None = None
        self._held = [
            build_producer(
                settings,
                transactional_id,
                self._on_error,
                is_gapless=not self.is_transactional,
            )
        ]
        self._average_bytes = 1.0

    @abstractmethod
    async def open(self) -> None:
        """Get ready, before anything else.

        Raises:
            ConfigError: The cluster refuses us.
            RetriableError: It does not answer in time.
        """

    async def write(
        self, partition: ChangelogPartition, entries: Sequence[Change], headers: Mapping[str, bytes]
    ) -> None:
        """Add records to the commit; a value of None is a tombstone.

        Args:
            partition: Where to.
            entries: At most some megabytes and some thousands.
            headers: Go with the first record, and with the first that is no tombstone: compaction keeps
                that one for as long as its value counts.

        Raises:
            ProducerFencedError: A newer writer has taken the transactional id.
            ConfigError: A record is larger than the settings allow.
            RetriableError: Records cannot be sent in time.
        """
        if not entries:
            return
        await self._begin(partition)
        with self.calls.counted("produce"):
            await self._run(self._enqueue, partition, entries, headers)
            most = max(1, int(_QUEUED_BYTES / self._average_bytes))
            await self._drain(min(_QUEUED_RECORDS, most))

    @abstractmethod
    async def commit(self) -> None:
        """Make durable what was written since the last commit; nothing where nothing was.

        Raises:
            ProducerFencedError: A newer writer has taken the transactional id.
            RetriableError: Unknown whether it is durable.
        """

    @abstractmethod
    async def commit_if_old(self) -> None:
        """Commit what would be lost if it waited for much longer.

        Callers that do other work between two writes call it repeatedly: the cluster's time-out counts
        from the beginning of a transaction, whether anything is written or not.

        Raises:
            ProducerFencedError: A newer writer has taken the transactional id.
            RetriableError: Unknown whether it is durable.
        """

    async def discard(self) -> None:
        """Release the producer with what was not committed. Idempotent."""
        await self._run(_release, self._held)

    @abstractmethod
    async def _begin(self, partition: ChangelogPartition) -> None:
        """Get ready for some records of a partition."""

    def _enqueue(
        self, partition: ChangelogPartition, entries: Sequence[Change], headers: Mapping[str, bytes]
    ) -> None:
        """Hand records to the library, which reports where the last one lies."""
        produce, topic, number = self._producer.produce, partition.topic, partition.partition
        report, last = self._delivered(partition), len(entries) - 1
        put = next((i for i, (_, value) in enumerate(entries) if value is not None), 0)
        key, value = entries[0]
        begin = 0
        with self._explained("records cannot be sent"):
            try:
                for mark in sorted({0, put, last}):  # a report of each would cost as much again
                    for key, value in entries[begin:mark]:
                        produce(topic, value, key, number)
                    key, value = entries[mark]
                    produce(
                        topic,
                        value,
                        key,
                        number,
                        on_delivery=report,
                        headers=dict(headers if mark in {0, put} else {}),
                    )
                    begin = mark + 1
            except KafkaException as exc:
                if self._fatal:
                    raise
                raise self._refusal(exc.args[0], key, value) from exc
        size = sum([len(key) + len(value or b"") for key, value in entries])
        self.sent_bytes += size
        self._average_bytes = max(1.0, size / len(entries))
        self._poll(0)

    def _refusal(self, error: KafkaError, key: bytes, value: bytes | None) -> Exception:
        what = self._what("record is refused")
        size, limit = len(key) + len(value or b""), self._settings.max_message_bytes
        return explained(error, f"{what} bytes={size} max_bytes={limit}")

    def _delivered(
        self, partition: ChangelogPartition
    ) -> Callable[[KafkaError | None, Message], None]:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            self._undelivered = self._undelivered or error
            if error is None and offset is not None:
                self.offsets[partition] = max(offset, self.offsets.get(partition, -1))

        return on_delivery

    def _poll(self, timeout_s: float) -> None:
        """Let the library report deliveries; it raises here what is fatal."""
        with self._explained("producer has failed"):
            self._producer.poll(timeout_s)

    async def _drain(self, limit: int) -> None:
        """Wait until no more than ``limit`` records are queued, as long as they get fewer."""
        queued, since_ns = len(self._producer), self._clock.monotonic_ns()
        while queued > limit:
            await self._run(self._poll, 0.05)
            now = len(self._producer)
            if now < queued:
                queued, since_ns = now, self._clock.monotonic_ns()
            elif self._is_over(since_ns):
                raise RetriableError(self._what("records are not taken in time"))

    def _is_over(self, since_ns: int) -> bool:
        return (self._clock.monotonic_ns() - since_ns) / 1e6 > self._settings.timeout_ms

    @property
    def _producer(self) -> Producer:
        return self._held[0]

    def _on_error(self, error: KafkaError) -> None:
        """Keep what the library calls fatal: later calls only say that something was."""
        if error.fatal():
            self._fatal = error
        logger.debug("%s reason=%s", self._what("producer reports an error"), error.name())

    @contextmanager
    def _explained(self, what: str) -> Generator[None]:
        """Turn what the library raises into errors of ours, as `explained_errors` does."""
        with expected_topic():
            try:
                yield
            except KafkaException as exc:
                raise explained(self._fatal or exc.args[0], self._what(what)) from exc
            except BufferError as exc:  # the library's queue is full
                raise RetriableError(self._what(what)) from exc

    async def _run(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        await run_to_end(self._executor, call, *args, **kwargs)

    def _what(self, text: str) -> str:
        return f"{text}: writer={self._name}"


class TransactionWriter(ChangelogWriter):
    """Writes in transactions; opening one fences the writer before.

    One that was discarded leaves its transaction open: the next one aborts it.
    """

    is_transactional = True

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        *,
        executor: BlockingExecutor,
        clock: Clock,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build the producer; no I/O."""
        super().__init__(
            settings,
            transactional_id,
            transactional_id=transactional_id,
            executor=executor,
            clock=clock,
            calls=calls,
        )
        self._is_in_transaction = False
        self._partitions: set[ChangelogPartition] = set()
        self._begun_ns = 0

    @override
    async def open(self) -> None:
        """Take the transactional id: older writers are fenced, their open transaction aborted."""
        what = "transactional id cannot be taken"
        await self._insist("init-transactions", self._producer.init_transactions, what)

    @override
    async def commit(self) -> None:
        if not self._is_in_transaction:
            return
        what = "transaction cannot be committed"
        await self._insist("commit-transaction", self._producer.commit_transaction, what)
        self._is_in_transaction = False
        self.commit_counts.update(self._partitions)
        self._partitions.clear()

    @override
    async def commit_if_old(self) -> None:
        age_ms = (self._clock.monotonic_ns() - self._begun_ns) / 1e6
        if age_ms > self._settings.transaction_timeout_ms * _OLD:
            await self.commit()

    @override
    async def _begin(self, partition: ChangelogPartition) -> None:
        await self.commit_if_old()
        if not self._is_in_transaction:
            with self._explained("transaction cannot begin"):
                self._producer.begin_transaction()
            self._is_in_transaction = True
            self._begun_ns = self._clock.monotonic_ns()
        self._partitions.add(partition)

    async def _insist(self, operation: str, call: Callable[[float], None], what: str) -> None:
        """Repeat a call of the transaction protocol as the library asks for."""
        since_ns = self._clock.monotonic_ns()
        while True:
            try:
                with self.calls.counted(operation):
                    await self._run(call, _CALL_S)
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                if self._fatal or not error.retriable() or self._is_over(since_ns):
                    with self._explained(what):
                        raise
                await self._clock.sleep(0.05)
            else:
                return


class PlainWriter(ChangelogWriter):
    """Writes without transactions: what was written before a failure stays, behind every marker.

    Records keep their order, none is written twice and none behind one that is missing, but others
    may come in between: the caller compares offsets with the number of records.
    """

    is_transactional = False

    def __init__(
        self,
        settings: KafkaSettings,
        name: str,
        *,
        executor: BlockingExecutor,
        clock: Clock,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build the producer; no I/O."""
        super().__init__(
            settings, name, transactional_id=None, executor=executor, clock=clock, calls=calls
        )

    @override
    async def open(self) -> None:
        pass

    @override
    async def commit(self) -> None:
        with self.calls.counted("flush"):
            await self._drain(0)
            failure = self._undelivered or self._fatal
            if failure is not None:
                with expected_topic():
                    raise explained(failure, self._what("record is not delivered"))

    @override
    async def commit_if_old(self) -> None:
        pass

    @override
    async def _begin(self, partition: ChangelogPartition) -> None:
        pass


def _release(held: list[Producer]) -> None:
    """Drop the last reference here, on a pool thread: the library joins its threads then."""
    if held:
        held[0].purge()
        held.pop()

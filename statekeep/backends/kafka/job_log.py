"""The job log in a topic of one partition: only who holds its transactional id can append."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from confluent_kafka import Message
from typing_extensions import override

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.client_errors import ProducerFencedError
from statekeep.backends.kafka.cluster import BROKER_TIME, Cluster, TopicForm
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.topics import TopicWatch, prepare_topics, retrier_of
from statekeep.backends.kafka.writer import TransactionWriter
from statekeep.checkpoint.job_log import DAMAGED_LOG_HINT, JobLog, PositionTakenError
from statekeep.clock import Clock
from statekeep.errors import CheckpointCorruptError, ConfigError, RetriableError
from statekeep.fault_points import fault_point

_FLOOR: Final = b"floor"
_POSITION: Final = re.compile(rb"[0-9]{1,20}")
_FENCED_TRIES: Final = 100
"""How often an append takes the transactional id back: each time another writer appended."""
_HINT: Final = (
    "stop the job and give the topic back the records that it had, from a mirror or a backup of the cluster:"
    " a job that starts with an empty log is a new one"
)


class KafkaJobLog(JobLog):
    """One record per position, in order; the key of a record is its position, or ``floor``.

    An append takes the transactional id (which fences every other writer and ends what it left),
    reads the log to its end, and writes at the next position. It is committed only if no other
    writer took the id meanwhile; so of any number of racing appends exactly one succeeds. The id is kept for
    the next append; that another writer took it shows then.

    What was read is kept until a call asks for what comes after it, so that a call reads no more than
    what is new and memory does not grow with the log. One that asks for older records reads them again.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: str,
        *,
        executor: BlockingExecutor,
        clock: Clock,
        calls: ClientCalls = NOT_COUNTED,
    ) -> None:
        """Build the log; nothing is reached yet.

        Args:
            settings: Of the cluster.
            topic: Of this log alone; also its transactional id.
            executor: For blocking calls.
            clock: For time-outs.
            calls: Count what is asked of the client.
        """
        self._calls = calls
        self._settings = settings
        self._partition = ChangelogPartition(topic, 0)
        self._watch = TopicWatch(topic, _HINT)
        self._executor = executor
        self._clock = clock
        self._cluster: Cluster | None = None
        self._writer: TransactionWriter | None = None
        self._records: dict[int, bytes] = {}
        """What stands at the positions from `_passed` on, without those that are trimmed."""
        self._offsets: dict[int, int] = {}
        """Where each record stands that is not trimmed."""
        self._passed = 0
        self._floor = 0
        self._floor_offset = 0
        self._next_offset = 0

    @override
    async def probe(self) -> None:
        try:
            await prepare_topics(
                self._reach(),
                {self._partition.topic: self._form()},
                settings=self._settings,
                executor=self._executor,
                clock=self._clock,
            )
        except RetriableError as exc:
            msg = f"the storage of the job log is unreachable: topic={self._partition.topic}"
            raise ConfigError(msg, key="kafka.bootstrap.servers") from exc

    @override
    async def append(self, position: int, data: bytes) -> None:
        def at_position(next_position: int) -> bool:
            if position < next_position:
                raise PositionTakenError(position)
            if position > next_position:
                raise RetriableError(
                    f"the job log is shorter than its writer has seen: topic={self._partition.topic} "
                    f"position={position} next_position={next_position}"
                )
            return True

        await self._write_if(lambda: at_position(self._next_position), b"%d" % position, data)

    @override
    async def read(self, start: int, *, limit: int | None = None) -> Sequence[tuple[int, bytes]]:
        found = await self._find_from(start)
        for expected, (position, _) in enumerate(found, max(start, self._floor)):
            if position != expected:
                raise CheckpointCorruptError(
                    "a record of the job log is missing: "
                    f"topic={self._partition.topic} position={expected}"
                )
        self._passed = start
        for position in [p for p in self._records if p < start]:
            del self._records[position]
        return found[:limit]

    @override
    async def read_left(self) -> Sequence[tuple[int, bytes]]:
        return await self._find_from(0)

    async def _find_from(self, start: int) -> list[tuple[int, bytes]]:
        """Return the records from a position on that are there and not trimmed."""
        if start < self._passed:
            self._passed = self._next_offset = 0
            self._records.clear()
            self._offsets.clear()
        await self._catch_up()
        first = max(start, self._floor)
        return [(p, data) for p, data in sorted(self._records.items()) if p >= first]

    @override
    async def read_at(self, positions: Collection[int]) -> Sequence[tuple[int, bytes]]:
        await self._catch_up()
        found: list[tuple[int, bytes]] = []
        for position in sorted(self._offsets.keys() & set(positions)):
            data = self._records.get(position)
            if data is None:
                data = await retrier_of(self._settings, self._clock).run(
                    partial(self._read_one, self._offsets[position]),
                    operation="read a record of the job log",
                    subject=self._partition.topic,
                )
            found.append((position, data))
        return found

    @override
    async def is_there(self) -> bool:
        topic = self._partition.topic
        found = await retrier_of(self._settings, self._clock).run(
            lambda: run_to_end(self._executor, self._reach().describe, [topic]),
            operation="look for the job log",
            subject=topic,
        )
        return topic in found and bool(await self.read_left())

    @override
    async def read_floor(self) -> int:
        await self._catch_up()
        return self._floor

    @override
    async def trim(self, floor: int) -> None:
        await self._catch_up()
        if floor > self._floor:
            await self._raise_floor(floor)
            fault_point("trim.after_floor")
        needed = min([self._floor_offset, *self._offsets.values()])
        if self._floor > 0:
            await run_to_end(self._executor, self._reach().delete_before, self._partition, needed)

    @override
    async def close(self) -> None:
        await self._drop_writer()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await run_to_end(self._executor, cluster.close)

    async def _write_if(self, is_wanted: Callable[[], bool], key: bytes, data: bytes) -> None:
        """Write one record, if it is still wanted once all other writers are fenced."""
        for _ in range(_FENCED_TRIES):
            try:
                writer = await self._open_writer()
                # The writer that had the id before is fenced, so the log does not grow any more.
                await self._catch_up()
                if not is_wanted():
                    return
                writer.offsets.clear()
                await writer.write(self._partition, [(key, data)], {})
                await writer.commit()
                await self._check_behind(writer.offsets.get(self._partition))
            except PositionTakenError:
                raise
            except ProducerFencedError:
                await self._drop_writer()
            except BaseException:
                await self._drop_writer()
                raise
            else:
                self._fold_own(writer.offsets.get(self._partition), key, data)
                return
        raise RetriableError(
            f"other writers keep taking over the job log: topic={self._partition.topic}"
        )

    async def _check_behind(self, offset: int | None) -> None:
        """Make sure that a record of our own went behind all that was read.

        Raises:
            ConfigError: The topic was deleted between the look at it and the record.
            RetriableError: As above, and the node that was asked does not know it yet.
        """
        if offset is not None and offset < self._next_offset:
            await self._watch.check(self._reach(), self._executor)
            raise RetriableError(
                "a record went to a job log that was created anew: "
                f"topic={self._partition.topic} offset={offset}"
            )

    def _fold_own(self, offset: int | None, key: bytes, data: bytes) -> None:
        """Take in a record of our own without reading it, if it is the next one."""
        if offset is not None and offset == self._next_offset:
            self._fold(key, data, offset)
            self._next_offset = offset + 2  # the record that ends the transaction takes one

    async def _catch_up(self) -> None:
        """Read what was committed since the last call; a node that dies meanwhile is waited out."""
        await retrier_of(self._settings, self._clock).run(
            self._read_new, operation="read the job log", subject=self._partition.topic
        )

    async def _read_new(self) -> None:
        run, cluster = self._executor, self._reach()
        await self._watch.check(cluster, run)
        end = (
            await run_to_end(run, cluster.end_offsets, [self._partition], is_committed_only=True)
        )[self._partition]
        # What we committed ourselves may not be marked so everywhere yet.
        own = self._writer.offsets.get(self._partition, -1) if self._writer is not None else -1
        end = max(end, own + 1)
        if end <= self._next_offset:
            return
        start = (await run_to_end(run, cluster.start_offsets, [self._partition]))[self._partition]
        reader = self._reader(max(start, self._next_offset), end)
        found: list[Message] = []
        try:
            await reader.open()
            while not reader.is_done:
                await reader.next(found.extend)
        except CheckpointCorruptError as exc:
            oldest = (await run_to_end(run, cluster.start_offsets, [self._partition]))[
                self._partition
            ]
            if oldest <= reader.position:
                raise
            msg = f"the job log was trimmed while it was read: topic={self._partition.topic}"
            raise RetriableError(msg) from exc
        finally:
            await reader.close()
        for record in found:
            self._fold(record.key() or b"", record.value() or b"", record.offset() or 0)
        self._next_offset = max(end, self._next_offset)

    async def _read_one(self, offset: int) -> bytes:
        found: list[Message] = []
        reader = self._reader(offset, offset + 1)
        try:
            await reader.open()
            while not reader.is_done:
                await reader.next(found.extend)
        finally:
            await reader.close()
        if not found:
            raise RetriableError(
                f"a record of the job log is gone: topic={self._partition.topic} offset={offset}"
            )
        return found[0].value() or b""

    def _reader(self, start: int, end: int) -> PartitionReader:
        return PartitionReader(
            self._settings,
            self._partition,
            start,
            end,
            is_committed_only=True,
            executor=self._executor,
            clock=self._clock,
            calls=self._calls,
        )

    def _fold(self, key: bytes, data: bytes, offset: int) -> None:
        where = f"topic={self._partition.topic} offset={offset}"
        if key == _FLOOR:
            self._floor = max(self._floor, position_of(data, where=where))
            self._floor_offset = offset
            for position in [p for p in self._offsets if p < self._floor]:
                del self._offsets[position]
                self._records.pop(position, None)
        elif (position := position_of(key, where=where)) >= self._floor:
            self._offsets[position] = offset
            if position >= self._passed:
                self._records[position] = data

    @property
    def _next_position(self) -> int:
        return max(self._offsets, default=self._floor - 1) + 1

    async def _raise_floor(self, floor: int) -> None:
        # The newest floor goes behind the records, so that no trim drops it.
        await self._write_if(lambda: floor > self._floor, _FLOOR, b"%d" % floor)
        await self._catch_up()

    async def _open_writer(self) -> TransactionWriter:
        if self._writer is None:
            self._writer = TransactionWriter(
                self._settings,
                self._partition.topic,
                executor=self._executor,
                clock=self._clock,
                calls=self._calls,
            )
            try:
                await self._writer.open()
            except BaseException:
                await self._drop_writer()
                raise
        return self._writer

    async def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.discard()

    def _reach(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._settings, self._calls)
        return self._cluster

    def _form(self) -> TopicForm:
        return TopicForm(
            partitions=1,
            config={
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "max.message.bytes": str(self._settings.max_message_bytes),
                **BROKER_TIME,
            },
        )


def position_of(data: bytes, *, where: str) -> int:
    """Return the position in the job log that digits stand for.

    Raises:
        CheckpointCorruptError: They stand for none.
    """
    if _POSITION.fullmatch(data) is None:
        error = CheckpointCorruptError(f"not a record of the job log: {where}")
        error.add_note(DAMAGED_LOG_HINT)
        raise error
    return int(data)

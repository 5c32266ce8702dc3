"""Samza's checkpoint topic without a cluster: the real reader and writer of it on a list of records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from confluent_kafka import Message
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.kafka.checkpoint_topic import KafkaCheckpointManager, checkpoint_topic
from statekeep.backends.kafka.compacted_topic import CompactedTopic
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoint_manager import CheckpointForms, CheckpointManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import Clock, SystemClock
from statekeep.stores.delta import Change
from statekeep.testing.executor import SerialExecutor

MINUTE_MS: Final = 60_000
KAFKA: Final = BackendName("kafka")


@dataclass(frozen=True)
class Record:
    """What a reader asks of a record."""

    place: int
    name: bytes
    data: bytes | None

    def key(self) -> bytes:
        return self.name

    def value(self) -> bytes | None:
        return self.data

    def offset(self) -> int:
        return self.place

    def timestamp(self) -> tuple[int, int]:
        """Each write comes a minute after the one before."""
        return 1, self.place * MINUTE_MS


_topics: Final[dict[tuple[str, str], list[Record]]] = {}


class FakeTopic:
    """Follows and writes one list of records, as `CompactedTopic` does a topic."""

    def __init__(self, name: str, records: list[Record]) -> None:
        self.name = name
        self._records = records
        self._read = 0

    def rewind(self) -> None:
        self._read = 0

    async def read_new(
        self, is_wanted: Callable[[Message], bool] = lambda _: True
    ) -> Sequence[Message]:
        found, self._read = self._records[self._read :], len(self._records)
        return [record for record in cast("Sequence[Message]", found) if is_wanted(record)]

    async def send(self, entries: Sequence[Change]) -> None:
        place = self._records[-1].place + 1 if self._records else 0
        self._records += [Record(place, key, value) for key, value in entries]

    async def close(self) -> None:
        pass


class TopicFactory(BlobBackendFactory):
    """A place for checkpoints in Samza's forms; its ``uri`` tells one cluster from another."""

    def __init__(self, name: BackendName, settings: Mapping[str, str]) -> None:
        super().__init__(name, settings)
        self._uri = settings["uri"]

    def checkpoint_manager(
        self,
        job_name: str,
        job_id: str,
        forms: CheckpointForms,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> CheckpointManager:
        return _Manager(self._uri, checkpoint_topic(job_name, job_id), forms, executor, clock)

    def checkpoint_place(self, job_name: str, job_id: str) -> str:
        return f"topic {checkpoint_topic(job_name, job_id)}"


def reader_of(
    uri: str, job_name: str, forms: CheckpointForms, job_id: str = "1"
) -> CheckpointManager:
    """Return a reader of a job's topic that knows some forms."""
    topic = checkpoint_topic(job_name, job_id)
    return _Manager(uri, topic, forms, SerialExecutor(), SystemClock())


def put_record(uri: str, job_name: str, key: bytes, value: bytes | None) -> None:
    """Write a record to a job's topic, as somebody else may."""
    records = _topics.setdefault((uri, checkpoint_topic(job_name, "1")), [])
    records.append(Record(len(records), key, value))


class _Manager(KafkaCheckpointManager):
    def __init__(
        self,
        uri: str,
        topic: str,
        forms: CheckpointForms,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        settings = KafkaSettings.parse("kafka", {"bootstrap.servers": "broker:9092"})
        super().__init__(settings, topic, forms, KAFKA, executor=executor, clock=clock)
        records = _topics.setdefault((uri, topic), [])
        self._topic = cast("CompactedTopic", FakeTopic(topic, records))

    @override
    async def close(self) -> None:
        await self._topic.close()

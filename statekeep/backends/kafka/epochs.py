"""The stamp that goes with the records of a commit: it distinguishes jobs, and older driver sessions from newer ones.

That a commit is exact rests on the job log and on the transactional id, never on stamps. Stamps stop a fenced
driver early, and keep a job from emptying a changelog that is not its own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.backends.kafka.calls import NOT_COUNTED, ClientCalls
from statekeep.backends.kafka.cluster import Cluster
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.reader import PartitionReader
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.clock import Clock
from statekeep.errors import ConfigError, TaskFencedError
from statekeep.stores.delta import Change

HEADER: Final = "statekeep"
_GIVEN_UP: Final = "statekeep-given-up"
_UNKNOWN: Final = "unknown"
_FORM: Final = re.compile(rb"([^ ]*) ([0-9]{1,18}) ([0-9]{1,18})")

Headers = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None


@dataclass(frozen=True, slots=True)
class EpochStamp:
    """Which job log, epoch and attempt a record comes from."""

    job_uid: str
    epoch: int
    attempt: int

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The record headers that carry the stamp."""
        return {HEADER: f"{self.job_uid} {self.epoch} {self.attempt}".encode()}


def check_epoch(own: EpochStamp, headers: Headers, topic: str) -> None:
    """Look at the headers of a record that stands behind the base's marker.

    Epochs of another job log say nothing: numbers begin anew where a log was reset.

    Raises:
        TaskFencedError: A newer epoch of the same job log wrote it.
    """
    for stamp in _stamps(headers):
        if stamp.job_uid == own.job_uid and stamp.epoch > own.epoch:
            msg = f"a newer driver has written to the changelog: topic={topic}"
            raise TaskFencedError(msg, own_epoch=own.epoch, newer_epoch=stamp.epoch)


class Owners:
    """Finds out whether the committed records of a changelog are a job's own.

    Only few records are stamped, and compaction may drop them: that a record has no stamp says nothing,
    that none has any does.
    """

    def __init__(self, own: EpochStamp, partition: ChangelogPartition) -> None:
        """Take whose they have to be, and where they stand."""
        self._own = own
        self._partition = partition
        self._offsets: dict[str, int | None] = {}

    def take(self, records: Iterable[Message]) -> None:
        """Look at the next records."""
        for record in records:
            headers = record.headers()
            given_up = _job_given_up(headers)
            if given_up is None:
                uids = [stamp.job_uid for stamp in _stamps(headers)] or [_UNKNOWN]
                for uid in uids:
                    self._offsets.setdefault(uid, record.offset())
            elif given_up in self._offsets:
                # It was let write here, so what bears no stamp was its own too.
                self._offsets = {
                    uid: offset
                    for uid, offset in self._offsets.items()
                    if uid not in {given_up, _UNKNOWN}
                }

    @property
    def are_own(self) -> bool:
        """Whether some of what was seen is the job's, and nothing another one's."""
        return self._own.job_uid in self._offsets and not self._others

    @property
    def _others(self) -> Sequence[str]:
        return [uid for uid in self._offsets if uid not in {self._own.job_uid, _UNKNOWN}]

    def check(self) -> None:
        """Judge by all that was seen.

        Raises:
            ConfigError: There are records of another job, or nothing says that any is the job's.
        """
        if self.are_own or not self._offsets:
            return
        own, others = self._own.job_uid, self._others
        found = others[0] if others else _UNKNOWN
        raise ConfigError(
            f"changelog holds records of another job, which a first commit would delete: "
            f"topic={self._partition.topic} partition={self._partition.partition} "
            f"offset={self._offsets[found]} job_uid={found} own_job_uid={own}",
            key="job.name",
            hint="if the job is to go on from them, let it find its commits: job.name, job.log.backend; "
            "else name another topic with "
            "stores.<store>.changelog, or, if the records are not needed, delete the topic",
        )


def given_up(job_uid: str) -> tuple[Change, Mapping[str, bytes]]:
    """Return a record, and its headers, that says: what this job has written up to here has no owner any more.

    The next full upload deletes it, as it does every key that it does not know.
    """
    uid = job_uid.encode()
    # Compaction keeps one record of each key: several jobs of one log may have to say so.
    return (f"{_GIVEN_UP} {job_uid}".encode(), uid), {_GIVEN_UP: uid}


def _job_given_up(headers: Headers) -> str | None:
    for name, value in _pairs(headers):
        if name == _GIVEN_UP and isinstance(value, bytes):
            return value.decode(errors="replace")
    return None


def _pairs(headers: Headers) -> Iterable[tuple[str, bytes | str | None]]:
    return headers.items() if isinstance(headers, Mapping) else headers or ()


def _stamps(headers: Headers) -> Iterator[EpochStamp]:
    for name, value in _pairs(headers):
        match = _FORM.fullmatch(value) if name == HEADER and isinstance(value, bytes) else None
        if match is not None:
            yield EpochStamp(match[1].decode(errors="replace"), int(match[2]), int(match[3]))


async def is_own(
    settings: KafkaSettings,
    cluster: Cluster,
    own: EpochStamp,
    partition: ChangelogPartition,
    *,
    executor: BlockingExecutor,
    clock: Clock,
    calls: ClientCalls = NOT_COUNTED,
) -> bool:
    """Return whether a changelog is there, with committed records that are the job's and no other's.

    Raises:
        CheckpointCorruptError: A record is damaged.
        RetriableError: The cluster does not answer.
    """
    facts = (await run_to_end(executor, cluster.describe, [partition.topic])).get(partition.topic)
    if facts is None or facts.partitions <= partition.partition:
        return False
    start = (await run_to_end(executor, cluster.start_offsets, [partition]))[partition]
    ends = await run_to_end(executor, cluster.end_offsets, [partition], is_committed_only=True)
    if ends[partition] <= start:
        return False
    owners = Owners(own, partition)
    reader = PartitionReader(
        settings,
        partition,
        start,
        ends[partition],
        is_committed_only=True,
        executor=executor,
        clock=clock,
        calls=calls,
    )
    try:
        await reader.open()
        while not reader.is_done:
            await reader.next(owners.take)
    finally:
        await reader.close()
    return owners.are_own

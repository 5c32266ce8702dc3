"""Which records an increment writes, and what its marker says of the content, without a cluster."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Message
from typing_extensions import override

from statekeep.backends.base import CommitContext
from statekeep.backends.kafka import images, upload
from statekeep.backends.kafka.epochs import EpochStamp
from statekeep.backends.kafka.marker import ContentSummary, KafkaStateCheckpointMarker
from statekeep.backends.kafka.names import ChangelogPartition
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.backends.kafka.upload import StorePartition, StoreUpload
from statekeep.backends.kafka.writer import ChangelogWriter
from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2
from statekeep.errors import RetriableError, VersionDamagedError
from statekeep.stores.delta import Change
from statekeep.stores.rocksdb import RocksDbStore
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE, FakeTask, seal_version

SETTINGS = KafkaSettings(servers="127.0.0.1:1", topic_prefix="kafka")
PLACE = ChangelogPartition("topic", 3)
CLOCK = FakeClock()
EXECUTOR = SerialExecutor()

BASE = {b"%d" % number: b"1" for number in range(9)}
CHANGES: Sequence[Mapping[bytes, bytes | None]] = (
    {b"0": b"2", b"1": None, b"new": b"2"},
    {b"0": b"3", b"1": b"3", b"2": None},
)
LAST = {**BASE, b"0": b"3", b"1": b"3", b"new": b"2"}
del LAST[b"2"]


class RecordingWriter(ChangelogWriter):
    """Keeps what it is given.

    Attributes:
        written: The records.
        looks: How many there were each time that the age of the transaction was looked at.
    """

    is_transactional = True

    def __init__(self) -> None:
        super().__init__(SETTINGS, "id", transactional_id=None, executor=EXECUTOR, clock=CLOCK)
        self.written: list[Change] = []
        self.looks: list[int] = []

    @override
    async def open(self) -> None:
        pass

    @override
    async def write(
        self, partition: ChangelogPartition, entries: Sequence[Change], headers: Mapping[str, bytes]
    ) -> None:
        self.written += entries

    @override
    async def commit(self) -> None:
        pass

    @override
    async def commit_if_old(self) -> None:
        self.looks.append(len(self.written))

    @override
    async def _begin(self, partition: ChangelogPartition) -> None:
        pass


@dataclass(frozen=True)
class FakeMessage:
    _key: bytes

    def key(self) -> bytes:
        return self._key

    def headers(self) -> None:
        return None


@dataclass
class TailReader:
    """Gives what stands behind the base's marker, some records at a time."""

    records: Sequence[Change]
    position: int = 0

    @property
    def is_done(self) -> bool:
        return self.position == len(self.records)

    async def open(self) -> None:
        pass

    async def next(self, take: Callable[[list[Message]], object]) -> None:
        batch = self.records[self.position : self.position + 3]
        self.position += len(batch)
        take([cast("Message", FakeMessage(key)) for key, _ in batch])

    async def close(self) -> None:
        pass


@dataclass
class Lineage:
    """A base, of which the topic holds everything, and a version that two deltas lead to."""

    base: SealedVersion
    version: SealedVersion
    writer: RecordingWriter = field(default_factory=RecordingWriter)
    tail_count: int = 0
    """Records behind the base's marker and its commit record: the first that the writer was given."""
    age_ms: int = 0
    """Of the base."""

    async def upload(self) -> tuple[KafkaStateCheckpointMarker, list[Change]]:
        """Upload the version, and return its marker and what was written."""
        return await self.attempt().run(), self.writer.written

    def attempt(self) -> StoreUpload:
        """Return an upload of the version."""
        marker = KafkaStateCheckpointMarker(
            PLACE.topic,
            PLACE.partition,
            8,
            "topic id",
            str(self.base.id),
            ContentSummary.of(BASE.items()),
        )
        made_ms = CLOCK.time_ns() // 1_000_000 - self.age_ms
        checkpoint = CheckpointV2(CheckpointId(made_ms, 1), {}, {})
        return StoreUpload(
            settings=SETTINGS,
            commit=CommitContext(CheckpointId(0, 1), 1, 1, self.version, checkpoint, self.base.id),
            store=STORE,
            at=StorePartition(PLACE, "topic id", 0, 10 + self.tail_count),
            base=marker,
            changes=self.version.changes_since(STORE, self.base.id),
            is_known_own=True,
            stamp=EpochStamp("77aa", 1, 1),
            writer=self.writer,
            executor=EXECUTOR,
            clock=CLOCK,
            uid="a1",
        )


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    task = TaskDirectory.of(tmp_path, FakeTask())
    base = seal_version(task, "1_00000001", None, BASE)
    version = base
    for number, changes in enumerate(CHANGES, 2):
        name = f"{number}_0000000{number}"
        version = seal_version(task, name, version, changes, committed=base.id)
    return Lineage(base, version)


@pytest.fixture
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_MAX_MERGED_BYTES", 0)


@pytest.mark.asyncio
async def test_the_last_change_of_each_key_is_written(lineage: Lineage) -> None:
    marker, written = await lineage.upload()
    assert sorted(written) == [(b"0", b"3"), (b"1", b"3"), (b"2", None), (b"new", b"2")]
    assert marker.content == ContentSummary.of(LAST.items())


@pytest.mark.asyncio
async def test_without_the_image_of_the_base_the_version_is_added_up(lineage: Lineage) -> None:
    shutil.rmtree(lineage.base.directory)
    marker, written = await lineage.upload()
    assert dict(written) == {b"0": b"3", b"1": b"3", b"2": None, b"new": b"2"}
    assert marker.content == ContentSummary.of(LAST.items())


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_memory")
async def test_changes_too_many_to_be_merged_are_written_in_order(lineage: Lineage) -> None:
    marker, written = await lineage.upload()
    before, after = written[:3], written[3:]
    assert (dict(before), dict(after)) == CHANGES
    assert marker.content == ContentSummary.of(LAST.items())


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_memory")
async def test_damaged_changes_that_are_written_in_order_end_the_upload(lineage: Lineage) -> None:
    path = max(lineage.version.directory.glob(f"{STORE}/changes/3_*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(VersionDamagedError):
        await lineage.upload()


@pytest.mark.asyncio
async def test_what_another_store_wrote_long_ago_is_committed_before_a_store_begins(
    lineage: Lineage,
) -> None:
    lineage.version = lineage.base
    marker, written = await lineage.upload()
    assert (marker.offset, written, lineage.writer.looks) == (8, [], [0])


@pytest.mark.asyncio
@pytest.mark.usefixtures("_no_memory")
async def test_what_was_written_long_ago_is_committed_while_a_version_is_read(
    lineage: Lineage,
) -> None:
    await lineage.upload()
    assert lineage.writer.looks == [0, 0]


@pytest.mark.asyncio
async def test_few_values_are_looked_up_at_once_however_small_the_changes_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    get_many = RocksDbStore.get_many

    def counting(store: RocksDbStore, keys: Sequence[bytes]) -> list[bytes | None]:
        counts.append(len(keys))
        return get_many(store, keys)

    monkeypatch.setattr(RocksDbStore, "get_many", counting)
    task = TaskDirectory.of(tmp_path, FakeTask())
    large = {b"%d" % number: b"a value of many megabytes" for number in range(1_000)}
    base = seal_version(task, "1_00000001", None, BASE | large)
    version = seal_version(task, "2_00000002", base, dict.fromkeys(large, None), committed=base.id)
    await Lineage(base, version).upload()
    assert sum(counts) == 1_000
    assert max(counts) <= 16


@pytest.fixture
def attempts(lineage: Lineage, monkeypatch: pytest.MonkeyPatch) -> Lineage:
    """A lineage whose uploads read what those before them wrote."""

    def build(*args: object, **kwargs: Any) -> TailReader:
        del args, kwargs
        return TailReader(lineage.writer.written[: lineage.tail_count])

    monkeypatch.setattr(upload, "PartitionReader", build)
    return lineage


async def counts_of(attempts: Lineage, count: int) -> list[int]:
    """Upload the version repeatedly, and return how many records each time has written."""
    counts: list[int] = []
    for _ in range(count):
        attempts.tail_count = len(attempts.writer.written)
        await attempts.upload()
        counts.append(len(attempts.writer.written) - attempts.tail_count)
    return counts


@pytest.mark.asyncio
@pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "in order"])
async def test_an_aborted_attempt_leaves_no_more_than_the_one_before(
    attempts: Lineage, monkeypatch: pytest.MonkeyPatch, *, is_merged: bool
) -> None:
    if not is_merged:
        monkeypatch.setattr(images, "_MAX_MERGED_BYTES", 0)
    first, *others = await counts_of(attempts, 5)
    assert (first, others) == (4 if is_merged else 6, [4] * 4)
    assert dict(attempts.writer.written) == {b"0": b"3", b"1": b"3", b"2": None, b"new": b"2"}


@pytest.mark.asyncio
async def test_a_tail_of_more_keys_than_fit_in_memory_is_set_right_too(
    attempts: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "_MAX_KNOWN_BYTES", 1)
    await counts_of(attempts, 3)
    last = attempts.writer.written[attempts.tail_count :]
    assert dict(last) == {b"0": b"3", b"1": b"3", b"2": None, b"new": b"2"}


@dataclass
class Finish:
    """The end of an upload of four records, behind offset 9."""

    lineage: Lineage
    monkeypatch: pytest.MonkeyPatch
    read: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From where to where the changelog was looked at."""

    async def run(self, offset: int, *, commit_count: int = 1, found: int = 0) -> int | None:
        """Return the offset of the marker, where any reader finds so many records."""

        def build(_: object, __: object, start: int, end: int, **___: Any) -> TailReader:
            self.read.append((start, end))
            return TailReader([(b"key", b"1")] * found)

        self.monkeypatch.setattr(upload, "PartitionReader", build)
        once = self.lineage.attempt()
        marker = await once.run()
        self.lineage.writer.offsets[PLACE] = offset
        self.lineage.writer.commit_counts[PLACE] = commit_count
        return (await once.finish(marker)).offset


@pytest.fixture
def finish(lineage: Lineage, monkeypatch: pytest.MonkeyPatch) -> Finish:
    return Finish(lineage, monkeypatch)


@pytest.mark.asyncio
@pytest.mark.parametrize(("offset", "commit_count"), [(13, 1), (15, 3)], ids=["one", "several"])
async def test_records_with_nothing_but_ends_of_transactions_between_them_are_not_read(
    finish: Finish, offset: int, commit_count: int
) -> None:
    assert await finish.run(offset, commit_count=commit_count) == offset
    assert finish.read == []


@pytest.mark.asyncio
async def test_the_late_end_of_an_earlier_transaction_is_no_record_of_another_writer(
    finish: Finish,
) -> None:
    assert await finish.run(14, found=4) == 14
    assert finish.read == [(9, 15)]


@pytest.mark.asyncio
@pytest.mark.parametrize("commit_count", [1, 2], ids=["one transaction", "several"])
async def test_a_record_of_another_writer_among_them_is_a_reason_to_write_again(
    finish: Finish, commit_count: int
) -> None:
    with pytest.raises(RetriableError, match="records=4 found=5"):
        await finish.run(13 + commit_count, commit_count=commit_count, found=5)


KEPT_MS = (4 + 24) * 3_600_000


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("age_ms", "tail_count", "is_full"),
    [(KEPT_MS * 9 // 10 + 1, 1, True), (KEPT_MS * 9 // 10, 1, False), (10 * KEPT_MS, 0, False)],
    ids=["old", "young", "no tail"],
)
async def test_a_tail_so_old_that_its_tombstones_may_be_gone_is_replaced_as_a_whole(
    attempts: Lineage, age_ms: int, tail_count: int, *, is_full: bool
) -> None:
    attempts.age_ms, attempts.tail_count = age_ms, tail_count
    marker, written = await attempts.upload()
    assert dict(written) == (
        LAST if is_full else {b"0": b"3", b"1": b"3", b"2": None, b"new": b"2"}
    )
    assert marker.content == ContentSummary.of(LAST.items())

"""Sealed logs and entries: what was sealed comes out, whatever was done to it does not."""

import base64
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest
from encoded_kit import KEY_LINE
from log_kit import LosingBlobs

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.encryption_keys import KeyRing
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.backends.seals import (
    SealedCheckpointStore,
    SealedJobLog,
    Sealer,
    encryption_limits,
    open_checkpoint_store,
    open_job_log,
)
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.framing import unframe
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import BadMarkerRecord, EpochRecord, encode_record
from statekeep.checkpoint.serde import FailedTask, decode_attempt_entry, encode_attempt_entry
from statekeep.errors import CheckpointCorruptError, KeyUnavailableError, RetriableError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

OTHER_LINE = f"2026-12 {base64.b64encode(b'n' * 32).decode()}"
TASK = TaskName("Partition 3")
ENTRY = encode_attempt_entry(FailedTask("upload", "the disk is full"))
RECORDS = [encode_record(EpochRecord(epoch=n, nonce=f"{n}", owner="h")) for n in range(1, 5)]


class Keys:
    """A text of keys that changes."""

    def __init__(self, text: str = KEY_LINE) -> None:
        self.text = text
        self.ring = KeyRing(lambda: self.text, "test")


def sealer_of(
    keys: Keys, scope: str = "job", *, is_on: bool = True, accepts_plain: bool = False
) -> Sealer:
    return Sealer(
        [keys.ring],
        scope,
        is_on=is_on,
        accepts_plain=lambda: accepts_plain,
        executor=SerialExecutor(),
    )


class Place:
    """A log in memory that its owner and an attacker write to."""

    def __init__(self, tmp_path: Path) -> None:
        self.blobs = MemoryBlobStoreManager(str(tmp_path), SerialExecutor())
        self.keys = Keys()

    def log(
        self, scope: str = "job", *, is_on: bool = True, accepts_plain: bool = False
    ) -> SealedJobLog:
        sealer = sealer_of(self.keys, scope, is_on=is_on, accepts_plain=accepts_plain)
        return SealedJobLog(BlobJobLog(self.blobs, "job"), sealer)

    @property
    def bare(self) -> BlobJobLog:
        return BlobJobLog(self.blobs, "job")

    @property
    def stored(self) -> dict[str, bytes]:
        return self.blobs._blobs

    async def fill(self) -> None:
        log = self.log()
        for position, record in enumerate(RECORDS):
            await log.append(position, record)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def told(records: list[tuple[int, bytes]]) -> dict[int, str]:
    """Return why each record that is refused is."""
    found: dict[int, str] = {}
    for position, data in records:
        try:
            unframe(data, where="test")
        except CheckpointCorruptError as exc:
            found[position] = str(exc)
    return found


def is_trim_wanted(log: SealedJobLog) -> bool:
    return log.is_trim_wanted  # a call: it changes behind what a type checker concludes


@pytest.mark.asyncio
async def test_what_was_sealed_comes_out_and_stays_readable_for_people(place: Place) -> None:
    await place.fill()
    assert [data for _, data in await place.log().read(0)] == RECORDS
    assert [data for _, data in await place.log().read(2)] == RECORDS[2:]
    for data, record in zip(place.stored.values(), RECORDS, strict=True):
        assert data.startswith(b"statekeep 1 sealed ")
        assert data.endswith(b"\n" + record)


@pytest.mark.asyncio
async def test_a_record_is_sealed_for_its_log_and_its_position(place: Place) -> None:
    await place.fill()
    assert set(told(list(await place.log("job/main/Partition_1").read(0)))) == {0, 1, 2, 3}
    names = list(place.stored)
    place.stored[names[2]] = place.stored[names[1]]
    assert "not the one that was written here" in told(list(await place.log().read(0)))[2]


@pytest.mark.asyncio
async def test_records_that_are_read_one_by_one_are_each_held_against_their_position(
    place: Place,
) -> None:
    await place.fill()
    log = place.log()
    assert await log.read_at([3, 1]) == [(1, RECORDS[1]), (3, RECORDS[3])]

    names = list(place.stored)
    place.stored[names[2]] = place.stored[names[1]]
    found = await log.read_at([0, 2])

    assert found[0] == (0, RECORDS[0])
    assert "not the one that was written here" in told(list(found))[2]


@pytest.mark.asyncio
async def test_records_of_two_logs_that_went_apart_do_not_make_a_third(place: Place) -> None:
    """A store that shows two writers two logs cannot put them together again."""
    await place.fill()
    ours = dict(place.stored)
    place.stored.clear()
    other = place.log()
    for position, record in enumerate(reversed(RECORDS)):
        await other.append(position, record)
    place.stored.update({name: ours[name] for name in sorted(ours)[2:]})
    assert "does not follow" in told(list(await place.log().read(0)))[2]


@pytest.mark.asyncio
async def test_a_log_that_is_set_back_while_it_is_open_is_noticed(place: Place) -> None:
    await place.fill()
    log = place.log()
    await log.read(0)
    names = sorted(place.stored)
    del place.stored[names[3]]
    await place.log().append(3, RECORDS[0])
    assert "changed since it was read" in told(list(await log.read(0)))[3]


@pytest.mark.asyncio
async def test_an_append_whose_answer_was_lost_is_known_again(place: Place) -> None:
    losing = LosingBlobs(place.blobs)
    log = SealedJobLog(BlobJobLog(losing, "job"), sealer_of(place.keys))
    await log.append(0, RECORDS[0])
    losing.losses["put"] = 1
    with pytest.raises(RetriableError):
        await log.append(1, RECORDS[1])
    with pytest.raises(PositionTakenError):
        await log.append(1, RECORDS[1])
    assert (await log.read(1))[0] == (1, RECORDS[1])
    await log.append(2, RECORDS[2])
    assert not told(list(await place.log().read(0)))


@pytest.mark.asyncio
async def test_a_writer_goes_on_after_a_trim_and_after_others(place: Place) -> None:
    first, second = LogSession(place.log()), LogSession(place.log())
    await first.open()
    await first.take_over("a")
    await second.open()
    await second.take_over("b")
    marker = BadMarkerRecord(backend="b", task=TASK, store="s", marker="m", reason="r")
    for _ in range(3):
        await second.append(marker)
    await place.bare.trim(3)
    records = list(await place.log().read(0))
    assert [position for position, _ in records] == [3, 4]
    assert not told(records)
    late = place.log()
    await late.append(5, RECORDS[3])
    assert not told(list(await place.log().read(0)))


@pytest.mark.asyncio
async def test_plain_records_are_read_for_as_long_as_they_are_accepted(place: Place) -> None:
    for position, record in enumerate(RECORDS[:2]):
        await place.bare.append(position, record)
    log = place.log(accepts_plain=True)
    assert not told(list(await log.read(0)))
    await log.append(2, RECORDS[2])
    assert is_trim_wanted(log)
    assert not told(list(await place.log(accepts_plain=True).read(0)))
    assert set(told(list(await place.log().read(0)))) == {0, 1}
    await log.trim(2)
    assert not is_trim_wanted(log)
    assert not told(list(await place.log().read(0)))


@pytest.mark.asyncio
async def test_the_last_plain_record_cannot_be_exchanged_behind_the_first_sealed_one(
    place: Place,
) -> None:
    await place.bare.append(0, RECORDS[0])
    log = place.log(accepts_plain=True)
    await log.append(1, RECORDS[1])
    place.stored[min(place.stored)] = RECORDS[3]
    assert "does not follow" in told(list(await place.log(accepts_plain=True).read(0)))[1]


@pytest.mark.asyncio
async def test_a_rotation_asks_for_a_trim_and_the_old_key_may_go_after_it(place: Place) -> None:
    await place.fill()
    place.keys.text = f"{OTHER_LINE}\n{KEY_LINE}"
    log = place.log()
    await log.read(0)
    assert not is_trim_wanted(log)
    await log.append(4, RECORDS[0])
    assert is_trim_wanted(log)
    place.keys.text = OTHER_LINE
    place.keys.ring = Keys(OTHER_LINE).ring
    with pytest.raises(KeyUnavailableError, match="key_id=2026-11"):
        await place.log().read(0)
    await log.trim(4)
    assert not is_trim_wanted(log)
    assert not told(list(await place.log().read(0)))


@pytest.mark.asyncio
async def test_a_wrong_key_under_the_right_id_is_distinguished_from_damage(place: Place) -> None:
    await place.fill()
    place.keys = Keys(OTHER_LINE.replace("2026-12", "2026-11"))
    with pytest.raises(KeyUnavailableError, match="another key has the id"):
        await place.log().read(0)


@pytest.mark.asyncio
async def test_switched_off_it_seals_nothing_and_still_looks_at_seals(place: Place) -> None:
    await place.fill()
    log = place.log(is_on=False)
    await log.read(0)
    await log.append(4, RECORDS[0])
    await place.bare.append(5, b"damaged")
    found = list(await place.log(is_on=False).read(0))
    assert found[5] == (5, b"damaged")
    assert set(told(found)) == {5}
    name = min(place.stored)
    place.stored[name] = place.stored[name].replace(b'"owner":"h"', b'"owner":"x"')
    assert set(told(list(await place.log(is_on=False).read(0)))) >= {0}


@pytest.mark.asyncio
async def test_an_entry_is_sealed_for_its_attempt_and_task_and_none_is_accepted_unsealed(
    tmp_path: Path,
) -> None:
    factory = BlobBackendFactory(BackendName("blob"), {"uri": tmp_path.as_uri()})
    bare = factory.checkpoint_store("job", SerialExecutor(), FakeClock())
    store = SealedCheckpointStore(bare, sealer_of(Keys()))
    await store.write("1-1", TASK, ENTRY)
    assert (await store.read("1-1"))[TASK] == ENTRY
    entry = (await bare.read("1-1"))[TASK]
    forged = {
        ("1-1", TaskName("Partition 4")): entry,
        ("1-2", TASK): entry,
        ("1-3", TASK): ENTRY,
        ("1-4", TASK): entry[:-3],
    }
    for (attempt, task), data in forged.items():
        await bare.write(attempt, task, data)
        with pytest.raises(CheckpointCorruptError):
            decode_attempt_entry((await store.read(attempt))[task], "test")
    assert await store.attempts() == {(1, n) for n in range(1, 5)}
    await store.delete("1-1")
    assert not await store.read("1-1")
    await store.close()


def test_missing_keys_are_named_in_the_error() -> None:
    sealed = sealer_of(Keys()).seal(("job-log", "0"), RECORDS[0])
    with pytest.raises(KeyUnavailableError, match="no keys are configured"):
        unframe(sealed.data, where="position=0")


def factories(
    tmp_path: Path, settings: Mapping[str, str]
) -> dict[BackendName, StateBackendFactory]:
    (tmp_path / "keys").write_text(KEY_LINE)
    blob, hdfs = BackendName("blob"), BackendName("hdfs")
    return {
        blob: BlobBackendFactory(blob, {"uri": (tmp_path / "b").as_uri(), **settings}),
        hdfs: HdfsBackendFactory(hdfs, {"uri": (tmp_path / "h").as_uri()}),
    }


def test_without_keys_logs_and_stores_are_the_backends_own(tmp_path: Path) -> None:
    made, executor, clock = factories(tmp_path, {}), SerialExecutor(), FakeClock()
    for name in made:
        assert not isinstance(open_job_log(made, name, "job", executor, clock), SealedJobLog)
        store = open_checkpoint_store(made, name, "job", executor, clock)
        assert not isinstance(store, SealedCheckpointStore)
    assert not encryption_limits(made.values(), clock)


def test_with_encryption_they_are_sealed_wherever_they_lie_and_what_is_plain_is_reported(
    tmp_path: Path,
) -> None:
    settings = {
        "encryption": "aes-256-gcm",
        "encryption.keys": f"file:{tmp_path}/keys",
        "encryption.plain.until": str(date(2023, 11, 14)),
    }
    made, executor, clock = factories(tmp_path, settings), SerialExecutor(), FakeClock()
    for name in made:
        assert isinstance(open_job_log(made, name, "job", executor, clock), SealedJobLog)
        store = open_checkpoint_store(made, name, "job", executor, clock)
        assert isinstance(store, SealedCheckpointStore)
    beside, accepted = encryption_limits(made.values(), clock)
    assert "backend=hdfs encrypted=blob" in beside
    assert "backend=blob until=2023-11-14" in accepted
    clock.advance(86_400)
    assert len(encryption_limits(made.values(), clock)) == 1

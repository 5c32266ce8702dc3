import logging
from itertools import permutations

import pytest
from log_kit import batch_record, commit_record, driver_on, log_on, new_blobs, stamped
from newer_frames import of_next_format

from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.checkpoint import log_reader
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_reset import reset_log
from statekeep.checkpoint.records import EpochRecord, Record, ReleaseRecord, encode_record
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

pytestmark = pytest.mark.asyncio

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")


async def test_each_record_is_returned_once_with_its_position() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    reader = LogReader(log_on(blobs))

    found: list[int] = []

    def take(position: int, _: Record) -> None:
        found.append(position)

    assert await reader.catch_up(take) == 1
    await writer.append(commit_record(1))
    assert await reader.catch_up(take) == 1
    assert await reader.catch_up(take) == 0
    assert found == [0, 1]
    assert reader.view == writer.view


async def test_reader_that_was_left_behind_by_a_trim_starts_at_the_floor() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    reader = LogReader(log_on(blobs))
    await reader.catch_up()
    for attempt in (1, 2, 3):
        await writer.append(commit_record(attempt))
    await writer.append(ReleaseRecord(positions=[1, 2]))
    await writer.trim(3)

    await reader.catch_up()

    assert list(reader.view.commits) == [3]
    assert reader.view.epoch == 1


async def committed_often(blobs: MemoryBlobStoreManager, count: int) -> LogReader:
    """Return a reader of a log with so many commits, the first of which is at position 1."""
    writer = await driver_on(blobs)
    for attempt in range(1, count + 1):
        await writer.append(commit_record(attempt, attempt))
    reader = LogReader(log_on(blobs))
    await reader.catch_up()
    return reader


async def test_a_long_log_is_read_in_parts_and_gives_the_same_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blobs = new_blobs()
    whole = await committed_often(blobs, 25)
    for at_once in (1, 2, 26, 27):
        monkeypatch.setattr(log_reader, "_AT_ONCE", at_once)
        parts = LogReader(log_on(blobs))
        assert await parts.catch_up() == 26
        assert parts.view == whole.view
        assert parts.link == whole.link


async def test_commits_that_are_not_in_memory_are_read_from_the_log() -> None:
    blobs = new_blobs()
    reader = await committed_often(blobs, 40)
    assert 3 not in reader.view.commit_records
    assert 40 in reader.view.commit_records

    found = await reader.read_commits([40, 3, 20])

    assert [(position, commit.batch) for position, commit in found.items()] == [
        (3, 3),
        (20, 20),
        (40, 40),
    ]
    for blob_id in await blobs.list("job/log/"):
        await blobs.delete(blob_id)
    assert list(await reader.read_commits([40])) == [40]


async def test_a_commit_that_the_log_has_lost_is_damage() -> None:
    blobs = new_blobs()
    reader = await committed_often(blobs, 40)
    await blobs.delete((await blobs.list("job/log/"))[3])

    with pytest.raises(CheckpointCorruptError, match="position=3"):
        await reader.read_commits([2, 3, 4])


async def test_commit_that_is_read_once_more_is_the_one_that_was_read() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    for attempt in range(1, 41):
        await writer.append(commit_record(attempt))
    assert 2 not in writer.view.commit_records
    ids = sorted(await blobs.list("job/log/"))
    assert await writer.read_commits([2])
    await blobs.put(ids[2], await blobs.get(ids[1]), METADATA)

    with pytest.raises(CheckpointCorruptError, match="another than before: position=2") as raised:
        await writer.read_commits([2])

    assert raised.value.hints


async def test_damaged_batch_record_is_loud_and_the_rest_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    position = await writer.append(batch_record(7))
    await writer.append(batch_record(8))
    blob_id = (await blobs.list("job/log/"))[position]
    await blobs.put(blob_id, (await blobs.get(blob_id))[:-4], METADATA)
    reader = LogReader(log_on(blobs))

    with caplog.at_level(logging.ERROR):
        await reader.catch_up()

    assert "position=1" in caplog.text
    assert reader.view.unreadable_batches == {1}
    assert sorted(reader.view.batches) == [8]


async def test_any_other_damaged_record_stops_with_a_way_out() -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    position = await writer.append(commit_record(1))
    blob_id = (await blobs.list("job/log/"))[position]
    await blobs.put(blob_id, (await blobs.get(blob_id))[:-4], METADATA)

    with pytest.raises(CheckpointCorruptError, match="position=1") as caught:
        await LogReader(log_on(blobs)).catch_up()

    assert caught.value.hints


@pytest.mark.parametrize("record", [batch_record(7), commit_record(1)], ids=["batch", "commit"])
async def test_a_record_of_a_newer_release_stops_and_is_no_reason_for_a_reset(
    record: Record,
) -> None:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    position = await writer.append(record)
    blob_id = (await blobs.list("job/log/"))[position]
    newer = of_next_format(await blobs.get(blob_id))
    await blobs.put(blob_id, newer, METADATA)

    with pytest.raises(UnknownFormatError, match="position=1 version=2") as caught:
        await LogReader(log_on(blobs)).catch_up()

    assert caught.value.hints == ("use the version of Statekeep that wrote it, or a newer one",)


async def _log_of_commits(blobs: BlobStoreManager) -> list[str]:
    """Write a log of four records; return their ids."""
    first = await driver_on(blobs)
    await first.append(commit_record(1))
    await first.append(commit_record(2))
    await first.append(commit_record(3))
    return sorted(await blobs.list("job/log/"))


@pytest.mark.parametrize(("source", "target"), list(permutations([1, 2, 3], 2)))
async def test_record_in_the_place_of_another_one_is_refused(source: int, target: int) -> None:
    blobs = new_blobs()
    ids = await _log_of_commits(blobs)
    await blobs.put(ids[target], await blobs.get(ids[source]), METADATA)

    with pytest.raises(CheckpointCorruptError, match="does not follow the one before it") as raised:
        await LogReader(log_on(blobs)).catch_up()

    assert raised.value.hints


async def test_record_of_another_log_is_refused_also_at_the_end() -> None:
    blobs, others = new_blobs(), new_blobs()
    ids, other_ids = await _log_of_commits(blobs), await _log_of_commits(others)
    await blobs.put(ids[-1], await others.get(other_ids[-1]), METADATA)

    with pytest.raises(CheckpointCorruptError, match="does not follow the one before it"):
        await LogReader(log_on(blobs)).catch_up()


async def test_older_record_behind_the_newest_one_is_refused() -> None:
    blobs = new_blobs()
    ids = await _log_of_commits(blobs)
    await blobs.put(f"{ids[-1][:-6]}4.json", await blobs.get(ids[1]), METADATA)

    with pytest.raises(CheckpointCorruptError, match="does not follow the one before it"):
        await LogReader(log_on(blobs)).catch_up()


async def test_reset_of_another_log_does_not_begin_this_one_anew() -> None:
    blobs, others = new_blobs(), new_blobs()
    ids, other_ids = await _log_of_commits(blobs), await _log_of_commits(others)
    await reset_log(log_on(others), "test")
    (reset,) = set(await others.list("job/log/")) - set(other_ids)
    await blobs.put(f"{ids[-1][:-6]}4.json", await others.get(reset), METADATA)

    with pytest.raises(CheckpointCorruptError, match="does not follow the one before it"):
        await LogReader(log_on(blobs)).catch_up()


async def test_records_of_earlier_releases_say_nothing_of_the_one_before_and_are_read() -> None:
    blobs = new_blobs()
    log = log_on(blobs)
    records: list[Record] = [EpochRecord(epoch=1, nonce="a", owner="test")]
    records += [stamped(commit_record(number), 1) for number in (1, 2)]
    for position, record in enumerate(records):
        await log.append(position, encode_record(record))
    writer = await driver_on(blobs)
    await writer.append(commit_record(3, attempt_epoch=2))

    reader = LogReader(log_on(blobs))
    await reader.catch_up()

    assert list(reader.view.commits) == [1, 2, 4]


async def test_what_cannot_be_listed_or_read_says_what_to_do() -> None:
    blobs = new_blobs()
    ids = await _log_of_commits(blobs)
    await blobs.delete(ids[1])

    with pytest.raises(CheckpointCorruptError, match="is missing") as raised:
        await LogReader(log_on(blobs)).catch_up()

    assert raised.value.hints

"""Progress events: batched, dispensable, never in the way of the job."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import LosingBlobs, RefusingBlobs, new_blobs
from newer_frames import of_next_format

from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint import event_log
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.checkpoint.event_log import (
    EventReader,
    EventWriter,
    decode_segment,
    delete_events,
    read_events,
)
from statekeep.errors import CheckpointCorruptError, RetriableError
from statekeep.testing.clock import FakeClock

INTERVAL_MS = 1_000
BUFFER_BYTES = 2_000


def store_on(blobs: BlobStoreManager) -> BlobCheckpointStore:
    return BlobCheckpointStore(blobs, "job")


def writer_on(blobs: BlobStoreManager, clock: FakeClock, epoch: int = 1) -> EventWriter:
    return EventWriter(
        store_on(blobs),
        epoch,
        clock,
        flush_interval_ms=INTERVAL_MS,
        buffer_bytes=BUFFER_BYTES,
    )


async def numbers_in(blobs: BlobStoreManager, *epochs: int) -> list[int]:
    return [event.details["number"] for event in await read_events(store_on(blobs), epochs)]


@pytest.mark.asyncio
async def test_a_long_session_keeps_its_beginning_and_its_newest_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_log, "_VOLUME_SEGMENTS", 3)
    blobs = new_blobs()
    writer = writer_on(blobs, FakeClock())
    kept: list[list[int]] = []
    for number in range(14):
        writer.add("batch", number=number)
        await writer.flush()
        kept.append(await numbers_in(blobs, 1))
    assert kept[8] == list(range(9))
    assert kept[9] == [0, 1, 2, 6, 7, 8, 9]
    assert kept[13] == [0, 1, 2, 9, 10, 11, 12, 13]
    assert len(await blobs.list("")) == 8
    await delete_events(store_on(blobs), 1)
    assert await blobs.list("") == []


@pytest.mark.asyncio
async def test_events_come_back_in_order_over_segments_and_sessions() -> None:
    blobs, clock = new_blobs(), FakeClock()
    for epoch in (1, 2):
        writer = writer_on(blobs, clock, epoch)
        for number in range(4):
            writer.add("batch", number=10 * epoch + number)
            if number % 2:
                await writer.flush()
    events = await read_events(store_on(blobs), [2, 1])
    assert [(event.epoch, event.sequence) for event in events] == [
        (epoch, sequence) for epoch in (1, 2) for sequence in range(4)
    ]
    assert await numbers_in(blobs, 1, 2) == [10, 11, 12, 13, 20, 21, 22, 23]
    assert {event.kind for event in events} == {"batch"}


@pytest.mark.asyncio
async def test_an_event_waits_for_the_interval_or_for_a_full_buffer() -> None:
    clock = FakeClock()
    writer = writer_on(new_blobs(), clock)
    seen = [writer.is_due]
    writer.add("batch", number=0)
    seen.append(writer.is_due)
    clock.advance(INTERVAL_MS / 1000)
    seen.append(writer.is_due)
    await writer.flush()
    seen.append(writer.is_due)
    writer.add("batch", text="x" * BUFFER_BYTES)
    seen.append(writer.is_due)
    assert seen == [False, False, True, False, True]


@pytest.mark.asyncio
async def test_without_events_nothing_is_written() -> None:
    blobs = new_blobs()
    await writer_on(blobs, FakeClock()).flush()
    assert await blobs.list("") == []


@pytest.mark.asyncio
async def test_a_large_backlog_goes_into_segments_that_every_store_can_take() -> None:
    blobs = new_blobs()
    writer = EventWriter(
        store_on(blobs), 1, FakeClock(), flush_interval_ms=INTERVAL_MS, buffer_bytes=1 << 20
    )
    for number in range(20):
        writer.add("batch", number=number, text="x" * 100_000)
    await writer.flush()
    sizes = [len(data) for data in (await store_on(blobs).read("events-1")).values()]
    assert len(sizes) == 4
    assert max(sizes) < 600_000
    assert await numbers_in(blobs, 1) == list(range(20))


@pytest.mark.asyncio
async def test_a_failed_flush_is_a_warning_and_is_made_up_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blobs, clock = new_blobs(), FakeClock()
    refusing = RefusingBlobs(blobs)
    refusing.refusals["put"] = 1
    writer = writer_on(refusing, clock)
    writer.add("batch", number=0)
    await writer.flush()
    assert "events could not be written: epoch=1 events=1 dropped=0" in caplog.text
    writer.add("batch", number=1)
    await writer.flush()
    assert await numbers_in(blobs, 1) == [0, 1]


@pytest.mark.asyncio
async def test_a_flush_whose_answer_was_lost_doubles_nothing() -> None:
    blobs, clock = new_blobs(), FakeClock()
    losing = LosingBlobs(blobs)
    losing.losses["put"] = 1
    writer = writer_on(losing, clock)
    writer.add("batch", number=0)
    await writer.flush()
    writer.add("batch", number=1)
    await writer.flush()
    assert await numbers_in(blobs, 1) == [0, 1]


@pytest.mark.asyncio
async def test_a_store_out_of_reach_costs_the_oldest_events_and_a_bounded_memory() -> None:
    blobs, clock = new_blobs(), FakeClock()
    refusing = RefusingBlobs(blobs)
    refusing.refusals["put"] = 50
    writer = writer_on(refusing, clock)
    for number in range(50):
        writer.add("batch", number=number, text="x" * 100)
        await writer.flush()
    await writer.flush()
    found = await numbers_in(blobs, 1)
    assert found == list(range(found[0], 50))
    assert 5 < len(found) < 20


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "newer"])
@pytest.mark.parametrize("damaged", [0, 1, 2], ids=["the first", "in the middle", "the tail"])
async def test_a_damaged_segment_is_skipped_with_a_warning_and_every_other_one_is_read(
    damage: str, damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    blobs, clock = new_blobs(), FakeClock()
    writer = writer_on(blobs, clock)
    for number in range(3):
        writer.add("batch", number=number)
        await writer.flush()
    store = store_on(blobs)
    name = TaskName(f"{damaged:06d}")
    data = (await store.read("events-1"))[name]
    spoilt = {
        "truncated": data[:-5],
        "flipped": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        "emptied": b"",
        "newer": of_next_format(data),
    }
    await store.write("events-1", name, spoilt[damage])
    with caplog.at_level(logging.WARNING):
        assert await numbers_in(blobs, 1) == [n for n in range(3) if n != damaged]
    assert "segment of events is skipped" in caplog.text
    assert f"epoch=1 segment={name}" in caplog.text


@pytest.mark.asyncio
async def test_a_segment_that_is_gone_is_a_gap_in_the_sequence_and_hides_no_later_one() -> None:
    blobs, clock = new_blobs(), FakeClock()
    writer = writer_on(blobs, clock)
    for number in range(3):
        writer.add("batch", number=number)
        await writer.flush()
    (gone,) = [blob for blob in await blobs.list("") if "/000001/" in blob]
    await blobs.delete(gone)
    assert [event.sequence for event in await read_events(store_on(blobs), [1])] == [0, 2]


@pytest.mark.asyncio
async def test_a_store_that_cannot_be_read_is_an_error_for_every_caller() -> None:
    blobs = RefusingBlobs(new_blobs())
    blobs.refusals["list"] = 1
    with pytest.raises(RetriableError):
        await read_events(store_on(blobs), [1])


@pytest.mark.asyncio
async def test_the_events_of_a_session_are_deleted() -> None:
    blobs, clock = new_blobs(), FakeClock()
    for epoch in (1, 2):
        writer = writer_on(blobs, clock, epoch)
        writer.add("batch", number=epoch)
        await writer.flush()
    await delete_events(store_on(blobs), 1)
    assert await numbers_in(blobs, 1, 2) == [2]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_at_all_break_the_reader(data: bytes) -> None:
    with pytest.raises(CheckpointCorruptError):
        decode_segment(data, where="test")


@pytest.mark.asyncio
async def test_a_reader_reads_each_segment_once_and_none_is_lost_by_a_failure() -> None:
    refusing = RefusingBlobs(new_blobs())
    writers = [writer_on(refusing, FakeClock(), epoch) for epoch in (1, 2)]
    reader = EventReader(store_on(refusing))

    async def read() -> list[int]:
        return [event.details["number"] for event in await reader.read_new([1, 2])]

    async def write(number: int) -> None:
        writers[number % 2].add("batch", number=number)
        await writers[number % 2].flush()

    await write(0)
    assert await read() == [0]
    assert await read() == []
    await write(2)
    await write(3)
    refusing.refusals["list"] = 1
    with pytest.raises(RetriableError):
        await read()
    assert await read() == [2, 3]

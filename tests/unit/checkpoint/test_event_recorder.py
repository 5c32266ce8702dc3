"""The events of a query: kept in memory, written beside the checkpoints, never in the way."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from log_kit import RefusingBlobs, new_blobs

from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.event_log import Event, EventWriter, read_events
from statekeep.checkpoint.event_recorder import EventRecorder
from statekeep.checkpoint.note import summary_of
from statekeep.config.load import load_dict
from statekeep.errors import StateBackupError
from statekeep.spark.driver.events import EventList, QueryEvent
from statekeep.testing.clock import FakeClock

SETTINGS = load_dict({"job.name": "j"}).job


def recorder_on(blobs: BlobStoreManager, clock: FakeClock, epoch: int = 1) -> EventRecorder:
    return EventRecorder(BlobCheckpointStore(blobs, "job"), epoch, SETTINGS, clock)


def writes_to(recorder: EventRecorder) -> Callable[[QueryEvent], None]:
    return lambda event: recorder.add(event.time_ms, event.kind, event.details)


async def events_in(blobs: BlobStoreManager, *epochs: int) -> list[Event]:
    return list(await read_events(BlobCheckpointStore(blobs, "job"), epochs))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_events_are_written_when_their_time_has_come() -> None:
    blobs, clock = new_blobs(), FakeClock()
    recorder, events = recorder_on(blobs, clock), EventList(clock)
    events.pass_to(writes_to(recorder))
    events.add("batch", batch=7, restored={3: "blob"})
    running = asyncio.create_task(recorder.run())
    await settle()
    (event,) = await events_in(blobs, 1)
    assert (event.epoch, event.kind) == (1, "batch")
    assert event.details == {"batch": 7, "restored": {"3": "blob"}}
    running.cancel()


@pytest.mark.asyncio
async def test_what_is_left_is_written_at_the_end() -> None:
    blobs, clock = new_blobs(), FakeClock()
    recorder, events = recorder_on(blobs, clock), EventList(clock)
    events.pass_to(writes_to(recorder))
    events.add("stopped")
    await asyncio.sleep(0)
    await recorder.finish()
    assert [event.kind for event in await events_in(blobs, 1)] == ["stopped"]


@pytest.mark.asyncio
async def test_what_happens_between_two_reigns_is_told_by_the_next_one() -> None:
    blobs, clock = new_blobs(), FakeClock()
    events = EventList(clock)
    for epoch in (1, 2):
        recorder = recorder_on(blobs, clock, epoch)
        events.pass_to(writes_to(recorder))
        events.add("job-initialised")
        events.pass_to(None)
        await asyncio.sleep(0)
        await recorder.finish()
        events.add("restart", number=epoch)
        clock.advance(10)
    seen = await events_in(blobs, 1, 2)
    assert [(event.epoch, event.kind) for event in seen] == [
        (1, "job-initialised"),
        (2, "restart"),
        (2, "job-initialised"),
    ]
    assert seen[2].time_ms - seen[1].time_ms == 10_000
    assert [event.kind for event in events.snapshot()] == ["job-initialised", "restart"] * 2


@pytest.mark.asyncio
async def test_only_the_newest_reigns_are_kept() -> None:
    blobs, clock = new_blobs(), FakeClock()
    for epoch in range(1, 16):
        writer = EventWriter(
            BlobCheckpointStore(blobs, "job"), epoch, clock, flush_interval_ms=0, buffer_bytes=9999
        )
        writer.add("job-initialised")
        await writer.flush()
    running = asyncio.create_task(recorder_on(blobs, clock, 15).run())
    await settle()
    running.cancel()
    seen = await events_in(blobs, *range(1, 16))
    assert [event.epoch for event in seen] == list(range(6, 16))


@pytest.mark.asyncio
async def test_a_store_that_refuses_everything_costs_warnings_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blobs, clock = RefusingBlobs(new_blobs()), FakeClock()
    blobs.refusals = {"put": 1_000, "list": 1_000, "delete": 1_000}
    recorder, events = recorder_on(blobs, clock, 12), EventList(clock)
    events.pass_to(writes_to(recorder))
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(recorder.run())
        events.add("batch")
        await settle()
        assert not running.done()
        running.cancel()
        await recorder.finish()
    assert "old events could not be deleted: epoch=12" in caplog.text
    assert "events could not be written: epoch=12 events=1 dropped=0" in caplog.text


@pytest.mark.asyncio
async def test_a_store_that_never_answers_does_not_keep_the_job_from_ending(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("statekeep.checkpoint.event_recorder._PATIENCE_S", 0.01)
    recorder = recorder_on(new_blobs(), FakeClock())

    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(recorder._writer, "flush", never)
    await recorder.finish()
    assert "the last events are not written: epoch=1" in caplog.text


def test_the_summary_of_an_error_has_neither_stack_nor_secret() -> None:
    error = StateBackupError(
        "no answer: uri=s3://user:secret@host/bucket?sig=secret\n  at Foo.java"
    )
    text = summary_of(error)
    assert text.startswith("StateBackupError: no answer: uri=s3://***@host")
    assert "secret" not in text
    assert "Foo.java" not in text

"""The events of a query: kept in memory, written beside the checkpoints, never in the way."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from log_kit import RefusingBlobs, new_blobs

import statekeep.events
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.error_summary import summary_of
from statekeep.checkpoint.event_log import Event, EventRecorder, EventWriter, read_events
from statekeep.config.load import load_dict
from statekeep.errors import StateBackupError
from statekeep.events import (
    BatchDone,
    EventSource,
    JobFenced,
    JobStopped,
    QueryRestarted,
    Recovered,
)
from statekeep.spark.driver.progress import EventList, QueryEvent
from statekeep.testing.clock import FakeClock

SETTINGS = load_dict({"job.name": "j"}).job


def recorder_on(blobs: BlobStoreManager, clock: FakeClock, epoch: int = 1) -> EventRecorder:
    return EventRecorder(BlobCheckpointStore(blobs, "job"), epoch, SETTINGS, clock)


def tell(events: EventList, clock: FakeClock, event: statekeep.events.Event) -> None:
    events.on_event(event, EventSource("job", "", clock.time_ns()))


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
    recorder, events = recorder_on(blobs, clock), EventList()
    events.pass_to(writes_to(recorder))
    tell(events, clock, Recovered(7, 1, {3: "blob"}, 0, [], 0, [], 12))
    running = asyncio.create_task(recorder.run())
    await settle()
    (event,) = await events_in(blobs, 1)
    assert (event.epoch, event.kind) == (1, "recovery")
    assert (event.details["head"], event.details["restored"]) == (7, {"3": "blob"})
    running.cancel()


@pytest.mark.asyncio
async def test_what_is_left_is_written_at_the_end() -> None:
    blobs, clock = new_blobs(), FakeClock()
    recorder, events = recorder_on(blobs, clock), EventList()
    events.pass_to(writes_to(recorder))
    tell(events, clock, JobStopped(None))
    await asyncio.sleep(0)
    await recorder.finish()
    assert [event.kind for event in await events_in(blobs, 1)] == ["stopped"]


@pytest.mark.asyncio
async def test_what_happens_between_two_sessions_is_reported_by_the_next_one() -> None:
    blobs, clock = new_blobs(), FakeClock()
    events = EventList()
    for epoch in (1, 2):
        recorder = recorder_on(blobs, clock, epoch)
        events.pass_to(writes_to(recorder))
        tell(events, clock, JobFenced(1, 2))
        events.pass_to(None)
        await asyncio.sleep(0)
        await recorder.finish()
        tell(events, clock, QueryRestarted(epoch, 0, "no answer"))
        clock.advance(10)
    seen = await events_in(blobs, 1, 2)
    assert [(event.epoch, event.kind) for event in seen] == [
        (1, "fenced"),
        (2, "restart"),
        (2, "fenced"),
    ]
    assert seen[2].time_ms - seen[1].time_ms == 10_000
    assert [event.kind for event in events.snapshot()] == ["fenced", "restart"] * 2


@pytest.mark.asyncio
async def test_only_the_newest_sessions_are_kept() -> None:
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
    recorder, events = recorder_on(blobs, clock, 12), EventList()
    events.pass_to(writes_to(recorder))
    with caplog.at_level(logging.WARNING):
        running = asyncio.create_task(recorder.run())
        tell(events, clock, BatchDone(0, 1, 1, 0.0))
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
    monkeypatch.setattr("statekeep.checkpoint.event_log._TIMEOUT_S", 0.01)
    recorder = recorder_on(new_blobs(), FakeClock())

    async def never() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(recorder._writer, "flush", never)
    await recorder.finish()
    assert "the last events could not be written: epoch=1" in caplog.text


def test_the_summary_of_an_error_has_neither_stack_nor_secret() -> None:
    error = StateBackupError(
        "no answer: uri=s3://user:secret@host/bucket?sig=secret\n  at Foo.java"
    )
    text = summary_of(error)
    assert text.startswith("StateBackupError: no answer: uri=s3://***@host")
    assert "secret" not in text
    assert "Foo.java" not in text


def test_a_summary_that_is_cut_shows_no_half_of_a_uri() -> None:
    text = summary_of(StateBackupError("x" * 440 + " https://me:Zq9hunter2" + "x" * 99 + "@host/b"))
    assert len(text) <= 500
    assert "Zq9hunter2" not in text

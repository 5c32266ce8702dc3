"""The pin of a reader lasts as long as the reader does, and expires after they were killed."""

import asyncio
import logging
from pathlib import Path

import pytest
from container_kit import INPUT, config
from log_kit import LosingBlobs, commit_record, driver_on, log_on, new_blobs, view_of
from outage_kit import WaitingClock

from statekeep.backends.memory import forget_place
from statekeep.checkpoint.log_session import LogSession
from statekeep.clock import SystemClock
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.errors import ConfigError
from statekeep.inspection.job import open_job
from statekeep.inspection.reading_pin import HOLD_PREFIX, reading_pin
from statekeep.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
TASK = "Partition 0"


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_pin_says_until_when_it_holds_and_goes_with_the_reader() -> None:
    blobs, clock = new_blobs(), WaitingClock()
    first = await (await driver_on(blobs)).append(commit_record(1))
    async with reading_pin(log_on(blobs), first, clock):
        view = await view_of(blobs)
        ((name, position),) = view.pins.items()
        assert (name.startswith(HOLD_PREFIX), position) == (True, first)
        left_s = view.pin_expiries[name] / 1000 - clock.time_ns() / 1e9
        assert left_s == pytest.approx(2 * DAY_S)
    view = await view_of(blobs)
    assert (view.pins, view.pin_expiries) == ({}, {})
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_pin_that_cannot_be_taken_away_does_not_hide_how_the_reading_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blobs, clock = new_blobs(), WaitingClock()
    first = await (await driver_on(blobs)).append(commit_record(1))
    async with reading_pin(log_on(blobs), first, clock):
        ((name, _),) = (await view_of(blobs)).pins.items()
        await LogSession(log_on(blobs)).unpin(name)
    assert "stays until it expires" in caplog.text


async def test_a_reader_who_takes_long_renews_the_pin_each_hour() -> None:
    blobs, clock = new_blobs(), WaitingClock()
    first = await (await driver_on(blobs)).append(commit_record(1))
    async with reading_pin(log_on(blobs), first, clock):
        for _ in range(72):
            clock.pass_time(HOUR_S)
            await settle()
        (expires_ms,) = (await view_of(blobs)).pin_expiries.values()
        assert expires_ms / 1000 - clock.time_ns() / 1e9 == pytest.approx(2 * DAY_S)


async def test_a_renewal_that_fails_is_a_warning_and_the_next_one_makes_up_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blobs, clock = LosingBlobs(new_blobs()), WaitingClock()
    first = await (await driver_on(blobs)).append(commit_record(1))
    async with reading_pin(log_on(blobs), first, clock):
        blobs.losses["put"] = 1
        for _ in range(2):
            clock.pass_time(HOUR_S)
            await settle()
        (expires_ms,) = (await view_of(blobs)).pin_expiries.values()
        assert expires_ms / 1000 - clock.time_ns() / 1e9 == pytest.approx(2 * DAY_S)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


async def test_a_commit_that_is_released_cannot_be_read() -> None:
    blobs = new_blobs()
    await (await driver_on(blobs)).append(commit_record(1))
    with pytest.raises(ConfigError, match="released or was never there"):
        async with reading_pin(log_on(blobs), 99, WaitingClock()):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def commit(task: Task, offset: int) -> None:
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()
    await task.wait()


@pytest.mark.parametrize("skew_s", [-DAY_S, 0, DAY_S], ids=["a day behind", "right", "a day ahead"])
async def test_the_pin_of_a_killed_reader_goes_with_the_jobs_clean_up_once_it_has_expired(
    tmp_path: Path, skew_s: int
) -> None:
    clock, reader_clock = FakeClock(), WaitingClock()
    reader_clock.set_wall(clock.time_ns() + skew_s * 10**9)
    async with Container(config(tmp_path), clock=clock) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, 1)
        async with open_job(config(tmp_path), SystemClock(), task=TASK) as job:
            position = job.view.last_commit_position
            expires_ms = reader_clock.time_ns() // 1_000_000 + 2 * DAY_S * 1000
            await LogSession(job.log).pin(f"{HOLD_PREFIX}killed", position, expires_ms=expires_ms)
        for hour in range(24):
            clock.advance(HOUR_S - 1)
            await commit(task, 2 + hour)
        async with open_job(config(tmp_path), SystemClock(), task=TASK) as job:
            assert job.view.pins == {f"{HOLD_PREFIX}killed": position}
            assert position in job.view.commits
        clock.advance(3 * DAY_S)
        await commit(task, 99)
        async with open_job(config(tmp_path), SystemClock(), task=TASK) as job:
            assert job.view.pins == {}
            assert position not in job.view.commits
    forget_place(str(tmp_path))


async def test_the_pin_of_a_person_never_expires(tmp_path: Path) -> None:
    clock = FakeClock()
    async with Container(config(tmp_path), clock=clock) as container:
        task = await container.start_task(TASK, ["s"])
        await commit(task, 1)
        async with open_job(config(tmp_path), SystemClock(), task=TASK) as job:
            position = job.view.last_commit_position
            await job.pin_writer.pin("keep", position)
        for offset in (2, 3, 4):
            clock.advance(400 * DAY_S)
            await commit(task, offset)
        async with open_job(config(tmp_path), SystemClock(), task=TASK) as job:
            assert job.view.pins == {"keep": position}
    forget_place(str(tmp_path))

"""The fake clock: time passes when told to, and never by itself."""

import asyncio

import pytest

from statekeep.testing.clock import FakeClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(start_ns=5)
    assert (clock.time_ns(), clock.monotonic_ns()) == (5, 0)
    clock.advance(1.5)
    assert (clock.time_ns(), clock.monotonic_ns()) == (1_500_000_005, 1_500_000_000)


def test_the_wall_clock_may_jump_while_the_monotonic_one_goes_on() -> None:
    clock = FakeClock()
    clock.advance(1)
    clock.set_wall(7)
    assert (clock.time_ns(), clock.monotonic_ns()) == (7, 1_000_000_000)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="seconds=-1"):
        FakeClock().advance(-1)


@pytest.mark.asyncio
async def test_sleep_advances_and_lets_others_run() -> None:
    clock = FakeClock()
    seen: list[str] = []

    async def other() -> None:
        seen.append("other")

    task = asyncio.create_task(other())
    await clock.sleep(60)
    assert seen == ["other"]
    assert clock.monotonic_ns() == 60 * 10**9
    assert clock.slept == [60]
    await task

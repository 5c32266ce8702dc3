"""The sign of life of commands that say nothing for long."""

import asyncio
import io

import pytest
from rich.console import Console

from statekeep.cli.waiting import waiting
from statekeep.testing.clock import FakeClock


async def shown_after(turns: int, clock: FakeClock, *, is_terminal: bool = True) -> str:
    """Return what is on the terminal after a block that gives the loop so many turns."""
    output = io.StringIO()
    async with waiting("deleting", clock, Console(file=output, force_terminal=is_terminal)):
        for _ in range(turns):
            await asyncio.sleep(0)
    return output.getvalue()


@pytest.mark.asyncio
async def test_what_takes_longer_than_two_seconds_is_shown() -> None:
    clock = FakeClock()
    assert "deleting" in await shown_after(3, clock)
    assert clock.slept == [2]


@pytest.mark.asyncio
async def test_what_ends_before_is_not_shown() -> None:
    assert await shown_after(1, FakeClock()) == ""


@pytest.mark.asyncio
async def test_nothing_is_shown_where_the_output_is_no_terminal() -> None:
    assert await shown_after(3, FakeClock(), is_terminal=False) == ""

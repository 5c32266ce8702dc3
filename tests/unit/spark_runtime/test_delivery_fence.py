"""The look for a successor directly before the sink: made where time has passed, and only there."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from statekeep.errors import TaskFencedError
from statekeep.spark.driver.batch_loop import DeliveryFence
from statekeep.testing.clock import FakeClock

FENCED = TaskFencedError("another driver has taken over", own_epoch=1, newer_epoch=2)


class FakeDriver:
    """The log of a driver that was replaced, and its thread; counts the looks that find it out."""

    def __init__(self) -> None:
        self.looks = 0

    async def check_fence(self) -> None:
        self.looks += 1
        raise FENCED

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.driver = FakeDriver()
        driver: Any = self.driver
        self.fence = DeliveryFence(driver, driver, self.clock)
        self.fence.begin()


def test_a_batch_that_is_delivered_at_once_costs_no_request() -> None:
    rig = Rig()
    for _ in range(100):
        rig.clock.advance(10)
        rig.fence.begin()
        rig.clock.advance(0.9)
        rig.fence.check()
    assert rig.driver.looks == 0


def test_a_driver_that_was_paused_after_the_record_looks_again() -> None:
    rig = Rig()
    rig.clock.advance(1.1)
    with pytest.raises(TaskFencedError):
        rig.fence.check()


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_machine_that_was_suspended_is_noticed_by_its_wall_clock(seconds: int) -> None:
    rig = Rig()
    rig.clock.set_wall(rig.clock.time_ns() + seconds * 1_000_000_000)
    with pytest.raises(TaskFencedError):
        rig.fence.check()

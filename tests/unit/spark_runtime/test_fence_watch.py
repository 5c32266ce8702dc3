"""An idle driver finds out that it was replaced, and a busy one asks nothing for that."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from statekeep.checkpoint.log_view import LogView
from statekeep.errors import RetriableError, TaskFencedError
from statekeep.spark.driver.query_watch import FenceWatch, find_successor
from statekeep.testing.clock import FakeClock

FENCED = TaskFencedError("another driver has taken over", own_epoch=1, newer_epoch=2)


class FakeDriver:
    """A driver whose log is read by `check_fence`; also stands for its commits and thread."""

    def __init__(self) -> None:
        self.view = LogView(next_position=5)
        self.looks = 0
        self.answer: Exception | None = None
        self.known: Exception | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def raise_if_fenced(self) -> None:
        if self.known is not None:
            raise self.known

    async def check_fence(self) -> None:
        self.looks += 1
        if self.answer is not None:
            raise self.answer


class Rig:
    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.clock = FakeClock()
        driver: Any = self.driver
        self.watch = FenceWatch(driver, driver, driver, self.clock)

    def poll(self, times: int) -> None:
        for _ in range(times):
            self.clock.advance(0.25)
            self.watch.poll()


def test_a_busy_stream_costs_no_request() -> None:
    rig = Rig()
    for _ in range(100):
        rig.driver.view.next_position += 1
        rig.poll(4)
    assert rig.driver.looks == 0


def test_an_idle_stream_costs_a_request_in_five_seconds() -> None:
    rig = Rig()
    rig.poll(4 * 60)
    assert rig.driver.looks == 11


def test_a_driver_that_was_replaced_learns_it() -> None:
    rig = Rig()
    rig.driver.answer = FENCED
    with pytest.raises(TaskFencedError):
        rig.poll(4 * 6)


def test_what_the_committer_knows_is_answered_at_once() -> None:
    rig = Rig()
    rig.driver.known = FENCED
    with pytest.raises(TaskFencedError):
        rig.poll(1)
    assert rig.driver.looks == 0


def test_a_log_that_does_not_answer_is_asked_again_later() -> None:
    rig = Rig()
    rig.driver.answer = RetriableError("no answer")
    rig.poll(4 * 12)
    assert rig.driver.looks == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "found"),
    [(FENCED, FENCED), (None, None), (RetriableError("no answer"), None)],
    ids=["replaced", "not replaced", "unknown"],
)
async def test_a_driver_whose_query_failed_asks_whether_it_was_replaced(
    answer: Exception | None, found: Exception | None
) -> None:
    driver: Any = FakeDriver()
    driver.answer = answer
    assert await find_successor(driver) is found

"""An idle driver finds out that it was replaced, and a busy one asks nothing for that."""

from typing import cast

import pytest

from statekeep.checkpoint.log_view import LogView
from statekeep.errors import RetriableError, TaskFencedError
from statekeep.spark.driver.fence_watch import FenceWatch, find_successor
from statekeep.spark.driver.reign import Reign
from statekeep.testing.clock import FakeClock

FENCED = TaskFencedError("another driver has taken over", own_epoch=1, newer_epoch=2)


class FakeReign:
    """A reign whose log is read by `look_for_successor`; also stands for its committer."""

    def __init__(self) -> None:
        self.view = LogView(next_position=5)
        self.looks = 0
        self.answer: Exception | None = None
        self.known: Exception | None = None

    @property
    def committer(self) -> "FakeReign":
        return self

    def raise_if_fenced(self) -> None:
        if self.known is not None:
            raise self.known

    async def look_for_successor(self) -> None:
        self.looks += 1
        if self.answer is not None:
            raise self.answer


class Rig:
    def __init__(self) -> None:
        self.reign = FakeReign()
        self.clock = FakeClock()
        self.watch = FenceWatch(cast("Reign", self.reign), self.clock)

    async def look(self, times: int) -> None:
        for _ in range(times):
            self.clock.advance(0.25)
            await self.watch.look()


@pytest.mark.asyncio
async def test_a_busy_stream_costs_no_request() -> None:
    rig = Rig()
    for _ in range(100):
        rig.reign.view.next_position += 1
        await rig.look(4)
    assert rig.reign.looks == 0


@pytest.mark.asyncio
async def test_an_idle_stream_costs_a_request_in_five_seconds() -> None:
    rig = Rig()
    await rig.look(4 * 60)
    assert rig.reign.looks == 11


@pytest.mark.asyncio
async def test_a_driver_that_was_replaced_is_told() -> None:
    rig = Rig()
    rig.reign.answer = FENCED
    with pytest.raises(TaskFencedError):
        await rig.look(4 * 6)


@pytest.mark.asyncio
async def test_what_the_committer_knows_is_told_at_once() -> None:
    rig = Rig()
    rig.reign.known = FENCED
    with pytest.raises(TaskFencedError):
        await rig.look(1)
    assert rig.reign.looks == 0


@pytest.mark.asyncio
async def test_a_log_that_does_not_answer_is_asked_again_later() -> None:
    rig = Rig()
    rig.reign.answer = RetriableError("no answer")
    await rig.look(4 * 12)
    assert rig.reign.looks == 2


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "found"),
    [(FENCED, FENCED), (None, None), (RetriableError("no answer"), None)],
    ids=["replaced", "not replaced", "unknown"],
)
async def test_a_driver_whose_query_failed_asks_whether_it_was_replaced(
    answer: Exception | None, found: Exception | None
) -> None:
    reign = FakeReign()
    reign.answer = answer
    assert await find_successor(cast("Reign", reign)) is found

"""A batch that waits for a commit goes on once the query was told to stop for long."""

from typing import cast

import pytest

from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.query_watch import StopDeadline
from statekeep.testing.clock import FakeClock


class FakeCommitter:
    """A committer with an attempt that ends only by being abandoned."""

    def __init__(self) -> None:
        self.open_batch: int | None = 7
        self.abandoned: list[str] = []

    async def abandon(self, reason: str) -> None:
        self.abandoned.append(reason)
        self.open_batch = None


class Rig:
    def __init__(self) -> None:
        self.is_stopping = False
        self.committer = FakeCommitter()
        self.clock = FakeClock()
        committer = cast("JobCommits", self.committer)
        self.given_up = 0
        self.deadline = StopDeadline(
            committer, self._ask, self._give_up, self.clock, timeout_ms=2000
        )

    async def _ask(self) -> bool:
        return self.is_stopping

    def _give_up(self) -> None:
        self.given_up += 1

    async def poll(self, *, after_s: float) -> None:
        self.clock.advance(after_s)
        await self.deadline.poll()


@pytest.mark.asyncio
async def test_a_running_query_may_wait() -> None:
    rig = Rig()
    for _ in range(10):
        await rig.poll(after_s=60)
    assert rig.committer.abandoned == []


@pytest.mark.asyncio
async def test_the_open_commit_has_the_time_of_the_shutdown() -> None:
    rig = Rig()
    rig.is_stopping = True
    await rig.poll(after_s=0)
    await rig.poll(after_s=1.9)
    assert rig.committer.abandoned == []
    assert rig.given_up == 0
    await rig.poll(after_s=0.1)
    assert rig.committer.abandoned == ["the query was told to stop"]


@pytest.mark.asyncio
async def test_an_attempt_that_the_batch_opens_afterwards_is_aborted_at_once() -> None:
    rig = Rig()
    rig.is_stopping = True
    await rig.poll(after_s=0)
    await rig.poll(after_s=2)
    await rig.poll(after_s=0.25)
    rig.committer.open_batch = 8
    await rig.poll(after_s=0.25)
    assert len(rig.committer.abandoned) == 2


@pytest.mark.asyncio
async def test_jobs_are_cancelled_repeatedly_until_the_query_has_ended() -> None:
    rig = Rig()
    rig.is_stopping = True
    await rig.poll(after_s=0)
    for _ in range(3):
        await rig.poll(after_s=2)
    assert rig.given_up == 3
    rig.deadline.end()
    await rig.poll(after_s=2)
    assert rig.given_up == 3
    await rig.deadline.watch()


@pytest.mark.asyncio
async def test_all_that_ends_a_query_shares_one_time() -> None:
    rig = Rig()
    assert rig.deadline.remaining_s() == 2
    rig.clock.advance(1.5)
    assert rig.deadline.remaining_s() == 0.5
    rig.clock.advance(1)
    assert rig.deadline.remaining_s() == 0


@pytest.mark.asyncio
async def test_what_is_waited_for_beyond_the_time_has_a_margin_from_its_end() -> None:
    rig = Rig()
    rig.clock.advance(60)
    assert not rig.deadline.is_over_since(0)
    rig.deadline.begin()
    rig.clock.advance(2)
    rig.deadline.begin()
    assert rig.deadline.is_over_since(0)
    assert not rig.deadline.is_over_since(5)
    rig.clock.advance(5)
    assert rig.deadline.is_over_since(5)

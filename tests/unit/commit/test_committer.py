"""The committer of a log: an attempt ends once, whatever the log answers, and somebody is told why."""

import asyncio
from dataclasses import dataclass, field

import pytest
from log_kit import LosingBlobs, RefusingBlobs, commit_record, driver_on, new_blobs, view_of
from typing_extensions import override

from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import CommitRecord
from statekeep.commit.committer import (
    Attempt,
    CommitAbandonedError,
    CommitListener,
    CommitSummary,
    Committer,
    CommitWork,
)
from statekeep.commit.gate import CommitGate, Decision
from statekeep.config.load import load_dict
from statekeep.errors import CommitFailedError, RetriableError, TaskFencedError
from statekeep.testing.clock import FakeClock

pytestmark = pytest.mark.asyncio


@dataclass
class Told(CommitListener):
    """Keeps what it is told."""

    commits: list[CommitSummary] = field(default_factory=list[CommitSummary])
    errors: list[Exception] = field(default_factory=list[Exception])

    @override
    def committed(self, summary: CommitSummary) -> None:
        self.commits.append(summary)

    @override
    def ended(self, attempt: Attempt, error: Exception) -> None:
        self.errors.append(error)


class Work:
    """Backs nothing up, once it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, attempt: Attempt) -> CommitRecord:
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return commit_record(attempt.number, attempt.batch)


class Rig:
    """A committer that tolerates failures, or none."""

    def __init__(self, log: LogSession, *, is_tolerant: bool = True) -> None:
        settings = {
            "job.name": "j",
            "stores.backup.factories": "blob",
            "task.commit.skip.commit.during.failures.enabled": str(is_tolerant).lower(),
        }
        self.told = Told()
        self.clock = FakeClock()
        self.gate = CommitGate(load_dict(settings).task)
        self.committer = Committer(
            log,
            self.gate,
            self.clock,
            subject="task=t",
            listener=self.told,
            find_left_out=lambda _: (),
        )

    async def begin(self, batch: int) -> Attempt:
        assert await self.committer.ask() is Decision.START
        attempt = self.committer.begin(
            batch, self.committer.next_id(), {"Partition 0": ""}, began_ns=0
        )
        await self.committer.record(attempt)
        return attempt

    async def run(self, batch: int, work: CommitWork) -> None:
        attempt = await self.begin(batch)
        self.committer.follow(attempt, work)
        assert attempt.work is not None
        await asyncio.wait({attempt.work})


async def test_a_failed_attempt_that_the_log_does_not_void_is_void_before_the_next_begins() -> None:
    blobs = RefusingBlobs(new_blobs())
    rig = Rig(await driver_on(blobs))
    attempt = await rig.begin(0)
    blobs.refusals["put"] = 2
    rig.committer.follow(attempt, Work(RetriableError("no room")))
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    assert rig.committer.open_attempt is attempt
    (error,) = rig.told.errors
    text = f"the commit failed: task=t no room: checkpoint_id={attempt.checkpoint_id} step=upload"
    assert text in str(error)

    assert await rig.committer.ask() is Decision.SKIP  # refused once more
    assert await rig.committer.ask() is Decision.START
    assert (len(rig.told.errors), rig.gate.failures) == (1, 1)
    assert [*(await view_of(blobs)).void_attempts] == [(1, 1)]


async def test_whoever_needs_a_commit_learns_that_the_log_does_not_answer() -> None:
    blobs = RefusingBlobs(new_blobs())
    rig = Rig(await driver_on(blobs))
    attempt = await rig.begin(0)
    blobs.refusals["put"] = 2
    rig.committer.follow(attempt, Work(RetriableError("no room")))
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    with pytest.raises(RetriableError, match="refused"):
        await rig.committer.ask(is_forced=True)


async def test_a_commit_whose_answers_were_all_lost_counts_once_the_log_answers() -> None:
    refusing = RefusingBlobs(new_blobs())
    losing = LosingBlobs(refusing)
    rig = Rig(await driver_on(losing), is_tolerant=False)
    attempt = await rig.begin(0)
    losing.losses["put"] = 1
    rig.committer.follow(attempt, Work())
    while losing.losses["put"]:
        await asyncio.sleep(0)
    refusing.refusals["put"] = 1
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    assert (refusing.refusals["put"], rig.told.commits) == (0, [])

    assert await rig.committer.ask() is Decision.START
    assert [summary.batch for summary in rig.told.commits] == [0]
    assert (rig.gate.successes, rig.gate.failures, rig.gate.final_error) == (1, 0, None)


async def test_an_attempt_that_takes_too_long_is_void_and_its_work_has_ended() -> None:
    rig = Rig(await driver_on(new_blobs()))
    work = Work()
    work.may_end.clear()
    attempt = await rig.begin(0)
    rig.committer.follow(attempt, work)
    await rig.committer.settle(0)
    assert attempt.work is not None
    assert attempt.work.cancelled()
    (error,) = rig.told.errors
    assert isinstance(error, CommitFailedError)
    assert error.step == "timeout"
    assert await rig.committer.ask() is Decision.START


async def test_who_waits_for_an_attempt_that_is_given_up_is_told_though_the_log_is_away() -> None:
    blobs = RefusingBlobs(new_blobs())
    rig = Rig(await driver_on(blobs))
    work = Work()
    work.may_end.clear()
    attempt = await rig.begin(0)
    rig.committer.follow(attempt, work)
    blobs.refusals["put"] = 1
    with pytest.raises(RetriableError, match="refused"):
        await rig.committer.settle(0)
    (error,) = rig.told.errors
    assert isinstance(error, CommitFailedError)
    assert rig.committer.open_attempt is attempt
    assert await rig.committer.ask() is Decision.START
    assert len(rig.told.errors) == 1


async def test_what_nobody_is_to_blame_for_is_not_counted_and_due_again() -> None:
    rig = Rig(await driver_on(new_blobs()), is_tolerant=False)
    await rig.run(0, Work(CommitAbandonedError("a version was lost")))
    assert (rig.told.errors, rig.gate.failures) == ([], 0)
    assert rig.committer.is_due()
    await rig.run(0, Work())
    assert [summary.batch for summary in rig.told.commits] == [0]


async def test_an_owner_that_was_fenced_is_told_once_and_asks_in_vain() -> None:
    blobs = new_blobs()
    rig = Rig(await driver_on(blobs))
    attempt = await rig.begin(0)
    await driver_on(blobs, "successor")
    rig.committer.follow(attempt, Work())
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    assert [type(error) for error in rig.told.errors] == [TaskFencedError]
    with pytest.raises(TaskFencedError):
        await rig.committer.ask()


async def test_ids_grow_though_the_clock_stands_still() -> None:
    rig = Rig(await driver_on(new_blobs()))
    ids = [rig.committer.next_id() for _ in range(3)]
    assert ids == sorted(set(ids))

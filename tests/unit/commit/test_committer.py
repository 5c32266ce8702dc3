"""The committer of a log: an attempt ends once, whatever the log answers, and its end has a reason."""

import asyncio
from dataclasses import dataclass, field

import pytest
from log_kit import LosingBlobs, RefusingBlobs, commit_record, driver_on, log_on, new_blobs, view_of
from secret_kit import SECRET, TEXTS
from typing_extensions import override

from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import AbortRecord, CommitRecord, Record
from statekeep.commit.committer import (
    Attempt,
    CommitAbandonedError,
    CommitListener,
    Committer,
    CommitWork,
)
from statekeep.commit.gate import CommitGate, Decision
from statekeep.config.load import load_dict
from statekeep.errors import CommitFailedError, RetriableError, TaskFencedError
from statekeep.events import (
    CommitAborted,
    CommitDone,
    CommitFailed,
    CommitSummary,
    Event,
    Report,
    report_nothing,
)
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

    def __init__(
        self, log: LogSession, *, is_tolerant: bool = True, report: Report = report_nothing
    ) -> None:
        settings = {
            "job.name": "j",
            "stores.backup.factories": "blob",
            "task.commit.skip.commit.during.failures.enabled": str(is_tolerant).lower(),
        }
        self.log = log
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
            report=report,
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


async def test_a_failed_attempt_that_the_log_does_not_abort_is_aborted_before_the_next_begins() -> (
    None
):
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
    assert [*(await view_of(blobs)).aborted_attempts] == [(1, 1)]


async def test_a_caller_that_needs_a_commit_learns_that_the_log_does_not_answer() -> None:
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


async def test_a_commit_is_reported_as_failed_or_as_done_and_never_as_both() -> None:
    """Its answer is lost and the log is away, so that its waiter is told of a failure too early."""
    refusing = RefusingBlobs(new_blobs())
    losing = LosingBlobs(refusing)
    events: list[Event] = []
    rig = Rig(await driver_on(losing), report=events.append)

    def ends() -> list[str]:
        return [e.kind for e in events if isinstance(e, CommitDone | CommitFailed)]

    attempt = await rig.begin(0)
    losing.losses["put"] = 1
    rig.committer.follow(attempt, Work())
    while losing.losses["put"]:
        await asyncio.sleep(0)
    refusing.refusals["put"] = 1
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    assert (len(rig.told.errors), ends()) == (1, [])
    assert await rig.committer.ask() is Decision.START
    assert ends() == ["commit"]

    attempt = await rig.begin(1)
    refusing.refusals["put"] = 1
    rig.committer.follow(attempt, Work(RetriableError("no room")))
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    assert (len(rig.told.errors), ends()) == (2, ["commit"])
    assert await rig.committer.ask() is Decision.START
    assert (len(rig.told.errors), ends()) == (2, ["commit", "commit-failed"])


async def test_the_cause_of_a_failed_commit_is_reported_though_the_log_never_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The program ends before the log is there again."""
    blobs = RefusingBlobs(new_blobs())
    events: list[Event] = []
    rig = Rig(await driver_on(blobs), report=events.append)
    attempt = await rig.begin(0)
    blobs.refusals["put"] = 3
    rig.committer.follow(attempt, Work(RetriableError("no room")))
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    assert await rig.committer.ask() is Decision.SKIP
    with pytest.raises(RetriableError, match="refused"):
        await rig.committer.resolve(0)
    rig.committer.leave()
    (failed,) = (event for event in events if isinstance(event, CommitFailed))
    assert (failed.batch, failed.step) == (0, "upload")
    assert "no room" in failed.error
    told = [r.message for r in caplog.records if "attempt is" in r.message]
    assert (len(told), all("reason=no room" in message for message in told)) == (3, True)
    rig.committer.leave()
    await rig.committer.resolve(0)
    assert len([event for event in events if isinstance(event, CommitFailed)]) == 1


async def test_an_attempt_that_is_left_while_the_log_is_asked_is_reported_once() -> None:
    events: list[Event] = []
    blobs = RefusingBlobs(new_blobs())
    rig = Rig(await driver_on(blobs), report=events.append)
    attempt = await rig.begin(0)
    blobs.refusals["put"] = 1
    rig.committer.follow(attempt, Work(RetriableError("no room")))
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    resolving = asyncio.create_task(rig.committer.resolve(0))
    asking = asyncio.Event()
    close_attempt = rig.log.close_attempt

    async def ask_log(reason: str) -> bool:
        asking.set()
        return await close_attempt(reason)

    rig.log.close_attempt = ask_log  # type: ignore[method-assign]
    await asking.wait()
    rig.committer.leave()
    await resolving
    assert len([event for event in events if isinstance(event, CommitFailed)]) == 1


async def test_an_attempt_that_takes_too_long_is_aborted_and_its_work_has_ended() -> None:
    rig = Rig(await driver_on(new_blobs()))
    work = Work()
    work.may_end.clear()
    attempt = await rig.begin(0)
    rig.committer.follow(attempt, work)
    await rig.committer.resolve(0)
    assert attempt.work is not None
    assert attempt.work.cancelled()
    (error,) = rig.told.errors
    assert isinstance(error, CommitFailedError)
    assert error.step == "timeout"
    assert await rig.committer.ask() is Decision.START


async def test_a_caller_that_waits_for_an_attempt_learns_that_it_is_given_up_though_the_log_is_away() -> (
    None
):
    blobs = RefusingBlobs(new_blobs())
    rig = Rig(await driver_on(blobs))
    work = Work()
    work.may_end.clear()
    attempt = await rig.begin(0)
    rig.committer.follow(attempt, work)
    blobs.refusals["put"] = 1
    with pytest.raises(RetriableError, match="refused"):
        await rig.committer.resolve(0)
    (error,) = rig.told.errors
    assert isinstance(error, CommitFailedError)
    assert rig.committer.open_attempt is attempt
    assert await rig.committer.ask() is Decision.START
    assert len(rig.told.errors) == 1


async def test_an_end_that_is_no_failure_is_not_counted_and_due_again() -> None:
    rig = Rig(await driver_on(new_blobs()), is_tolerant=False)
    await rig.run(0, Work(CommitAbandonedError("a version was lost")))
    assert (rig.told.errors, rig.gate.failures) == ([], 0)
    assert rig.committer.is_due()
    await rig.run(0, Work())
    assert [summary.batch for summary in rig.told.commits] == [0]


async def test_an_owner_that_was_fenced_gets_one_error_and_no_more_commits() -> None:
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


async def test_a_commit_reports_its_phases_and_how_many_were_skipped_meanwhile() -> None:
    rig = Rig(await driver_on(new_blobs()))
    rig.clock.advance(10.0)
    began_ns = rig.clock.monotonic_ns()
    attempt = await rig.begin(0)
    attempt.began_ns = began_ns
    rig.clock.advance(1.0)
    work = Work()
    work.may_end.clear()
    rig.committer.follow(attempt, work)
    assert await rig.committer.ask() is Decision.SKIP
    assert await rig.committer.ask() is Decision.SKIP
    rig.clock.advance(2.0)
    work.may_end.set()
    assert attempt.work is not None
    await asyncio.wait({attempt.work})
    (told,) = rig.told.commits
    assert (told.wait_ms, told.upload_ms, told.record_ms, told.elapsed_ms) == (1000, 2000, 0, 3000)
    assert (told.skipped, told.blocked_ms) == (2, 0)


async def test_a_commit_reports_how_long_processing_was_blocked_since_the_one_before() -> None:
    rig = Rig(await driver_on(new_blobs()))
    hanging = Work()
    hanging.may_end.clear()
    rig.committer.follow(await rig.begin(0), hanging)
    assert await rig.committer.ask(is_forced=True) is Decision.BLOCK  # in vain: it is given up
    waited_ms = load_dict({}).task.commit_timeout_ms
    for batch in (1, 2):
        await rig.run(batch, Work())
    assert [commit.blocked_ms for commit in rig.told.commits] == [waited_ms, 0]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "error_type", [RetriableError, OSError, CommitAbandonedError, None, CommitFailedError]
)
async def test_an_abort_says_why_without_the_secrets_of_a_client(
    text: str, error_type: type[Exception] | None
) -> None:
    blobs = new_blobs()
    events: list[Event] = []
    log = LogSession(log_on(blobs), report=events.append)
    await log.open()
    await log.take_over("driver")
    rig = Rig(log, report=events.append)
    reason = f"backend=far {text}"
    if error_type is None:
        await rig.begin(0)
        await rig.committer.fail(reason)
        await rig.begin(1)
        await rig.committer.abandon(reason)
    elif error_type is CommitFailedError:
        await rig.run(0, Work(CommitFailedError(reason, checkpoint_id="1-0", step="upload")))
    else:
        await rig.run(0, Work(error_type(reason)))
    records: list[Record] = []
    await LogReader(log_on(blobs)).catch_up(lambda _, record: records.append(record))
    stored = [record.reason for record in records if isinstance(record, AbortRecord)]
    told = [event.reason for event in events if isinstance(event, CommitAborted)]
    assert stored == told
    assert stored
    assert all("backend=far" in each for each in stored)
    assert SECRET not in f"{stored} {events}"

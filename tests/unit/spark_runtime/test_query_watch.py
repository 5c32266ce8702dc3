"""What goes on beside the batches: commits while the query is idle, versions that are submitted again."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from committer_kit import V0, V1, PollingClock, Rig, new_rig
from pyspark.errors import PySparkException
from typing_extensions import override

from statekeep.config.job_settings import TaskSettings
from statekeep.errors import StateBackupError
from statekeep.spark.driver.query_watch import QueryWatch, StopDeadline
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, SubmitPlan
from statekeep.testing.clock import FakeClock


class LoopThread:
    """A commit thread without a pool: blocking calls are made where they are asked for."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.submit(work).result(20)

    def call(self, call: Any, *args: Any) -> Any:
        return call(*args)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Jobs:
    """Lets the tasks submit, or says why not."""

    def __init__(self) -> None:
        self.plans: list[SubmitPlan] = []
        self.errors: Mapping[int, str] = {}
        self.failure: Exception | None = None
        self.on_submit: Callable[[SubmitPlan], None] = lambda _: None

    def submit_versions(self, plan: SubmitPlan) -> Mapping[int, str]:
        self.plans.append(plan)
        self.on_submit(plan)
        if self.failure is not None:
            raise self.failure
        return self.errors


class HastyClock(FakeClock):
    """A second passes with each look at it."""

    @override
    def monotonic_ns(self) -> int:
        self.advance(1)
        return super().monotonic_ns()


class HeldClock(PollingClock):
    """Who sleeps by it wakes up once that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.may_wake = asyncio.Event()

    @override
    async def sleep(self, seconds: float) -> None:
        await self.may_wake.wait()
        await super().sleep(seconds)


async def never_stopping() -> bool:
    return False


class Watched:
    """A query whose newest batch is delivered and not committed."""

    def __init__(
        self,
        thread: LoopThread,
        clock: FakeClock,
        upload_clock: FakeClock | None = None,
        stop_ms: int = 1_000,
    ) -> None:
        self.thread = thread
        self.rig: Rig = thread.run(new_rig(clock=upload_clock))
        self.jobs = Jobs()
        self.clock = clock
        self.turn = threading.Lock()
        self.newest = 0
        self.healed: list[tuple[frozenset[int], int]] = []
        self.on_heal: Callable[[], None] = lambda: None
        self.deadline = StopDeadline(
            self.rig.committer, never_stopping, lambda: None, self.clock, stop_ms
        )
        location: Any = SimpleNamespace(newest=lambda _: self.newest)
        batches: Any = SimpleNamespace(head=0, versions=lambda _: {0: V0, 1: V1}, heal=self.heal)
        given: Any = thread
        jobs: Any = self.jobs
        self.watch = QueryWatch(
            thread=given,
            log=self.rig.writer,
            commits=self.rig.committer,
            batches=batches,
            jobs=jobs,
            location=location,
            turn=self.turn,
            settings=TaskSettings(commit_max_delay_ms=10_000),
            clock=self.clock,
        )
        assert not self.rig.committer.is_due()  # its period begins

    def poll(self, *, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        self.watch.poll(self.deadline)

    def heal(self, lost: frozenset[int], batch: int) -> None:
        self.healed.append((lost, batch))
        self.jobs.errors = {}
        self.on_heal()

    def become_due(self) -> None:
        self.rig.clock.advance(3600)
        self.watch.note_batch()


@pytest.fixture
def watched() -> Iterator[Watched]:
    with loop_thread() as thread:
        yield Watched(thread, FakeClock())


@pytest.fixture
def stopped() -> Iterator[Watched]:
    """Return a query that is to end within 100 s, which pass fast."""
    with loop_thread() as thread:
        yield Watched(thread, HastyClock(), HeldClock(), stop_ms=100_000)


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.run(_cancel_all())
        thread.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def test_a_commit_that_is_due_waits_a_second_for_a_batch_to_ride_on(watched: Watched) -> None:
    watched.poll(after_s=5)
    assert watched.jobs.plans == []
    watched.become_due()
    watched.poll(after_s=0.9)
    assert watched.jobs.plans == []
    watched.poll(after_s=0.2)
    assert [plan.batch for plan in watched.jobs.plans] == [0]
    assert watched.rig.committer.open_plan is not None


def test_nothing_is_submitted_while_a_batch_runs_or_before_spark_has_ended_it(
    watched: Watched,
) -> None:
    watched.become_due()
    with watched.turn:
        watched.poll(after_s=2)
    watched.newest = -1
    watched.poll()
    assert watched.jobs.plans == []
    watched.newest = 0
    watched.poll()
    assert len(watched.jobs.plans) == 1


def test_a_job_that_fails_aborts_the_attempt_and_ends_no_query(watched: Watched) -> None:
    watched.become_due()
    watched.jobs.failure = PySparkException("no executor")
    watched.poll(after_s=2)
    assert watched.rig.committer.open_batch is None
    assert "no executor" in watched.rig.notes[-1][1]["reason"]
    assert watched.rig.gate.failures == 1


def test_an_attempt_that_takes_long_is_submitted_repeatedly(watched: Watched) -> None:
    watched.become_due()
    watched.poll(after_s=2)
    watched.poll(after_s=4.9)
    assert len(watched.jobs.plans) == 1
    watched.poll(after_s=0.2)
    assert len(watched.jobs.plans) == 2
    watched.poll(after_s=4.9)
    assert len(watched.jobs.plans) == 2
    watched.poll(after_s=0.2)
    assert watched.jobs.plans[0] is watched.jobs.plans[2]


def test_a_version_that_is_found_lost_then_aborts_the_attempt_uncounted(watched: Watched) -> None:
    watched.become_due()
    watched.poll(after_s=2)
    watched.jobs.errors = {1: f"{VERSION_NOT_HERE}: version={V1}"}
    watched.poll(after_s=5.1)
    assert watched.rig.committer.open_batch is None
    assert watched.rig.gate.failures == 0
    assert "a version was lost" in watched.rig.notes[-1][1]["reason"]


def test_a_version_that_is_lost_while_the_query_is_idle_is_healed_and_submitted_again(
    watched: Watched,
) -> None:
    watched.become_due()
    watched.jobs.errors = {1: f"{VERSION_NOT_HERE}: version={V1}"}
    watched.poll(after_s=2)
    assert watched.healed == [(frozenset({1}), 0)]
    assert watched.rig.committer.open_plan is None
    watched.poll()
    assert len(watched.healed) == 1
    assert watched.rig.committer.open_batch == 0
    assert watched.rig.gate.failures == 0


def test_a_version_that_is_lost_before_the_last_commit_is_healed_first(watched: Watched) -> None:
    watched.jobs.errors = {0: f"{VERSION_NOT_HERE}: version={V0}"}
    with pytest.raises(StateBackupError, match="did not become durable"):
        watched.watch.commit_last(watched.deadline)  # without an upload
    assert watched.healed == [(frozenset({0}), 0)]
    assert len(watched.jobs.plans) == 2


def test_a_recovery_that_hangs_holds_up_no_stop(watched: Watched) -> None:
    watched.become_due()
    watched.jobs.errors = {1: f"{VERSION_NOT_HERE}: version={V1}"}
    goes_on = threading.Event()

    def hang() -> None:
        watched.deadline.begin()
        watched.clock.advance(2)
        goes_on.wait()

    watched.on_heal = hang
    try:
        watched.poll(after_s=2)
    finally:
        goes_on.set()
    assert watched.rig.committer.open_batch is None


def upload(watched: Watched, plan: SubmitPlan) -> None:
    for partition in plan.versions:
        watched.thread.run(watched.rig.finish(plan, partition))
    assert isinstance(watched.rig.clock, HeldClock)
    watched.thread.loop.call_soon_threadsafe(watched.rig.clock.may_wake.set)


def test_a_last_commit_whose_process_has_died_is_submitted_again(stopped: Watched) -> None:
    def submit(plan: SubmitPlan) -> None:
        if len(stopped.jobs.plans) == 2:
            upload(stopped, plan)

    stopped.jobs.on_submit = submit
    stopped.watch.commit_last(stopped.deadline)
    assert stopped.rig.committer.committed_batch == 0
    assert stopped.jobs.plans[0] is stopped.jobs.plans[1]


def test_a_last_commit_whose_version_has_died_with_its_host_is_healed_and_begun_again(
    stopped: Watched,
) -> None:
    def submit(plan: SubmitPlan) -> None:
        match len(stopped.jobs.plans):
            case 2 | 3:
                stopped.jobs.errors = {1: f"{VERSION_NOT_HERE}: version={V1}"}
            case 4:
                upload(stopped, plan)

    stopped.jobs.on_submit = submit
    stopped.watch.commit_last(stopped.deadline)
    assert stopped.rig.committer.committed_batch == 0
    assert stopped.healed == [(frozenset({1}), 0)]
    assert stopped.rig.gate.failures == 0

"""A query is started again behind its handle, until it ends well, is stopped, or has no restart left."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from statekeep.config.load import load_dict
from statekeep.errors import ConfigError, RetriableError, TaskFencedError
from statekeep.reporter import Reporter
from statekeep.spark import supervisor as supervisor_module
from statekeep.spark.driver.progress import EventList
from statekeep.spark.query_run import QueryRun
from statekeep.spark.restart_policy import RestartPolicy
from statekeep.spark.supervisor import Supervisor
from statekeep.testing.clock import FakeClock

DOUBLE_WRITE = StreamingQueryException(
    "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3."
)
FENCED = TaskFencedError("replaced", own_epoch=1, newer_epoch=2)


class FakeRun:
    """A run that ends with ``error`` as soon as it is followed, or when it is stopped."""

    epoch = 7

    def __init__(self, error: BaseException | None = None, *, is_endless: bool = False) -> None:
        self.error = error
        self.end_error: BaseException | None = None
        self.at_boundary: Callable[[], None] = lambda: None
        self.is_stopped = False
        self._ended = threading.Event()
        if not is_endless:
            self._ended.set()

    @property
    def job(self) -> "FakeRun":
        return self

    def wait_ended(self) -> None:
        self._ended.wait()

    def stop(self) -> None:
        self.is_stopped = True
        self._ended.set()

    def stop_between_batches(self) -> None:
        self.at_boundary()
        self.stop()


class Rig:
    """A supervisor over runs that were laid out beforehand; an error among them fails its start."""

    def __init__(self, *runs: "FakeRun | Exception", attempts: int = 3) -> None:
        self.clock = FakeClock()
        self.events = EventList()
        self.ends = 0
        self.is_alive = True
        self.own_epochs: list[int | None] = []
        self._runs: Iterator[FakeRun | Exception] = iter(runs)
        settings = {
            "job.restart.strategy": "fixed-delay",
            "job.restart.attempts": str(attempts),
        }
        self.policy = RestartPolicy(load_dict(settings).restart, self.clock)

    def supervise(
        self,
        before_next: Callable[[], None] = lambda: None,
        *,
        timeout_s: float = 10,
        is_checked: bool = True,
    ) -> Supervisor:
        def start(check_wanted: Callable[[], None], own_epoch: int | None) -> QueryRun:
            self.own_epochs.append(own_epoch)
            before_next()
            if is_checked:
                check_wanted()
            return self._next()

        return Supervisor(
            self._next(),
            start,
            self.policy,
            report=Reporter(self.clock, "job", parts=[self.events]).report,
            on_end=self._count_end,
            clock=self.clock,
            is_session_alive=lambda: self.is_alive,
            timeout_s=timeout_s,
        )

    def _count_end(self) -> None:
        self.ends += 1

    def restarts(self) -> list[dict[str, Any]]:
        return [event.details for event in self.events.snapshot() if event.kind == "restart"]

    def _next(self) -> QueryRun:
        found = next(self._runs)
        if isinstance(found, Exception):
            raise found
        return cast("QueryRun", found)


@pytest.fixture(autouse=True)
def _plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no JVM whose thread-local properties could be inherited."""
    monkeypatch.setattr(supervisor_module, "InheritableThread", PlainThread)


class PlainThread(threading.Thread):
    def __init__(self, target: Callable[[], None], **options: Any) -> None:
        super().__init__(target=target, **options)


def test_a_query_that_fails_twice_runs_a_third_time() -> None:
    last = FakeRun()
    rig = Rig(FakeRun(RetriableError("one")), FakeRun(RetriableError("two")), last)
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert supervisor.error is None
    assert supervisor.run is cast("QueryRun", last)
    assert rig.restarts() == [
        {"number": 1, "delay_ms": 1_000, "reason": "RetriableError: one"},
        {"number": 2, "delay_ms": 1_000, "reason": "RetriableError: two"},
    ]
    assert (supervisor.restarts, supervisor.reason) == (2, "RetriableError: two")
    assert sum(rig.clock.slept) == pytest.approx(2.0)


def test_the_last_error_stays_when_no_restart_is_left() -> None:
    errors = [RetriableError(str(number)) for number in range(3)]
    rig = Rig(*map(FakeRun, errors), attempts=2)
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert supervisor.error is errors[2]
    assert supervisor.restarts == 2


def test_a_fenced_query_is_never_started_again() -> None:
    rig = Rig(FakeRun(FENCED))
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert supervisor.error is FENCED
    assert rig.restarts() == []


def test_a_restart_that_does_not_get_going_counts_like_any_other() -> None:
    failed, last = RetriableError("the store is still away"), FakeRun()
    rig = Rig(FakeRun(RetriableError("gone")), failed, last)
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert (supervisor.error, supervisor.failed_start) == (None, None)
    assert supervisor.run is cast("QueryRun", last)
    assert supervisor.restarts == 2


def test_a_restart_that_finds_a_lasting_error_is_the_last_one() -> None:
    failed = ConfigError("another number of tasks")
    rig = Rig(FakeRun(RetriableError("gone")), failed)
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert supervisor.error is failed
    assert supervisor.failed_start is failed


def test_a_query_that_another_driver_has_broken_off_goes_on_only_as_the_owner() -> None:
    rig = Rig(FakeRun(DOUBLE_WRITE), FakeRun(RetriableError("gone")), FENCED)
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert rig.own_epochs == [FakeRun.epoch, None]
    assert supervisor.error is FENCED
    assert rig.restarts()[0]["delay_ms"] == 0


def test_a_run_that_is_stopped_keeps_what_it_ended_with() -> None:
    not_committed = RetriableError("the last commit did not become durable")
    supervisor = Rig(FakeRun(not_committed, is_endless=True)).supervise()
    supervisor.stop()
    assert supervisor.error is not_committed


def test_a_session_that_has_ended_starts_nothing() -> None:
    rig = Rig(FakeRun(RetriableError("gone")))
    rig.is_alive = False
    supervisor = rig.supervise()
    assert supervisor.wait_ended(10)
    assert rig.restarts() == []


def test_a_stop_ends_the_run() -> None:
    run = FakeRun(is_endless=True)
    supervisor = Rig(run).supervise()
    assert not supervisor.has_ended
    supervisor.stop()
    assert run.is_stopped
    assert supervisor.has_ended


def test_a_stop_during_a_back_off_ends_it_without_an_error() -> None:
    failed = FakeRun(RetriableError("gone"))
    rig = Rig(failed, FakeRun())
    waiting, stopping = threading.Event(), threading.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        stopping.wait(10)

    rig.clock.sleep = sleep  # type: ignore[method-assign]
    supervisor = rig.supervise()
    assert waiting.wait(10)
    stopper = threading.Thread(target=supervisor.stop, daemon=True)
    stopper.start()
    while not supervisor._is_stopping:
        stopping.wait(0.001)
    stopping.set()
    stopper.join(10)
    assert supervisor.has_ended
    assert supervisor.error is None
    assert supervisor.run is cast("QueryRun", failed)
    assert len(rig.restarts()) == 1


def test_a_run_that_starts_while_the_query_is_stopped_is_stopped_too() -> None:
    second = FakeRun(is_endless=True)
    rig = Rig(FakeRun(RetriableError("gone")), second)
    starting, go_on = threading.Event(), threading.Event()

    def dawdle() -> None:
        starting.set()
        go_on.wait(10)

    supervisor = rig.supervise(dawdle, is_checked=False)
    assert starting.wait(10)
    stopper = threading.Thread(target=supervisor.stop, daemon=True)
    stopper.start()
    while not supervisor._is_stopping:
        go_on.wait(0.001)
    go_on.set()
    stopper.join(10)
    assert second.is_stopped
    assert supervisor.has_ended


def test_a_stop_does_not_wait_without_a_limit_for_a_restart_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    second = FakeRun(is_endless=True)
    rig = Rig(FakeRun(RetriableError("gone")), second)
    starting, store_answers = threading.Event(), threading.Event()

    def hang() -> None:
        starting.set()
        store_answers.wait(30)

    supervisor = rig.supervise(hang, timeout_s=0)
    assert starting.wait(10)
    stopper = threading.Thread(target=supervisor.stop, daemon=True)
    stopper.start()
    stopper.join(10)
    assert not stopper.is_alive()
    assert supervisor.has_ended
    assert supervisor.error is None
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "that start is given up" in error.getMessage()
    store_answers.set()  # so late that another driver may have started the job again
    supervisor._thread.join(10)
    assert not supervisor._thread.is_alive()
    assert next(rig._runs) is second, "it took over all the same"
    assert supervisor.failed_start is None


def test_a_caller_that_waits_for_the_next_run_gets_it_or_learns_that_there_is_none() -> None:
    first, second = FakeRun(RetriableError("gone")), FakeRun()
    supervisor = Rig(first, second).supervise()
    assert supervisor.wait_for_next(cast("QueryRun", first))
    assert not supervisor.wait_for_next(cast("QueryRun", second))


class Change:
    """Changes the state in the place of the code that does; its epoch is 9."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.followed: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def __call__(self, epoch: int, answer: Future[int]) -> int:
        self.followed.append(epoch)
        self.begun.set()
        self.go_on.wait(10)
        if self.error is None:
            answer.set_result(42)
        else:
            answer.set_exception(self.error)
        return 9


def test_the_state_is_changed_between_two_runs_and_that_is_no_restart() -> None:
    first, second, third = (FakeRun(is_endless=True) for _ in range(3))
    rig = Rig(first, second, third, attempts=1)
    supervisor = rig.supervise()
    began_ns = rig.policy._began_ns
    rig.clock.advance(60)
    change = Change()
    assert supervisor.change_state(change) == 42
    assert (first.is_stopped, change.followed, rig.own_epochs) == (True, [FakeRun.epoch], [9])
    assert supervisor.run is cast("QueryRun", second)
    assert supervisor.change_state(change) == 42
    assert supervisor.run is cast("QueryRun", third)
    assert (rig.restarts(), supervisor.restarts, rig.ends) == ([], 0, 0)
    assert rig.policy._began_ns == began_ns, "a run that lasts forgets the failures before it"
    supervisor.stop()
    assert supervisor.error is None


def test_a_query_goes_on_after_a_change_that_fails() -> None:
    second = FakeRun(is_endless=True)
    rig = Rig(FakeRun(is_endless=True), second)
    supervisor = rig.supervise()
    with pytest.raises(ConfigError, match="no such variable"):
        supervisor.change_state(Change(ConfigError("no such variable")))
    assert supervisor.run is cast("QueryRun", second)
    assert rig.own_epochs == [9]
    supervisor.stop()


def test_a_query_whose_last_commit_failed_goes_on_and_is_not_changed() -> None:
    first, second, change = FakeRun(is_endless=True), FakeRun(is_endless=True), Change()
    rig = Rig(first, second)
    supervisor = rig.supervise()
    first.error = first.end_error = RetriableError("the last commit did not become durable")
    with pytest.raises(RetriableError, match="the last commit did not become durable"):
        supervisor.change_state(change)
    assert (change.followed, rig.own_epochs) == ([], [FakeRun.epoch])
    assert supervisor.run is cast("QueryRun", second)
    supervisor.stop()


def test_a_run_that_fails_before_it_is_changed_is_started_again_without_the_change() -> None:
    first, second, change = FakeRun(is_endless=True), FakeRun(is_endless=True), Change()
    rig = Rig(first, second)
    supervisor = rig.supervise()
    first.error = RetriableError("gone")
    with pytest.raises(ConfigError, match="failed before its state was changed, and nothing is"):
        supervisor.change_state(change)
    assert supervisor.wait_for_next(cast("QueryRun", first))
    assert change.followed == []
    assert (supervisor.restarts, rig.own_epochs) == (1, [None])
    supervisor.stop()


def test_another_driver_that_came_while_the_state_was_changed_ends_the_query() -> None:
    rig = Rig(FakeRun(is_endless=True), FENCED)
    supervisor = rig.supervise()
    assert supervisor.change_state(Change()) == 42
    assert supervisor.wait_ended(10)
    assert rig.own_epochs == [9]
    assert supervisor.error is FENCED
    assert supervisor.failed_start is FENCED


def test_a_stop_before_the_boundary_leaves_the_state_as_it_is() -> None:
    first, change = FakeRun(is_endless=True), Change()
    supervisor = Rig(first).supervise()
    first.at_boundary = supervisor.stop
    with pytest.raises(ConfigError, match="ended or failed before its state was changed"):
        supervisor.change_state(change)
    assert change.followed == []
    assert (supervisor.has_ended, supervisor.error) == (True, None)


@pytest.mark.parametrize("timeout_s", [10, 0], ids=["waits", "gives up"])
def test_a_stop_during_a_change_ends_the_query_after_it(timeout_s: float) -> None:
    change = Change()
    rig = Rig(FakeRun(is_endless=True), FakeRun(is_endless=True))
    supervisor = rig.supervise(timeout_s=timeout_s)
    change.go_on.clear()
    with ThreadPoolExecutor(2) as threads:
        changing = threads.submit(supervisor.change_state, change)
        assert change.begun.wait(10)
        stopping = threads.submit(supervisor.stop)
        while not (supervisor.has_ended if timeout_s == 0 else supervisor._is_stopping):
            change.go_on.wait(0.001)
        assert not changing.done()
        change.go_on.set()
        assert changing.result(10) == 42
        stopping.result(10)
    supervisor._thread.join(10)
    assert (supervisor.has_ended, supervisor.error) == (True, None)
    assert rig.own_epochs == [], "it was started again after the stop"


def test_a_query_that_is_changed_or_has_ended_refuses_a_change() -> None:
    change = Change()
    supervisor = Rig(FakeRun(is_endless=True), FakeRun(is_endless=True)).supervise()
    change.go_on.clear()
    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(supervisor.change_state, change)
        assert change.begun.wait(10)
        with pytest.raises(ConfigError, match="is being changed or started again"):
            supervisor.change_state(Change())
        change.go_on.set()
        assert changing.result(10) == 42
    supervisor.stop()
    with pytest.raises(ConfigError, match=r"has ended, .* use sk.write_state with its settings"):
        supervisor.change_state(Change())
    assert len(change.followed) == 1


def test_a_change_whose_wait_for_the_boundary_is_broken_off_is_not_made() -> None:
    first, second, change = FakeRun(is_endless=True), FakeRun(is_endless=True), Change()
    supervisor = Rig(first, second).supervise()

    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    first.at_boundary = press_ctrl_c
    with pytest.raises(KeyboardInterrupt):
        supervisor.change_state(change)
    first.stop()  # as `QueryRun.stop_between_batches` does all the same
    assert supervisor.wait_for_next(cast("QueryRun", first))
    assert change.followed == []
    supervisor.stop()

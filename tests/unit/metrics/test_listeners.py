"""Listeners: told on a thread of their own, and never in the way of a job."""

import logging
import threading

import pytest
from pyspark import SparkContext
from typing_extensions import override

from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.events import (
    CommitBegan,
    CommitDone,
    CommitSkipped,
    Event,
    EventSource,
    JobStopped,
    Listener,
    RequestDone,
    RequestsCounted,
)
from statekeep.metrics.listeners import load_listeners
from statekeep.reporter import ListenerThread, Reporter, RequestCounter
from statekeep.testing.clock import FakeClock


class Hearing(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event, EventSource]] = []
        self.closed = 0

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        self.heard.append((event, source))

    @override
    def close(self) -> None:
        self.closed += 1


class Failing(Hearing):
    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        raise ValueError("the listener's own mistake")

    @override
    def close(self) -> None:
        raise ValueError("again")


class Slow(Hearing):
    """Waits at each event until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.has_begun = threading.Event()

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        self.has_begun.set()
        assert self.go_on.wait(20)
        super().on_event(event, source)


def reporter(*listeners: Listener) -> tuple[Reporter, ListenerThread]:
    thread = ListenerThread(listeners)
    return Reporter(FakeClock(), "job", "Partition 0", listeners=thread), thread


def test_events_come_in_order_with_their_source_and_the_end_waits_for_them() -> None:
    listener = Hearing()
    reports, thread = reporter(listener)
    for number in range(100):
        reports.report(CommitBegan(str(number)))
    thread.close()
    assert [event for event, _ in listener.heard] == [CommitBegan(str(n)) for n in range(100)]
    source = listener.heard[0][1]
    assert (source.job, source.task) == ("job", "Partition 0")
    assert source.time_ns == FakeClock().time_ns()
    assert listener.closed == 1
    reports.report(CommitSkipped())
    thread.close()
    assert (len(listener.heard), listener.closed) == (100, 1)


def test_a_listener_that_raises_is_logged_with_its_stack_once_and_harms_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Hearing()
    reports, thread = reporter(Failing(), listener)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            reports.report(CommitSkipped())
        thread.close()
    assert len(listener.heard) == 3
    assert listener.closed == 1
    failures = [r for r in caplog.records if "a listener failed" in r.getMessage()]
    assert len(failures) == 1
    assert "listener=Failing event=commit-skipped" in failures[0].getMessage()
    assert failures[0].exc_info is not None


def test_a_listener_that_exits_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Exiting(Hearing):
        @override
        def on_event(self, event: Event, source: EventSource, /) -> None:
            raise SystemExit(3)

        @override
        def close(self) -> None:
            raise SystemExit(3)

    listener = Hearing()
    reports, thread = reporter(Exiting(), listener)
    for _ in range(3):
        reports.report(CommitSkipped())
    thread.close()
    assert len(listener.heard) == 3
    assert listener.closed == 1
    assert "a listener failed" in caplog.text
    assert "a listener could not be closed: listener=" in caplog.text


def test_a_listener_may_end_its_own_job(caplog: pytest.LogCaptureFixture) -> None:
    class Ending(Hearing):
        @override
        def on_event(self, event: Event, source: EventSource, /) -> None:
            super().on_event(event, source)
            thread.close()

        @override
        def close(self) -> None:
            super().close()
            has_closed.set()

    has_closed = threading.Event()
    listener = Ending()
    reports, thread = reporter(listener)
    reports.report(CommitSkipped())
    assert has_closed.wait(20)
    assert (len(listener.heard), listener.closed) == (1, 1)
    assert caplog.text == ""


def test_requests_are_added_up_and_reported_with_a_commit_a_minute_and_at_the_end() -> None:
    clock, counter, heard = FakeClock(), RequestCounter(), Hearing()
    reports = Reporter(clock, "job", parts=[counter, heard])
    counter.report_to(reports.report)

    def ask(operation: str, count: int = 1) -> None:
        request = RequestDone("blob", operation, "done", 0, 0, count=count)
        reports.report(request)

    commit = CommitDone(0, "1-0", 4, 0, 1)
    ask("put", 3)
    ask("get")
    reports.report(commit)
    ask("put")
    clock.advance(59)
    reports.report(commit)
    ask("put")
    clock.advance(1)
    reports.report(commit)
    reports.report(JobStopped(None))
    ask("list")
    reports.report(JobStopped(None))
    told = [event for event, _ in heard.heard if not isinstance(event, RequestDone)]
    assert [e.requests if isinstance(e, RequestsCounted) else e.kind for e in told] == [
        {"blob": {"get": 1, "put": 3}},
        "commit",
        "commit",
        {"blob": {"put": 2}},
        "commit",
        "stopped",
        {"blob": {"list": 1}},
        "stopped",
    ]


def test_what_was_counted_since_the_end_of_a_job_is_reported_when_asked_for() -> None:
    """Such as the requests of the last clean-up."""
    counter, heard = RequestCounter(), Hearing()
    reports = Reporter(FakeClock(), "job", parts=[counter, heard])
    counter.report_to(reports.report)
    reports.report(JobStopped(None))
    reports.report(RequestDone("blob", "delete", "done", 0, 0, count=3))
    reports.report_rest()
    reports.report_rest()
    counted = [event.requests for event, _ in heard.heard if isinstance(event, RequestsCounted)]
    assert counted == [{"blob": {"delete": 3}}]


def test_a_slow_listener_delays_no_commit_and_loses_the_oldest_events(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("statekeep.reporter._MOST_WAITING", 3)
    slow = Slow()
    reports, thread = reporter(slow)
    reports.report(CommitBegan("first"))
    assert slow.has_begun.wait(20)
    for number in range(5):  # none of them waits
        reports.report(CommitBegan(str(number)))
    slow.go_on.set()
    thread.close()
    heard = [event for event, _ in slow.heard]
    assert heard == [CommitBegan("first"), *(CommitBegan(str(n)) for n in (2, 3, 4))]
    assert "events_dropped=2" in caplog.text


def test_a_listener_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    reports, thread = reporter(slow)
    reports.report(CommitSkipped())
    assert slow.has_begun.wait(20)
    thread.close(timeout_s=0.01)
    assert "listeners do not end, and are left behind" in caplog.text
    slow.go_on.set()


def test_without_listeners_there_is_no_thread() -> None:
    before = threading.active_count()
    reports = Reporter(FakeClock(), "job")
    reports.report(CommitSkipped())
    assert not reports.has_listeners
    assert threading.active_count() == before


def named(name: str) -> Config:
    return load_dict({"job.name": "j", "metrics.listeners": name})


def test_a_setting_names_a_class_of_the_users() -> None:
    (listener,) = load_listeners(named("test_listeners.Hearing"))
    assert type(listener).__name__ == "Hearing"


def test_a_listener_that_cannot_be_loaded_closes_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def close(listener: Listener) -> None:
        closed.append(type(listener).__name__)

    monkeypatch.setattr("test_listeners.Hearing.close", close)
    with pytest.raises(ConfigError, match="no such module"):
        load_listeners(named("test_listeners.Hearing,test_listeners.Slow,no_such_module.Listener"))
    assert sorted(closed) == ["Hearing", "Slow"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("grafana", "unknown listener"),
        ("spark", "no Spark session runs"),
        ("no_such_module.Listener", "no such module"),
        ("decimal.Decimal", "not a listener"),
    ],
)
def test_a_name_that_is_no_listener_is_refused(
    name: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One may run in this process: of the tests on Spark.
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_listeners(named(name))
    assert caught.value.key == "metrics.listeners"


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("prometheus", "prometheus_client", "prometheus"),
        ("opentelemetry", "opentelemetry", "otel"),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    monkeypatch.delitem(__import__("sys").modules, f"statekeep.metrics.{name}", raising=False)
    with pytest.raises(ConfigError) as caught:
        load_listeners(named(name))
    assert caught.value.hints == (f"pip install 'statekeep[{extra}]'",)

"""A clean-up that fails is reported less and less often, and louder once it fails for long."""

from itertools import pairwise

import pytest

from statekeep.commit.clean_up import CleanUpFailures
from statekeep.errors import RetriableError
from statekeep.events import CleanUpFailing, Event, report_nothing
from statekeep.testing.clock import FakeClock


def is_failing(failures: CleanUpFailures) -> bool:
    return failures.failing is not None


def test_reports_come_at_growing_distances_and_become_errors_after_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, events, reported = FakeClock(), list[int](), list[tuple[int, str]]()

    def report(event: Event) -> None:
        assert isinstance(event, CleanUpFailing)
        events.append(event.minutes)

    failures = CleanUpFailures(clock, report, subject="task=t")
    for second in range(0, 100 * 3600, 10):
        caplog.clear()
        failures.failed(RetriableError("away"))
        reported += [(second // 60, record.levelname) for record in caplog.records]
        clock.advance(10)

    quiet = [(0, "WARNING"), (1, "WARNING"), (3, "WARNING"), (7, "WARNING"), (15, "WARNING")]
    assert reported[:6] == [*quiet, (31, "WARNING")]
    assert {level for _, level in reported[6:]} == {"ERROR"}
    assert events == [minute for minute, _ in reported[6:]]
    assert events[0] == 60
    distances = [after - before for before, after in pairwise(events)]
    assert distances == sorted(distances)
    assert distances[-1] == 24 * 60
    assert len(reported) < 20


def test_many_reasons_of_one_clean_up_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = CleanUpFailures(FakeClock(), report_nothing)
    same = [RetriableError("away")] * 200
    other = [RetriableError(f"task {number}") for number in range(20)]

    failures.failed(ExceptionGroup("tasks", [*same, *other]))

    assert [record.getMessage() for record in caplog.records][:2] == [
        "clean-up failed and will be repeated: error=away",
        "clean-up failed and will be repeated: error=task 0",
    ]
    assert caplog.records[-1].getMessage() == "clean-up failed for more reasons: count=13"
    assert len(caplog.records) == 9


def test_after_a_clean_up_that_ended_well_the_next_failure_is_reported_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    failures = CleanUpFailures(clock, report_nothing)
    failures.failed(RetriableError("away"))
    clock.advance(30)
    failures.failed(RetriableError("away"))
    assert failures.failing == CleanUpFailing(0, "RetriableError: away")
    failures.ended_well()
    assert not is_failing(failures)
    failures.failed(RetriableError("again"))
    assert [record.getMessage().rpartition("=")[2] for record in caplog.records] == [
        "away",
        "again",
    ]

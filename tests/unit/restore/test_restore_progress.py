"""Progress of restores: sums, rate, time left, and a bar that shows only when it helps."""

import io

import pytest
from rich.console import Console

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.restore.progress import ProgressAggregate, RestoreProgress, RestoreProgressBar
from statekeep.testing.clock import FakeClock

S = 1_000_000_000


def report(task: str, total: int, done: int, *, is_done: bool = False) -> RestoreProgress:
    return RestoreProgress(TaskName(task), total, done, is_done=is_done)


def test_totals_add_up_the_newest_report_of_each_task() -> None:
    aggregate = ProgressAggregate()
    aggregate.update(report("a", 100, 10), 0)
    aggregate.update(report("b", 300, 30), 0)
    aggregate.update(report("a", 100, 100, is_done=True), 2 * S)
    totals = aggregate.totals(2 * S)
    assert (totals.total_bytes, totals.done_bytes) == (400, 130)
    assert (totals.tasks, totals.tasks_done) == (2, 1)


def test_rate_and_time_left_follow_from_what_was_fetched_so_far() -> None:
    aggregate = ProgressAggregate()
    aggregate.update(report("a", 1_000, 0), 10 * S)
    aggregate.update(report("a", 1_000, 200), 12 * S)
    totals = aggregate.totals(12 * S)
    assert totals.bytes_per_second == pytest.approx(100)
    assert totals.eta_seconds == pytest.approx(8)


def test_time_left_is_unknown_before_anything_was_fetched() -> None:
    aggregate = ProgressAggregate()
    assert aggregate.totals(5 * S).eta_seconds is None
    aggregate.update(report("a", 1_000, 0), 0)
    assert aggregate.totals(5 * S).eta_seconds is None


def console(*, is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=120)


def test_the_bar_appears_only_after_two_seconds_and_goes_with_the_last_restore() -> None:
    clock = FakeClock()
    bar = RestoreProgressBar(clock.monotonic_ns, console(is_terminal=True))
    shown: list[bool] = []
    for seconds, done, is_done in ((0, 100, False), (2, 500, False), (0, 1_000, True)):
        clock.advance(seconds)
        bar.update(report("a", 1_000, done, is_done=is_done))
        shown.append(bar.is_shown)
    assert shown == [False, True, False]


def test_the_two_seconds_begin_anew_with_the_next_restore() -> None:
    clock = FakeClock()
    bar = RestoreProgressBar(clock.monotonic_ns, console(is_terminal=True))
    bar.update(report("a", 1_000, 1_000, is_done=True))
    clock.advance(60)
    bar.update(report("b", 1_000, 0))
    assert not bar.is_shown


def test_a_bar_of_many_short_restores_stays_until_it_is_closed() -> None:
    clock = FakeClock()
    with RestoreProgressBar(clock.monotonic_ns, console(is_terminal=True), is_lasting=True) as bar:
        shown: list[bool] = []
        for task in "abcd":
            bar.update(report(task, 1_000, 0))
            clock.advance(1)
            bar.update(report(task, 1_000, 1_000, is_done=True))
            shown.append(bar.is_shown)
        assert shown == [False, True, True, True]
    assert not bar.is_shown


def test_the_bar_says_how_many_tasks_are_done() -> None:
    clock = FakeClock()
    terminal = console(is_terminal=True)
    bar = RestoreProgressBar(clock.monotonic_ns, terminal)
    bar.update(report("b", 1_000, 10))
    clock.advance(3)
    bar.update(report("a", 1_000, 1_000, is_done=True))
    bar.close()
    assert isinstance(terminal.file, io.StringIO)
    assert "restoring state, 1 of 2 tasks" in terminal.file.getvalue()


def test_no_bar_is_shown_where_there_is_no_terminal() -> None:
    clock = FakeClock()
    quiet = console(is_terminal=False)
    bar = RestoreProgressBar(clock.monotonic_ns, quiet)
    bar.update(report("a", 1_000, 0))
    clock.advance(60)
    bar.update(report("a", 1_000, 500))
    assert not bar.is_shown
    assert isinstance(quiet.file, io.StringIO)
    assert quiet.file.getvalue() == ""

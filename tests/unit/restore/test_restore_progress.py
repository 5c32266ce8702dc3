"""Progress of restores: a bar of their sums that shows only when it helps."""

import io

from rich.console import Console

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.restore.progress import RestoreProgress
from statekeep.restore.progress_bar import RestoreProgressBar
from statekeep.testing.clock import FakeClock


def report(task: str, total: int, done: int, *, is_done: bool = False) -> RestoreProgress:
    return RestoreProgress(TaskName(task), total, done, is_done=is_done)


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


def test_the_bar_adds_up_the_newest_report_of_each_task() -> None:
    clock = FakeClock()
    terminal = console(is_terminal=True)
    bar = RestoreProgressBar(clock.monotonic_ns, terminal)
    bar.update(report("a", 100, 10))
    bar.update(report("b", 300, 30))
    clock.advance(3)
    bar.update(report("a", 100, 100, is_done=True))
    bar.close()
    assert isinstance(terminal.file, io.StringIO)
    told = terminal.file.getvalue()
    assert "restoring state, 1 of 2 tasks" in told
    assert "130/400 bytes" in told


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

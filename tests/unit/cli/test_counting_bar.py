"""The bar of the commands that copy state."""

import io

from rich.console import Console

from statekeep.cli.counting_bar import CountingBar

SECOND = 1_000_000_000


def bar_at(times: list[int], *, is_terminal: bool = True) -> CountingBar:
    console = Console(file=io.StringIO(), force_terminal=is_terminal)
    clock = iter(times)
    return CountingBar("uploaded", lambda: next(clock), console)


def test_a_short_copy_shows_no_bar() -> None:
    with bar_at([0, SECOND, 2 * SECOND - 1]) as bar:
        bar.add(10)
        bar.add(10)
        assert not bar.is_shown


def test_a_long_copy_shows_how_much_was_sent() -> None:
    output = io.StringIO()
    clock = iter([0, SECOND, 3 * SECOND])
    with CountingBar(
        "uploaded", lambda: next(clock), Console(file=output, force_terminal=True)
    ) as bar:
        bar.add(1_000_000)
        bar.add(500_000)
        was_shown = bar.is_shown
    assert (was_shown, bar.is_shown) == (True, False)
    assert "uploaded: 1.5 MB" in output.getvalue()


def test_nothing_is_drawn_where_the_output_is_no_terminal() -> None:
    with bar_at([0, 3 * SECOND], is_terminal=False) as bar:
        bar.add(1)
        assert not bar.is_shown


def test_a_copy_that_knows_its_total_shows_it() -> None:
    output = io.StringIO()
    clock = iter([0, 3 * SECOND])
    with CountingBar(
        "uploaded", lambda: next(clock), Console(file=output, force_terminal=True)
    ) as bar:
        bar.expect(2_000_000)
        bar.expect(1_000_000)
        bar.add(1_500_000)
    assert "uploaded: 1.5 MB of about 3.0 MB" in output.getvalue()

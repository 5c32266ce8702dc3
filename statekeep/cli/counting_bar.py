"""A bar for what has no known end: bytes sent, entries moved."""

from collections.abc import Callable
from typing import Final, Self

from rich import filesize
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_NS_PER_S: Final = 1_000_000_000
_SHOWN_AFTER_NS: Final = 2 * _NS_PER_S
"""A bar that comes and goes within a moment only disturbs."""
_REDRAWN_EVERY_NS: Final = _NS_PER_S // 5


class CountingBar:
    """Shows a count on a terminal once it has grown for longer than two seconds.

    Nothing is shown where the console is no terminal. No thread draws it: a count that stands
    still is not redrawn. A context manager: the bar goes with the end of the block.
    """

    def __init__(
        self,
        what: str,
        monotonic_ns: Callable[[], int],
        console: Console | None = None,
        *,
        is_bytes: bool = True,
    ) -> None:
        """Name what is counted, such as ``uploaded``."""
        self._what = what
        self._monotonic_ns = monotonic_ns
        self._console = console if console is not None else Console(stderr=True)
        self._is_bytes = is_bytes
        self._began_ns = monotonic_ns()
        self._drawn_ns = 0
        self._count = 0
        self._expected = 0
        self._progress: Progress | None = None

    def expect(self, amount: int) -> None:
        """Add to the total that the count is shown with; an estimate, as data is encoded later."""
        self._expected += amount

    def add(self, amount: int) -> None:
        """Count, and redraw at most five times a second."""
        self._count += amount
        now_ns = self._monotonic_ns()
        is_due = now_ns - max(self._drawn_ns, self._began_ns) >= _REDRAWN_EVERY_NS
        if self._console.is_terminal and is_due and now_ns - self._began_ns >= _SHOWN_AFTER_NS:
            self._drawn_ns = now_ns
            self._draw()

    @property
    def is_shown(self) -> bool:
        """Whether the bar is on the terminal."""
        return self._progress is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _draw(self) -> None:
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )
            self._progress.add_task(self._what, total=None)
            self._progress.start()
        amount = self._text(self._count)
        if self._expected:
            amount += f" of about {self._text(self._expected)}"
        self._progress.update(
            self._progress.task_ids[0], description=f"{self._what}: {amount}", refresh=True
        )

    def _text(self, amount: int) -> str:
        return filesize.decimal(amount) if self._is_bytes else f"{amount:,}"

"""How far the restores of many tasks are, as one bar."""

from collections.abc import Callable
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.restore.progress import RestoreProgress

_NS_PER_S: Final = 1_000_000_000
_SHOWN_AFTER_NS: Final = 2 * _NS_PER_S
"""A bar that comes and goes within a moment only disturbs."""
_REDRAWN_EVERY_NS: Final = _NS_PER_S // 5


class RestoreProgressBar:
    """Shows how far all restores are together on a terminal, once restores have lasted longer than two seconds.

    Its `update` is made to be the ``on_progress`` of every `TaskRestorer`. The bar comes with a
    report and goes with the report that ends the last restore; no thread draws it. Nothing is
    shown where the console is no terminal.
    """

    def __init__(
        self,
        monotonic_ns: Callable[[], int],
        console: Console | None = None,
        *,
        is_lasting: bool = False,
    ) -> None:
        """Take what is needed.

        Args:
            monotonic_ns: The clock's reading.
            console: By default that of stderr.
            is_lasting: Tasks come one after the other: the bar stays until it is closed.
        """
        self._monotonic_ns = monotonic_ns
        self._is_lasting = is_lasting
        self._console = console if console is not None else Console(stderr=True)
        self._reports: dict[TaskName, RestoreProgress] = {}
        """The newest of each task."""
        self._began_ns: int | None = None
        self._drawn_ns = 0
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_shown(self) -> bool:
        """Whether the bar is on the terminal."""
        return self._progress is not None

    def update(self, report: RestoreProgress) -> None:
        """Take in a report and redraw, at most five times a second."""
        if not self._console.is_terminal:
            return
        now_ns = self._monotonic_ns()
        if self._began_ns is None:
            self._began_ns = now_ns
        self._reports[report.task_name] = report
        if all(task.is_done for task in self._reports.values()) and not self._is_lasting:
            self.close()
        elif now_ns - self._began_ns >= _SHOWN_AFTER_NS:
            self._draw(now_ns)

    def close(self) -> None:
        """Take the bar off the terminal and forget what was reported. Idempotent."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._began_ns = None
        self._reports.clear()

    def _draw(self, now_ns: int) -> None:
        if self._progress is None:
            self._progress = self._new_bar()
        elif now_ns - self._drawn_ns < _REDRAWN_EVERY_NS:
            return
        self._drawn_ns = now_ns
        reports = self._reports.values()
        done = sum(task.is_done for task in reports)
        self._progress.update(
            self._progress.task_ids[0],
            total=sum(task.total_bytes for task in reports),
            completed=sum(task.done_bytes for task in reports),
            description=f"restoring state, {done} of {len(reports)} tasks",
        )
        self._progress.refresh()

    def _new_bar(self) -> Progress:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        progress.add_task("restoring state", total=None)
        progress.start()
        return progress

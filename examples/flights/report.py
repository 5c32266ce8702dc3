"""Tells a person what is happening, and at the end what happened."""

from collections import Counter
from collections.abc import Sequence, Sized
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.check import Comparison
from examples.flights.events import Event

LINES = {
    "starting": "[bold]job starts[/], run {run}",
    "delivered": "[dim]batch {batch:2}: {rows:,} legs to the sink[/]",
    "executor killed": "[bold red]SIGKILL[/] to one of two executors (process {pid})",
    "everything killed": "[bold red]SIGKILL[/] to all {processes} processes of the job",
    "local state deleted": "[bold red]deleted[/] {directory}",
    "finished": "[bold]job ends[/]: the input is used up",
}


class Report:
    """Prints events as they come. Used as a context manager while the jobs run."""

    def __init__(self, console: Console, batch_count: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("batches"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("batches", total=batch_count)
        self._begin: float | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, event: Event) -> None:
        """Print one event, if it is worth a line."""
        if self._begin is None:
            self._begin = event["at"]
        if event["kind"] == "delivered":
            self._progress.update(self._bar, completed=event["batch"] + 1)
        line = _line(event)
        if line is not None:
            self._console.print(f"[dim]{event['at'] - self._begin:6.1f} s[/]  {line}")


def _line(event: Event) -> str | None:
    if event["kind"] == "runtime":
        return _runtime_line(event)
    text = LINES.get(event["kind"])
    return None if text is None else text.format_map(event)


def _runtime_line(event: Event) -> str | None:
    match event["what"]:
        case "commit":
            again = ", begun before the crash" if event["was_rolled_forward"] else ""
            sent = f"{event['tasks_uploaded']} tasks, {size(event['bytes_uploaded'])}"
            took = f"{sent} in {event['elapsed_ms']} ms"
            return f"[green]commit[/] of batch {event['batch']}: {took}{again}"
        case "recovery" if event["restored"] or event["replayed"]:
            restored = f"{count(event['restored'], 'task')}, {size(event['bytes_fetched'])}"
            replayed = f"{count(event['replayed'], 'batch', 'es')} replayed without the sink"
            took = f"{event['elapsed_ms'] / 1000:.1f} s"
            return f"[cyan]restored[/] {restored}; {replayed}; {took}"
        case _:
            return None


def print_summary(
    console: Console,
    events: Sequence[Event],
    backup_bytes: int,
    comparisons: Sequence[Comparison],
    contradictions: Sequence[int],
) -> None:
    """Print the figures of both runs and what the comparison found."""
    console.print(_figures(events, backup_bytes))
    console.print(_verdicts(comparisons, contradictions))
    for comparison in comparisons:
        for word, rows in (("missing", comparison.missing), ("surplus", comparison.surplus)):
            for row in rows:
                console.print(f"[red]{word}[/] in {comparison.name}: {escape(row)}")


def _figures(events: Sequence[Event], backup_bytes: int) -> Table:
    table = Table(title="What happened", show_header=False, title_justify="left")
    table.add_column(style="dim")
    table.add_column(justify="right")
    delivered = [event for event in events if event["kind"] == "delivered"]
    times = Counter(event["batch"] for event in delivered)
    table.add_row("batches delivered to the sink", f"{len(times)}")
    table.add_row("  of them delivered again", f"{sum(n > 1 for n in times.values())}")
    for name, value in _runtime_figures(events):
        table.add_row(name, value)
    table.add_row("backup on disk at the end", size(backup_bytes))
    table.add_row("from first start to last batch", f"{events[-1]['at'] - events[0]['at']:.1f} s")
    return table


def _runtime_figures(events: Sequence[Event]) -> list[tuple[str, str]]:
    by_kind: dict[str, list[Event]] = {}
    for event in events:
        if event["kind"] == "runtime":
            by_kind.setdefault(event["what"], []).append(event)
    commits, recoveries = by_kind.get("commit", []), by_kind.get("recovery", [])
    pauses = sorted(event["max_pause_ms"] for event in by_kind.get("batch", [])) or [0]
    return [
        ("longest pause of a task, median batch", f"{pauses[len(pauses) // 2]:.0f} ms"),
        ("longest pause of a task, worst batch", f"{pauses[-1]:.0f} ms"),
        ("commits", f"{len(commits)}"),
        ("longest commit", f"{max((event['elapsed_ms'] for event in commits), default=0)} ms"),
        ("bytes uploaded by commits", size(sum(event["bytes_uploaded"] for event in commits))),
        ("tasks restored", f"{sum(len(event['restored']) for event in recoveries)}"),
        ("bytes restored", size(sum(event["bytes_fetched"] for event in recoveries))),
        ("batches replayed, unseen by the sink", f"{_replayed(recoveries)}"),
        ("time of restores and replays", f"{_seconds(recoveries):.1f} s"),
    ]


def _replayed(recoveries: Sequence[Event]) -> int:
    return sum(len(event["replayed"]) for event in recoveries)


def _seconds(recoveries: Sequence[Event]) -> float:
    moved = [event for event in recoveries if event["restored"] or event["replayed"]]
    return float(sum(event["elapsed_ms"] for event in moved)) / 1000


def _verdicts(comparisons: Sequence[Comparison], contradictions: Sequence[int]) -> Table:
    table = Table(title="Beside plain Spark SQL over the whole table", title_justify="left")
    table.add_column("")
    table.add_column("rows", justify="right")
    table.add_column("result")
    for comparison in comparisons:
        result = "[green]equal[/]" if comparison.is_equal else "[bold red]different[/]"
        table.add_row(comparison.name, f"{comparison.expected_rows:,}", result)
    result = f"[bold red]{list(contradictions)}[/]" if contradictions else "[green]none[/]"
    table.add_row("batches delivered again with other rows", "", result)
    return table


def count(things: Sized, one: str, plural: str = "s") -> str:
    """Return how many things there are, as people say it."""
    return f"{len(things)} {one}{'' if len(things) == 1 else plural}"


def size(byte_count: float) -> str:
    """Return a number of bytes as people write it."""
    for unit in ("B", "kB", "MB"):
        if byte_count < 1000:
            return f"{byte_count:.0f} {unit}"
        byte_count /= 1000
    return f"{byte_count:.1f} GB"

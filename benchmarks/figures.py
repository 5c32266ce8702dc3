"""What a measurement gives, and how it is shown."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured quantity."""

    benchmark: str
    case: str
    subject: str
    value: float
    unit: str
    ratio: float | None = None
    """To the subject that the case compares with; None where there is none."""


def measured_apart(module: str, *numbers: int) -> list[Figure]:
    """Run a module of benchmarks in a process of its own, whose chatter goes into a file.

    Args:
        module: Prints its figures as one line of JSON.
        numbers: Its arguments.
    """
    command = [sys.executable, "-m", module, *map(str, numbers)]
    with tempfile.NamedTemporaryFile(prefix=f"{module}-", suffix=".log", delete=False) as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"nothing could be measured: module={module} log={log.name}")
    Path(log.name).unlink()
    return [Figure(**figure) for figure in json.loads(done.stdout.splitlines()[-1])]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-int(share * 1000) * len(ranked) // 1000) - 1)]


def show(console: Console, figures: Sequence[Figure]) -> None:
    """Print one table per benchmark."""
    for benchmark in dict.fromkeys(figure.benchmark for figure in figures):
        table = Table(title=benchmark, title_justify="left")
        for name in ("case", "subject"):
            table.add_column(name)
        for name in ("figure", "unit", "ratio"):
            table.add_column(name, justify="right" if name != "unit" else "left")
        for figure in figures:
            if figure.benchmark == benchmark:
                ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
                table.add_row(
                    figure.case, figure.subject, f"{figure.value:,.1f}", figure.unit, ratio
                )
        console.print(table)


def write_json(path: Path, figures: Sequence[Figure]) -> None:
    """Write the figures as a JSON list."""
    path.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")

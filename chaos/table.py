"""What many schedules came to, as one table and as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.outcome import Outcome


def show(
    console: Console, outcomes: Sequence[Outcome], points: Mapping[str, Sequence[str]]
) -> None:
    """Print schedules per fault point and backends, invariants, and failures.

    Args:
        console: Where to.
        outcomes: At least one.
        points: By level, the fault points that its schedules aim at.
    """
    columns = sorted({_column(outcome) for outcome in outcomes})
    table = Table(title="schedules in which a fault struck, by fault point", title_justify="left")
    table.add_column("fault point")
    table.add_column("what struck")
    for column in columns:
        table.add_column(column, justify="right")
    for point, counts in sorted(_by_point(outcomes).items()):
        actions = sorted({a for o in outcomes for a in o.faults.get(point, ())})
        table.add_row(point, " ".join(actions), *(str(counts[column]) for column in columns))
    per_column = Counter(map(_column, outcomes))
    table.add_section()
    table.add_row("all schedules", "", *(str(per_column[column]) for column in columns))
    console.print(table)
    for level, missed in _never_struck(outcomes, points).items():
        console.print(f"never struck on the {level} level: {' '.join(missed) or 'none'}")
    checked = Counter(number for outcome in outcomes for number in outcome.invariants)
    figures = " ".join(f"{number:02d}:{count}" for number, count in sorted(checked.items()))
    console.print(f"invariants checked, by schedules: {figures}")
    verdicts = sum((Counter(outcome.verdicts) for outcome in outcomes), Counter[str]())
    if verdicts:
        told = "  ".join(f"{verdict}: {count}" for verdict, count in sorted(verdicts.items()))
        console.print(f"what starts came to: {told}")
    failed = [outcome for outcome in outcomes if outcome.failures]
    console.print(
        f"schedules: {len(outcomes)}  processes killed or stopped: "
        f"{sum(o.kills for o in outcomes)}  failures: {len(failed)}  "
        f"seeds: {min(o.seed for o in outcomes)} to {max(o.seed for o in outcomes)}  "
        f"seconds a schedule: {sum(o.seconds for o in outcomes) / len(outcomes):.2f}"
    )


def _never_struck(
    outcomes: Sequence[Outcome], points: Mapping[str, Sequence[str]]
) -> Mapping[str, Sequence[str]]:
    found: dict[str, Sequence[str]] = {}
    for level, aimed_at in points.items():
        struck = {point for o in outcomes if o.level == level for point in o.faults}
        found[level] = sorted({*aimed_at} - struck)
    return found


def write_json(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write every outcome to a file."""
    path.write_text(json.dumps([_document(outcome) for outcome in outcomes], indent=1) + "\n")


def _document(outcome: Outcome) -> Mapping[str, object]:
    return {
        "seed": outcome.seed,
        "level": outcome.level,
        "backends": list(outcome.backends),
        "faults": {point: list(actions) for point, actions in outcome.faults.items()},
        "points": sorted(outcome.points),
        "verdicts": dict(outcome.verdicts),
        "kills": outcome.kills,
        "invariants": sorted(outcome.invariants),
        "failures": list(outcome.failures),
        "seconds": round(outcome.seconds, 3),
    }


def _column(outcome: Outcome) -> str:
    return f"{outcome.level} {','.join(outcome.backends)}"


def _by_point(outcomes: Sequence[Outcome]) -> Mapping[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for point in outcome.faults:
            counts.setdefault(point, Counter())[_column(outcome)] += 1
    return counts

"""``make bench``: runs the measurements and prints them side by side."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.figures import Figure, show, write_json


def _throughput(*, is_short: bool) -> list[Figure]:
    from benchmarks import throughput  # noqa: PLC0415  # loads Spark

    if is_short:
        return throughput.measure(batches=3, rounds=1)
    return throughput.measure(batches=6, rounds=2)


def _latency(*, is_short: bool) -> list[Figure]:
    from benchmarks import latency  # noqa: PLC0415  # loads Spark

    return latency.compare([2, 16], batches=10) if is_short else latency.compare([2, 16, 64])


def _latency_of_large_state(*, is_short: bool) -> list[Figure]:
    from benchmarks import latency  # noqa: PLC0415  # loads Spark

    return latency.compare([2], batches=10 if is_short else 25, state_mb=1_000)


def _pause(*, is_short: bool) -> list[Figure]:
    from benchmarks import pause  # noqa: PLC0415  # only what is asked for is loaded

    return pause.measure(commits=20 if is_short else 100, sizes_mb=(100, 1000))


def _overhead(*, is_short: bool) -> list[Figure]:
    from benchmarks import overhead  # noqa: PLC0415  # only what is asked for is loaded

    return overhead.measure(sizes_mb=(100, 1000), commits=4 if is_short else 21)


def _every_second(*, is_short: bool) -> list[Figure]:
    from benchmarks import overhead  # noqa: PLC0415  # only what is asked for is loaded

    return overhead.measure((100,), commits=6 if is_short else 60, commit_seconds=1)


def _frequent_commits(*, is_short: bool) -> list[Figure]:
    from benchmarks import frequent_commits  # noqa: PLC0415  # loads Spark

    return frequent_commits.measure(*((4, 1) if is_short else (12, 4)))


def _increments(*, is_short: bool) -> list[Figure]:
    from benchmarks import increments  # noqa: PLC0415  # only what is asked for is loaded

    if is_short:
        return increments.measure(size_mb=100, commits=100)
    return increments.measure(size_mb=1000, commits=2_000)


MEASUREMENTS: dict[str, Callable[..., list[Figure]]] = {
    "throughput": _throughput,
    "latency": _latency,
    "latency-of-large-state": _latency_of_large_state,
    "pause": _pause,
    "overhead": _overhead,
    "every-second": _every_second,
    "frequent-commits": _frequent_commits,
    "increments": _increments,
}


def main() -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--short", action="store_true", help="fewer batches: a rough look")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    console = Console(highlight=False)
    figures: list[Figure] = []
    for name in arguments.names or MEASUREMENTS:
        console.print(f"[dim]measuring {name}[/]")
        found = MEASUREMENTS[name](is_short=arguments.short)
        show(console, found)
        figures += found
    if arguments.json is not None:
        write_json(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

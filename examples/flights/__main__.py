"""``make demo``: 336,776 flights through a job that is killed twice; exit status 1 on a difference."""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from rich.console import Console

from examples.flights import check
from examples.flights.data import ensure_flights
from examples.flights.paths import Paths
from examples.flights.report import Report, print_summary
from examples.flights.supervise import JobFailedError, Supervisor

CACHE = Path(__file__).resolve().parents[2] / ".cache"
BATCH_COUNT = 20


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the working directory")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the flights are kept")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, _end)
    begin = time.monotonic()
    flights = ensure_flights(arguments.cache, BATCH_COUNT)
    work = Path(tempfile.mkdtemp(prefix="flights-"))
    try:
        status = _run(console, Paths(work, flights))
    finally:
        if not arguments.keep:
            shutil.rmtree(work)
    console.print(f"[dim]{time.monotonic() - begin:.0f} s in all[/]")
    return status


def _end(number: int, _: FrameType | None) -> None:
    """End as after Ctrl-C, so that no job stays behind."""
    sys.exit(128 + number)


def _run(console: Console, paths: Paths) -> int:
    console.print(f"336,776 flights in {BATCH_COUNT} batches; working directory {paths.work}\n")
    with Report(console, BATCH_COUNT) as report:
        supervisor = Supervisor(paths, BATCH_COUNT, report.tell)
        try:
            supervisor.run()
        except JobFailedError as error:
            console.print("[bold red]failed[/]")
            console.print(str(error), markup=False, soft_wrap=True)
            return 1
    with console.status("comparing with plain Spark SQL"):
        comparisons = _compare(paths)
    contradictions = check.contradictions(supervisor.events)
    backup_bytes = sum(path.stat().st_size for path in paths.backup.rglob("*") if path.is_file())
    print_summary(console, supervisor.events, backup_bytes, comparisons, contradictions)
    is_equal = all(comparison.is_equal for comparison in comparisons) and not contradictions
    return 0 if is_equal else 1


def _compare(paths: Paths) -> list[check.Comparison]:
    with paths.log("check").open("wb") as log:
        done = subprocess.run(  # noqa: S603  # our own Python, fixed arguments
            [
                sys.executable,
                "-m",
                "examples.flights.check",
                str(paths.work),
                str(paths.flights),
            ],
            cwd=CACHE.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            check=True,
        )
    return [check.Comparison(**one) for one in json.loads(done.stdout)]


if __name__ == "__main__":
    sys.exit(main())

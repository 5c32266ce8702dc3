"""What a commit each second costs a query on Spark: beside the same query that commits once an hour.

Both run over the same files in one session, by turns; the next round in the opposite order. A figure is
that of all batches of all rounds but the first batch of each query, as only some batches have a commit in them.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

import statekeep as sk
from benchmarks.figures import Figure, measured_apart
from benchmarks.processors import OUTPUT_SCHEMA, RunningTotal
from benchmarks.throughput import ROWS_PER_BATCH, run_query, session, write_input

KEYS: Final = 20_000
SECOND, HOUR = "a commit each second", "a commit each hour"
_INTERVALS_MS: Final = {SECOND: 1_000, HOUR: 3_600_000}


def measure(batches: int, rounds: int) -> list[Figure]:
    """Measure in a process of its own."""
    return measured_apart("benchmarks.frequent_commits", batches, rounds)


def run(batches: int, rounds: int) -> list[Figure]:
    """Run both queries by turns."""
    spark = session()
    seconds = dict.fromkeys(_INTERVALS_MS, 0.0)
    counted = dict.fromkeys(_INTERVALS_MS, 0)
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            work = Path(name)
            write_input(work / "input", KEYS, batches)
            for number in range(rounds):
                order = list(_INTERVALS_MS) if number % 2 == 0 else list(reversed(_INTERVALS_MS))
                for which in order:
                    place = work / f"{number}-{_INTERVALS_MS[which]}"
                    took = run_query(spark, _query(_INTERVALS_MS[which]), work / "input", place)
                    seconds[which] += sum(took)
                    counted[which] += len(took)
    finally:
        spark.stop()
    speed = {which: counted[which] * ROWS_PER_BATCH / seconds[which] for which in _INTERVALS_MS}
    case = f"{ROWS_PER_BATCH:,} rows a batch, {KEYS:,} keys, {counted[HOUR]} batches each"
    return [
        Figure("frequent commits", case, which, speed[which], "rows/s", speed[which] / speed[HOUR])
        for which in _INTERVALS_MS
    ]


def _query(interval_ms: int) -> Callable[[DataFrame, Path], Any]:
    """Return what makes a query that commits so often."""

    def build(rows: DataFrame, work: Path) -> Any:
        settings = {
            "job.logged.store.base.dir": str(work / "local"),
            "blob.store.uri": (work / "backup").as_uri(),
            "task.commit.ms": interval_ms,
        }
        grouped = sk.grouped(rows.groupBy("id"), settings)
        return grouped.transformWithState(RunningTotal(), OUTPUT_SCHEMA, "Update", "None")

    return build


if __name__ == "__main__":
    measured = run(int(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.write(json.dumps([asdict(figure) for figure in measured]) + "\n")

"""How long a start with another ``task.count`` takes: beside a start that only restores the same state.

Both find no state on the local disk and all batches committed. Each runs twice in one JVM, which has compiled what it
needs by the second time. The backups are in a directory of this machine: from a service, both take longer by its
distance. ``make bench-rescale ARGS="--megabytes 1000"``.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

import statekeep as sk
from benchmarks.figures import Figure, show
from benchmarks.standby import Keep, write_input

_BEFORE, _AFTER = 8, 12


def measure(megabytes: int, directory: Path) -> list[Figure]:
    """Fill a state of this size, restore it twice, then give it to more tasks and back."""
    spark = sk.session_builder("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        write_input(directory / "in", megabytes)
        _run(spark, directory, _BEFORE)
        case = f"{megabytes} MB"
        figures: list[Figure] = []
        restores = [(_BEFORE, "restore")] * 2
        reshapes = [(_AFTER, "reshape"), (_BEFORE, "reshape")]
        for number, (tasks, phase) in enumerate([*restores, *reshapes]):
            shutil.rmtree(directory / "local")
            seconds = _run(spark, directory, tasks)[phase] / 1000
            what = f"{phase}, {tasks} tasks" + (" (warm)" if number % 2 else "")
            ratio = seconds / figures[number - 2].value if phase == "reshape" else None
            figures.append(Figure("rescale", case, what, seconds, "s", ratio))
        return figures
    finally:
        spark.stop()


def _run(spark: SparkSession, directory: Path, tasks: int) -> dict[str, int]:
    """Run the query over all input there is; return the milliseconds of each phase of its start."""
    rows = spark.readStream.schema("key long, v binary").option("maxFilesPerTrigger", 1)
    settings = {
        "job.name": "bench",
        "task.count": tasks,
        "job.logged.store.base.dir": str(directory / "local"),
        "stores.backup.factories": "blob",
        "blob.store.uri": (directory / "blobs").as_uri(),
    }
    grouped = sk.grouped(rows.parquet(str(directory / "in")).groupBy("key"), settings)
    frame = grouped.transformWithState(Keep(), "key long", "Append", "None")
    writer = frame.writeStream.format("noop").option(
        "checkpointLocation", f"{directory}/checkpoint"
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    started: Iterator[Any] = (event for event in query.events if event.kind == "started")
    phases: dict[str, int] = dict(next(started).details["phases_ms"])
    return phases


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statekeep-bench-", ignore_cleanup_errors=True) as name:
        show(Console(highlight=False), measure(arguments.megabytes, Path(name)))


if __name__ == "__main__":
    main()

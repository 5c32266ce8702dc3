"""Small batches: the time from one delivery to the next, beside Spark's own operator.

Each figure is the median of a micro-batch after the first few. Both engines run in one process
after the other, on the same files, with the same processor. *As it comes* is Spark with its
defaults; *tuned* sets, for both, Unix sockets to the Python workers and the plain checkpoint file
manager, which only a local checkpoint location takes.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import statekeep as sk
from benchmarks.figures import Figure
from benchmarks.processors import FIRST_FILLER_KEY, OUTPUT_SCHEMA, RunningTotal, WithFiller

_SKIPPED: Final = 3
"""Batches at the beginning, in which workers start."""
_FILLER_BYTES: Final = 64 << 10
"""Of a value that only makes the state large."""
_FILLERS_A_BATCH: Final = 2_000
_SPARK_STATE: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_TUNED: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}
_SHOWN: Final = {
    "batch_ms": "a batch",
    "first_ms": "start and first batch",
    "stop_ms": "last batch to end",
    "restart_ms": "restart and first batch",
}


def measure(
    engine: str,
    tasks: int,
    rows: int,
    keys: int,
    batches: int,
    *,
    is_tuned: bool,
    state_mb: int = 0,
) -> dict[str, Any]:
    """Run one query in this process; return its figures in milliseconds.

    With ``state_mb`` there is about so much state in each task before the first measured batch.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_plain = engine == "spark" and not is_tuned
    builder = (
        SparkSession.builder.master("local[2]") if is_plain else sk.session_builder("local[2]")
    )
    settings = _SPARK_STATE | (_TUNED if is_tuned else {})
    settings |= {
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    work = Path(tempfile.mkdtemp(prefix="latency-"))
    try:
        fillers = tasks * state_mb * 1_000_000 // _FILLER_BYTES
        return _run(spark, engine, work, rows=rows, keys=keys, batches=batches, fillers=fillers)
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def _run(
    spark: SparkSession,
    engine: str,
    work: Path,
    *,
    rows: int,
    keys: int,
    batches: int,
    fillers: int,
) -> dict[str, Any]:
    filling = _write_fillers(work / "in", fillers)
    _write_input(work / "in", rows=rows, keys=keys, batches=batches, first=filling)
    frame = (
        spark.readStream.schema("id BIGINT, value BIGINT")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(work / "in"))
    )
    ends: list[float] = []

    def deliver(output: DataFrame, _: int) -> None:
        output.write.format("noop").mode("overwrite").save()
        ends.append(time.perf_counter())

    grouped: Any = frame.groupBy("id")
    if engine == "statekeep":
        settings = {
            "job.logged.store.base.dir": str(work / "local"),
            "blob.store.uri": (work / "backup").as_uri(),
        }
        grouped = sk.grouped(grouped, settings)
    processor = WithFiller() if fillers else RunningTotal()
    stateful = grouped.transformWithState(processor, OUTPUT_SCHEMA, "Update", "None")

    def run() -> tuple[float, float]:
        """Run the query to the end of its input; return when it was started and had ended."""
        ends.clear()
        began = time.perf_counter()
        query = (
            stateful.writeStream.foreachBatch(deliver)
            .option("checkpointLocation", str(work / "checkpoint"))
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return began, time.perf_counter()

    began, ended = run()
    gaps = [later - earlier for earlier, later in pairwise(ends)][filling + _SKIPPED :]
    found = {
        "batch_ms": round(statistics.median(gaps) * 1e3),
        "last_ms": round(statistics.median(gaps[-10:]) * 1e3),
        "first_ms": round((ends[0] - began) * 1e3),
        "stop_ms": round((ended - ends[-1]) * 1e3),
    }
    _write_input(work / "in", rows=rows, keys=keys, batches=1, first=filling + batches)
    began, _ = run()
    return found | {"restart_ms": round((ends[0] - began) * 1e3)}


def _write_input(directory: Path, *, rows: int, keys: int, batches: int, first: int = 0) -> None:
    random = np.random.default_rng(1)
    for number in range(first, first + batches):
        table = {
            "id": random.integers(keys, size=rows),
            "value": random.integers(1000, size=rows),
        }
        pq.write_table(pa.table(table), directory / f"{number:04}.parquet")


def _write_fillers(directory: Path, count: int) -> int:
    """Write the batches that make the state large; return how many."""
    directory.mkdir()
    starts = range(0, count, _FILLERS_A_BATCH)
    for number, start in enumerate(starts):
        ids = FIRST_FILLER_KEY + np.arange(start, min(start + _FILLERS_A_BATCH, count))
        table = {"id": ids, "value": np.full(len(ids), _FILLER_BYTES)}
        pq.write_table(pa.table(table), directory / f"{number:04}.parquet")
    return len(starts)


def compare(
    task_counts: Sequence[int],
    *,
    rows: int = 1_000,
    keys: int = 1_000,
    batches: int = 25,
    state_mb: int = 0,
) -> list[Figure]:
    """Measure both engines at each number of tasks, each run in a process of its own."""
    figures: list[Figure] = []
    for tasks in task_counts:
        for is_tuned in (False, True):
            kind = "tuned" if is_tuned else "as it comes"
            spark, ours = (
                _in_process(
                    engine, tasks, rows, keys, batches, is_tuned=is_tuned, state_mb=state_mb
                )
                for engine in ("spark", "statekeep")
            )
            for what, name in _SHOWN.items():
                size = f" of {state_mb} MB" if state_mb else ""
                case = f"{tasks} tasks{size}, {rows:,} rows, {kind}: {name}"
                figures += [
                    Figure("latency", case, "Spark", spark[what], "ms"),
                    Figure(
                        "latency", case, "Statekeep", ours[what], "ms", spark[what] / ours[what]
                    ),
                ]
    return figures


def _in_process(
    engine: str, tasks: int, rows: int, keys: int, batches: int, *, is_tuned: bool, state_mb: int
) -> dict[str, Any]:
    numbers = [tasks, rows, keys, batches, int(is_tuned), state_mb]
    arguments = [engine, *map(str, numbers)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.latency", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run one case in this process, for `compare`."""
    engine, *numbers = sys.argv[1:]
    tasks, rows, keys, batches, tuned, state_mb = map(int, numbers)
    found = measure(engine, tasks, rows, keys, batches, is_tuned=bool(tuned), state_mb=state_mb)
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()

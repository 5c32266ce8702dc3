"""Rows per second of one stateful operator: Statekeep beside Spark's own, in one Spark session.

Each round runs every engine over the same files, in turn; the next round in the opposite order.
A figure is the median over the batches of all rounds but the first batch of each query, which
pays for the start. The time of a batch is that between the ends of two calls of the sink: commit
and state store are in it.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention

import statekeep as sk
from benchmarks.figures import Figure, measured_apart
from benchmarks.processors import (
    COMBINED,
    OUTPUT_SCHEMA,
    STATE_SCHEMA,
    RunningTotal,
    RunningTotalInPandas,
    combined_total,
    running_total,
)

ROWS_PER_BATCH = 200_000
KEY_COUNTS = (20_000, 200_000)
CORES = 2
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Build = Callable[[DataFrame, Path], Any]
"""Makes the stateful stream from the input and a directory for the state."""


def _grouped(rows: DataFrame, work: Path) -> sk.StatefulGroupedData:
    settings = {
        "job.logged.store.base.dir": str(work / "local"),
        "blob.store.uri": (work / "backup").as_uri(),
    }
    return sk.grouped(rows.groupBy("id"), settings)


def statekeep_rows(rows: DataFrame, work: Path) -> Any:
    return _grouped(rows, work).transformWithState(RunningTotal(), OUTPUT_SCHEMA, "Update", "None")


def statekeep_arrow(rows: DataFrame, work: Path) -> Any:
    return _grouped(rows, work).transformWithStateInArrow(
        running_total, OUTPUT_SCHEMA, "Update", {"total": STATE_SCHEMA}
    )


def statekeep_combined(rows: DataFrame, work: Path) -> Any:
    return _grouped(rows, work).transformWithStateInArrow(
        combined_total, OUTPUT_SCHEMA, "Update", {"total": STATE_SCHEMA}, COMBINED
    )


def spark_rows(rows: DataFrame, _: Path) -> Any:
    return rows.groupBy("id").transformWithState(RunningTotal(), OUTPUT_SCHEMA, "Update", "None")


def spark_pandas(rows: DataFrame, _: Path) -> Any:
    return rows.groupBy("id").transformWithStateInPandas(
        RunningTotalInPandas(), OUTPUT_SCHEMA, "Update", "None"
    )


def spark_aggregate(rows: DataFrame, _: Path) -> Any:
    return rows.groupBy("id").agg(F.count("*").alias("count"), F.sum("value").alias("total"))


BASELINE = "transformWithState (Row)"
ENGINES: dict[str, Build] = {
    "statekeep": statekeep_rows,
    "statekeep, Arrow": statekeep_arrow,
    "statekeep, Arrow with combiner": statekeep_combined,
    BASELINE: spark_rows,
    "transformWithStateInPandas": spark_pandas,
    "aggregate (no Python)": spark_aggregate,
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    batches: int
    rounds: int
    key_counts: Sequence[int] = KEY_COUNTS
    engines: Sequence[str] = tuple(ENGINES)


def measure(batches: int, rounds: int) -> list[Figure]:
    """Measure in a process of its own."""
    return measured_apart("benchmarks.throughput", batches, rounds)


def run(plan: Plan) -> list[Figure]:
    """Run all engines at all numbers of keys."""
    spark = session()
    figures: list[Figure] = []
    try:
        for key_count in plan.key_counts:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
                figures += _measure_case(spark, Path(name), key_count, plan)
    finally:
        spark.stop()
    return figures


def session() -> SparkSession:
    """Return a session with Statekeep's settings and, for Spark's operators, RocksDB."""
    builder = sk.session_builder(f"local[{CORES}]").appName("benchmark")
    spark: SparkSession = (
        builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB_PROVIDER)
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    return spark


def _measure_case(spark: SparkSession, work: Path, key_count: int, plan: Plan) -> list[Figure]:
    write_input(work / "input", key_count, plan.batches)
    seconds: dict[str, list[float]] = {name: [] for name in plan.engines}
    for number in range(plan.rounds):
        order = plan.engines if number % 2 == 0 else tuple(reversed(plan.engines))
        for name in order:
            run = work / f"{number}-{plan.engines.index(name)}"
            seconds[name] += run_query(spark, ENGINES[name], work / "input", run)
    speed = {
        name: ROWS_PER_BATCH / statistics.median(of_batches) for name, of_batches in seconds.items()
    }
    baseline = speed.get(BASELINE)
    return [
        Figure(
            "throughput",
            f"{ROWS_PER_BATCH:,} rows a batch, {key_count:,} keys",
            name,
            value,
            "rows/s",
            None if baseline is None else value / baseline,
        )
        for name, value in speed.items()
    ]


def write_input(directory: Path, key_count: int, batches: int) -> None:
    """Write one file per batch; keys are drawn evenly, the same ones in every run."""
    directory.mkdir(parents=True)
    draw = np.random.default_rng(seed=key_count)
    for number in range(batches):
        table = pa.table(
            {
                "id": draw.integers(key_count, size=ROWS_PER_BATCH),
                "value": draw.integers(1000, size=ROWS_PER_BATCH),
            }
        )
        pq.write_table(table, directory / f"{number:03}.parquet")


def run_query(spark: SparkSession, build: Build, source: Path, work: Path) -> list[float]:
    """Run one query over all files; return the seconds of each batch but the first."""
    rows = (
        spark.readStream.schema("id BIGINT, value BIGINT")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
    )
    ends: list[float] = []

    def deliver(output: DataFrame, _: int) -> None:
        output.write.format("noop").mode("overwrite").save()
        ends.append(time.perf_counter())

    query = (
        build(rows, work)
        .writeStream.foreachBatch(deliver)
        .option("checkpointLocation", str(work / "checkpoint"))
        .outputMode("update")
        .trigger(availableNow=True)
        .queryName(work.name.replace("-", "_"))
        .start()
    )
    query.awaitTermination()
    return [end - begin for begin, end in pairwise(ends)]


if __name__ == "__main__":
    measured = run(Plan(int(sys.argv[1]), int(sys.argv[2])))
    sys.stdout.write(json.dumps([asdict(figure) for figure in measured]))

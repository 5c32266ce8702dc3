"""A stream of files, queries on it with Spark's own state stores, and the commands that look after them."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import group_functions
from conftest import conf
from processors import OUTPUT, Count
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typer.testing import CliRunner

from statekeep.cli.app import app

STREAMING = "spark.sql.streaming"
STORE = f"{STREAMING}.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
HDFS = {f"{STORE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"}
ROCKSDB = {f"{STORE}.providerClass": f"{PROVIDERS}.RocksDBStateStoreProvider"}
CHANGELOG = {f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true"}
FORMAT_2 = {f"{STORE}.checkpointFormatVersion": "2"}
ALWAYS = {
    "spark.sql.shuffle.partitions": "2",
    f"{STREAMING}.noDataMicroBatches.enabled": "false",
    f"{STREAMING}.minBatchesToRetain": "2",
    f"{STORE}.minDeltasForSnapshot": "2",
}
Operate = Callable[[DataFrame, DataFrame], DataFrame]


def count(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("key").count()


def distinct_then_count(left: DataFrame, _: DataFrame) -> DataFrame:
    distinct = left.withWatermark("t", "1 hour").dropDuplicates(["key", "v", "t"])
    return distinct.groupBy(sf.window("t", "10 seconds")).count()


def join(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.join(right.select("key", sf.col("v").alias("other")), "key")


def transform(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("key").transformWithState(
        statefulProcessor=Count(), outputStructType=OUTPUT, outputMode="update", timeMode="none"
    )


def group_state(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("key").applyInPandasWithState(
        group_functions.count, "key string, n long", "n long", "update", "NoTimeout"
    )


@dataclass(frozen=True)
class Form:
    """How a query keeps its state, and what it does."""

    settings: Mapping[str, str]
    operate: Operate
    mode: str


FORMS = {
    "hdfs": Form(HDFS, count, "update"),
    "rocksdb": Form(ROCKSDB, count, "update"),
    "rocksdb changelog, two operators": Form(ROCKSDB | CHANGELOG, distinct_then_count, "update"),
    "join in format 2": Form(ROCKSDB | CHANGELOG | FORMAT_2, join, "append"),
    "applyInPandasWithState": Form(HDFS, group_state, "update"),
    "transformWithState": Form(ROCKSDB | CHANGELOG, transform, "update"),
}


@dataclass
class Guarded:
    """A stream of files, one a batch, and a query on it."""

    spark: SparkSession
    root: Path
    form: Form
    files: int = 0
    delivered: dict[Path, dict[int, list[str]]] = field(default_factory=dict)
    """By location: the rows of each batch."""

    def add(self, files: int) -> None:
        """Add files; each becomes a batch."""
        directory = self.root / "in"
        directory.mkdir(exist_ok=True)
        for number in range(self.files, self.files + files):
            rows = [
                {"key": f"k{n % 5}", "v": number + n, "t": f"2026-01-01T00:00:{number:02}Z"}
                for n in range(number, number + 7)
            ]
            partial = self.root / "partial"
            partial.write_text("\n".join(map(json.dumps, rows)))
            os.utime(partial, (1_700_000_000 + number,) * 2)
            partial.rename(directory / f"{number:03}.json")
        self.files += files

    def start(self, location: Path, on_batch: Callable[[int], None] = lambda _: None) -> None:
        """Run the query on the files that are there."""
        rows = self.delivered.setdefault(location, {})

        def take(batch: DataFrame, number: int) -> None:
            rows[number] = sorted(str(row.asDict(recursive=True)) for row in batch.collect())
            on_batch(number)

        with conf(self.spark, {**ALWAYS, **self.form.settings}):
            self.writer(location, take).trigger(availableNow=True).start().awaitTermination()

    def writer(self, location: Path, take: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        """Return what starts the query; its settings are those of the session then."""
        writer = self.frame().writeStream.outputMode(self.form.mode).foreachBatch(take)
        return writer.option("checkpointLocation", str(location))

    def frame(self) -> DataFrame:
        """Return what the query writes."""
        return self.form.operate(self._read(), self._read())

    def _read(self) -> DataFrame:
        reader = self.spark.readStream.schema("key string, v long, t timestamp")
        return reader.option("maxFilesPerTrigger", 1).json(str(self.root / "in"))

    def copy(self, location: Path) -> Any:
        return self.command(f"run {location} --once --to {self.copies}")

    def restore(self, location: Path, target: Path, copy: str = "") -> Any:
        return self.command(f"restore {location} {copy} --from {self.copies} --to {target}")

    @property
    def copies(self) -> str:
        return (self.root / "copies").as_uri()

    def command(self, line: str) -> Any:
        done = CliRunner().invoke(app, f"guard {line} --json", catch_exceptions=False)
        return json.loads(done.stdout)

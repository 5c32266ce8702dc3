"""Queries on Spark's own state stores, copied while they run, put back elsewhere, and gone on with."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import conf
from processors import OUTPUT, Count
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from typer.testing import CliRunner

from statekeep.cli.app import app

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(280)]

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
            frame = self.form.operate(self._read(), self._read())
            writer = frame.writeStream.outputMode(self.form.mode).foreachBatch(take)
            query = writer.option("checkpointLocation", str(location))
            query.trigger(availableNow=True).start().awaitTermination()

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


@pytest.fixture(params=FORMS)
def guarded(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Guarded:
    return Guarded(spark, tmp_path, FORMS[request.param])


def test_a_query_goes_on_from_each_copy_as_if_nothing_had_happened(guarded: Guarded) -> None:
    location, whole = guarded.root / "location", guarded.root / "whole"
    guarded.add(2)
    guarded.start(location)
    first = guarded.copy(location)
    guarded.add(2)
    guarded.start(location)
    second = guarded.copy(location)
    assert [first["batch"], second["batch"]] == [1, 3]
    assert guarded.command(f"inspect {location} --deep")["newest-sound"] == 3
    shutil.rmtree(location)
    guarded.add(2)
    guarded.start(whole)
    # The newest one, and the one before, from which two more batches are processed again.
    for number, copy in ((3, ""), (1, str(first["commit"]))):
        new = guarded.root / f"new-{number}"
        assert guarded.restore(location, new, copy)["batch"] == number
        guarded.start(new)
        again = guarded.delivered[new]
        expected = {b: r for b, r in guarded.delivered[whole].items() if b > number}
        assert again == expected
        assert guarded.command(f"inspect {new} --deep")["damage"] == []
    # Maintenance of Spark's stores, which are loaded still, may write there; a restore would write this.
    assert not (location / "metadata").exists()


@pytest.mark.parametrize("guarded", ["hdfs", "rocksdb changelog, two operators"], indirect=True)
def test_each_copy_of_a_query_that_runs_is_one_batch_whole(guarded: Guarded) -> None:
    location, whole = guarded.root / "location", guarded.root / "whole"
    guarded.add(8)
    copied: dict[int, int] = {}

    def copy(batch: int) -> None:
        if batch in {2, 3, 5, 7}:  # while the batch is open
            made = guarded.copy(location)
            copied[made["batch"]] = made["commit"]

    guarded.start(location, copy)
    guarded.start(whole)
    assert sorted(copied) == [1, 2, 4, 6]
    new = guarded.root / "new"
    assert guarded.restore(location, new, str(copied[4]))["batch"] == 4
    guarded.start(new)
    assert guarded.delivered[new] == {b: r for b, r in guarded.delivered[whole].items() if b > 4}


@pytest.mark.parametrize("guarded", ["hdfs", "rocksdb"], indirect=True)
def test_spark_cannot_go_on_where_damage_is_found_and_can_after_the_copy(guarded: Guarded) -> None:
    location, new = guarded.root / "location", guarded.root / "new"
    guarded.add(3)
    guarded.start(location)
    assert guarded.copy(location)["batch"] == 2
    for lost in ("3.delta", "3.snapshot", "3.zip"):
        (location / "state/0/1" / lost).unlink(missing_ok=True)
    assert guarded.command(f"inspect {location}")["newest-sound"] == 1
    guarded.add(1)
    # In the session of these tests the stores are still in memory: another location has nothing to hide behind.
    moved = location.rename(guarded.root / "moved")
    with pytest.raises(StreamingQueryException):
        guarded.start(moved)
    guarded.restore(location, new)
    guarded.start(new)
    assert list(guarded.delivered[new]) == [3]

"""From the state files of Spark's own provider to ours and back, by Spark itself."""

import json
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hdfs_native
import pytest
from pyspark.sql import DataFrame, SparkSession
from servers.hdfs import HdfsCluster

from statekeep.backends.base import RestoreContext, TaskIdentity
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.backends.hdfs.spark_files import export_snapshot
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
)
from statekeep.cli import app
from statekeep.stores.base import KeyValueStore
from statekeep.stores.factory import open_store
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

STORE = StoreName("state")
HDFS = BackendName("hdfs")
COUNT = struct.Struct("<8xq")
"""A row of Spark with one number: a word of null bits, and a word for the column."""
IMPORTED = [{"task": "Partition 0", "version": 2, "entries": 3}]
"""What an import of `query_of_two_batches` says."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


class CountQuery:
    """``groupBy("value").count()`` over text files, on Spark's own state store."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark
        self._input = root / "input"
        self._input.mkdir()
        self.location = root / "location"
        self.counts: dict[str, int] = {}

    @property
    def state(self) -> Path:
        return self.location / "state" / "0" / "0"

    def run(self, *words: str) -> None:
        """Process one more file as one batch."""
        number = len(list(self._input.iterdir()))
        staged = self._input.parent / f"{number}.txt"
        staged.write_text("\n".join(words))
        staged.rename(self._input / staged.name)
        counted = self._spark.readStream.text(str(self._input)).groupBy("value").count()
        query = (
            counted.writeStream.outputMode("update")
            .foreachBatch(self._take)
            .option("checkpointLocation", str(self.location))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _take(self, frame: DataFrame, batch: int) -> None:
        del batch
        self.counts |= {row["value"]: row["count"] for row in frame.collect()}


def query_of_two_batches(spark: SparkSession, root: Path) -> CountQuery:
    query = CountQuery(spark, root)
    query.run("a", "b", "a")
    query.run("b", "c")
    return query


async def restored(place: str, version: int, target: Path) -> KeyValueStore:
    factory = HdfsBackendFactory(HDFS, {"uri": place})
    context = RestoreContext(
        task=TaskIdentity("job", "main", TaskName("Partition 0")),
        directories={STORE: target},
        reusable=(),
        open_store=lambda name, directory: open_store(name, "rocksdb", directory, is_new=True),
        open_image=lambda name, directory: open_store(name, "rocksdb", directory, is_new=False),
        on_bytes=lambda _: None,
        on_total=lambda _: None,
        executor=SerialExecutor(),
        clock=FakeClock(),
    )
    manager = factory.restore_manager(context)
    marker = Marker(f"state/0/0/{version}")
    await manager.init(CheckpointV2(CheckpointId(1, 1), {}, {HDFS: {STORE: marker}}))
    await manager.restore()
    await manager.close()
    return open_store(STORE, "rocksdb", target, is_new=True)


@pytest.mark.asyncio
async def test_what_spark_wrote_is_restored_changed_and_read_by_spark_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = query_of_two_batches(spark, tmp_path)
    assert query.counts == {"a": 2, "b": 2, "c": 1}

    store = await restored(query.location.as_uri(), 2, tmp_path / "store" / "db")
    found = {key: COUNT.unpack(value)[0] for key, value in store.scan()}
    assert sorted(found.values()) == [1, 2, 2]
    store.write({key: COUNT.pack(count + 100) for key, count in found.items()})

    for path in query.state.iterdir():
        if path.is_file():
            path.unlink()
    export_snapshot(store, query.state, 2)
    store.close()
    query.run("a", "c", "d")
    assert query.counts == {"a": 103, "b": 2, "c": 102, "d": 1}
    query.run("b")
    assert query.counts == {"a": 103, "b": 103, "c": 102, "d": 1}


def copied_to(cluster: HdfsCluster, directory: Path) -> str:
    """Copy a directory with all that is in it; return where it is on the cluster."""
    client: Any = hdfs_native.Client(cluster.uri)
    place = f"/{uuid.uuid4().hex}"
    for path in directory.rglob("*"):
        if path.is_file():
            name = f"{place}/{path.relative_to(directory)}"
            with client.create(name, hdfs_native.WriteOptions()) as file:
                file.write(path.read_bytes())
    return f"{cluster.uri}{place}"


@pytest.mark.asyncio
async def test_what_spark_wrote_on_hdfs_is_restored(
    spark: SparkSession, tmp_path: Path, cluster: HdfsCluster
) -> None:
    query = query_of_two_batches(spark, tmp_path)
    store = await restored(copied_to(cluster, query.location), 2, tmp_path / "store" / "db")
    assert sorted(COUNT.unpack(value)[0] for _, value in store.scan()) == [1, 2, 2]
    store.close()


def test_a_query_on_hdfs_becomes_a_job_on_hdfs_by_one_command(
    spark: SparkSession,
    tmp_path: Path,
    cluster: HdfsCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = query_of_two_batches(spark, tmp_path)
    settings = settings_of_job(f"{cluster.uri}/{uuid.uuid4().hex}")
    location = copied_to(cluster, query.location)
    begin = ("spark-state", "import", location, "--store", "counts", "--json")
    status, said = run_command(monkeypatch, capsys, *begin, *settings)
    assert (status, json.loads(said)) == (0, IMPORTED)
    status, said = run_command(monkeypatch, capsys, "verify", "--task", "Partition 0", *settings)
    assert (status, "damaged" in said) == (0, False)


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[object, str]:
    """Run ``statekeep``; return its exit status and what it said."""
    monkeypatch.setattr("sys.argv", ["statekeep", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        app.main()
    said = capsys.readouterr()
    return ended.value.code, said.out + said.err


def settings_of_job(uri: str) -> list[str]:
    settings = {
        "job.name": "counted",
        "stores.counts.backup.factories": "hdfs",
        "hdfs.store.uri": uri,
    }
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def test_the_commands_lead_a_query_of_spark_to_a_job_and_back(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = query_of_two_batches(spark, tmp_path)
    settings = settings_of_job((tmp_path / "backup").as_uri())
    begin = ("spark-state", "import", str(query.location), "--store", "counts", "--json")
    status, said = run_command(monkeypatch, capsys, *begin, *settings)
    assert (status, json.loads(said)) == (0, IMPORTED)
    for path in query.state.iterdir():
        if path.is_file():
            path.unlink()
    target = str(query.state.parent)
    options = ("--store", "counts", "--version", "2", "--task", "Partition 0")
    back = ("spark-state", "export", target, *options)
    assert run_command(monkeypatch, capsys, *back, *settings)[0] == 0
    query.run("a", "d")
    assert query.counts == {"a": 3, "b": 2, "c": 1, "d": 1}


def test_a_location_whose_values_have_checksums_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "spark.sql.streaming.stateStore.rowChecksum.enabled"
    spark.conf.set(name, "true")
    try:
        query = CountQuery(spark, tmp_path)
        query.run("a")
    finally:
        spark.conf.unset(name)
    line = ("spark-state", "import", str(query.location), "--store", "counts")
    status, said = run_command(
        monkeypatch, capsys, *line, *settings_of_job((tmp_path / "backup").as_uri())
    )
    assert (status, f"{name}=true" in said) == (6, True), said


def test_an_export_replaces_a_snapshot_and_the_checksum_that_hadoop_keeps_of_it(
    tmp_path: Path,
) -> None:
    store = open_store(STORE, "memory", tmp_path / "db", is_new=True)
    store.write({b"k": b"v"})
    stale = tmp_path / ".3.snapshot.crc"
    stale.write_bytes(b"old")
    path = export_snapshot(store, tmp_path, 3)
    assert path.name == "3.snapshot"
    assert not stale.exists()
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["3.snapshot"]
    with pytest.raises(ValueError, match="below 1"):
        export_snapshot(store, tmp_path, 0)

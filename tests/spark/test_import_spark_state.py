"""Queries that begin on Spark's own stateful operator and go on here, at the same checkpoint location."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import conf
from moving_processors import NEVER, Remembering, Waiting, Watermarked, obey_key
from processors import OUTPUT, CountFrames
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import statekeep as sk
from statekeep.errors import CheckpointLocationError, ConfigError
from statekeep.inspection.new_job import NewJob
from statekeep.spark.driver.location import CheckpointLocation

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(280)]

STREAMING = "spark.sql.streaming"
STATE_STORE = f"{STREAMING}.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FORMAT_2 = {f"{STATE_STORE}.checkpointFormatVersion": "2"}
TOLD = "key string, what string, text string"
Rows = Sequence[tuple[str, int, Any]]
"""(key, seconds of the event time, what the rest of a row says)"""
Batches = list[tuple[int, list[tuple[Any, ...]]]]
Operate = Callable[[Any], Any]


@dataclass
class Moving:
    """A stream of files, one a batch, and a query on it by one of the two operators."""

    spark: SparkSession
    root: Path
    operate: Operate
    """From grouped data to the operator's output."""
    schema: str = "key string, t timestamp, v long"
    watermark: str | None = None
    spark_settings: dict[str, str] = field(default_factory=dict)
    location_name: str = "checkpoint"
    job_name: str = ""
    """Other than that of the location."""
    delivered: Batches = field(default_factory=list)

    @property
    def location(self) -> Path:
        return self.root / self.location_name

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "job.name": self.job_name or self.location_name,
            "job.logged.store.base.dir": str(self.root / "local"),
            "task.count": 5,
        }

    def add(self, rows: Rows) -> None:
        directory = self.root / "in"
        directory.mkdir(exist_ok=True)
        number = len(list(directory.iterdir()))
        (field_name,) = [f.split()[0] for f in self.schema.split(", ")][2:]
        lines = [
            json.dumps({"key": key, "t": f"2024-01-01T00:00:{t:02}Z", field_name: rest})
            for key, t, rest in rows
        ]
        partial = self.root / "partial"
        partial.write_text("\n".join(lines))
        os.utime(partial, (1_700_000_000 + number,) * 2)
        partial.rename(directory / f"{number:03}.json")

    def on_spark(self, **trigger: Any) -> None:
        """Run Spark's own operator on the files that are there."""
        given = {
            "spark.sql.shuffle.partitions": "2",
            f"{STATE_STORE}.providerClass": ROCKSDB,
            f"{STREAMING}.noDataMicroBatches.enabled": "false",
        }
        with conf(self.spark, given | self.spark_settings):
            self._run(self._grouped(), trigger)

    def on_ours(self, **trigger: Any) -> sk.StatefulStreamingQuery:
        query: sk.StatefulStreamingQuery = self._run(
            sk.grouped(self._grouped(), self.settings), trigger
        )
        return query

    def moved(self, **options: Any) -> sk.ImportedState:
        return sk.import_spark_state(self.spark, self.location, self.settings, **options)

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for _, rows in self.delivered for row in rows]

    def _grouped(self) -> Any:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        frame = reader.json(str(self.root / "in"))
        if self.watermark is not None:
            frame = frame.withWatermark("t", self.watermark)
        return frame.groupBy("key")

    def _run(self, data: Any, trigger: Mapping[str, Any]) -> Any:
        writer = self.operate(data).writeStream.foreachBatch(self._sink).outputMode("update")
        writer = writer.option("checkpointLocation", str(self.location))
        query = writer.trigger(**(trigger or {"availableNow": True})).start()
        query.awaitTermination()
        return query

    def _sink(self, frame: DataFrame, batch: int) -> None:
        self.delivered.append((batch, sorted(tuple(row) for row in frame.collect())))


def remember(data: Any) -> Any:
    return data.transformWithState(Remembering(), OUTPUT, "Update", "None")


def wait(data: Any) -> Any:
    return data.transformWithState(Waiting(), TOLD, "Update", "ProcessingTime")


def watermarked(data: Any) -> Any:
    return data.transformWithState(Watermarked(), TOLD, "Update", "EventTime")


def files_in(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def add_counts(query: Moving, batches: int) -> None:
    directory = query.root / "in"
    start = len(list(directory.iterdir())) if directory.exists() else 0
    for batch in range(start, start + batches):
        query.add([(f"key-{i * 7919 % 23}", 0, i) for i in range(batch * 40, batch * 40 + 40)])


def beside(query: Moving, name: str) -> Moving:
    """Return another query on the same files."""
    return Moving(
        query.spark,
        query.root,
        query.operate,
        query.schema,
        query.watermark,
        query.spark_settings,
        name,
    )


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        pytest.param({}, 20, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(FORMAT_2, 3, marks=pytest.mark.long),
        pytest.param(
            {f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true"},
            3,
            marks=pytest.mark.long,
        ),
    ],
    ids=["twenty", "format2", "changelog"],
)
def test_a_query_that_moves_delivers_what_it_would_have_delivered_on_either(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str], batches: int
) -> None:
    moving = Moving(spark, tmp_path, remember, spark_settings=settings)
    add_counts(moving, batches)
    moving.on_spark()
    stays = beside(moving, "stays")
    shutil.copytree(moving.location, stays.location)
    stays.delivered = list(moving.delivered)
    before = files_in(moving.location)
    made = moving.moved()
    assert files_in(moving.location) == before
    assert (made.batch, list(made.variables)) == (batches - 1, ["count", "digits", "sums"])
    assert len(made.entries) == 5
    assert min(made.entries) > 0

    add_counts(moving, batches)
    moving.on_ours()
    ours = beside(moving, "ours")
    ours.on_ours()
    stays.on_spark()
    assert [batch for batch, _ in moving.delivered] == list(range(2 * batches))
    assert moving.delivered == ours.delivered == stays.delivered
    for variable in made.variables:
        moved, begun = (
            sorted(map(str, sk.read_state(q.settings | _beside(q), variable).to_pylist()))
            for q in (moving, ours)
        )
        assert moved == begun


def test_a_processor_of_pandas_frames_moves_as_well(spark: SparkSession, tmp_path: Path) -> None:
    def count(data: Any) -> Any:
        return data.transformWithStateInPandas(CountFrames(), OUTPUT, "Update", "None")

    moving = Moving(spark, tmp_path, count)
    add_counts(moving, 2)
    moving.on_spark()
    stays = beside(moving, "stays")
    shutil.copytree(moving.location, stays.location)
    stays.delivered = list(moving.delivered)
    assert list(moving.moved().variables) == ["count"]
    add_counts(moving, 2)
    moving.on_ours()
    stays.on_spark()
    assert moving.delivered == stays.delivered
    assert len(moving.delivered) == 4


def _beside(query: Moving) -> dict[str, str]:
    return {
        "blob.store.uri": f"file://{query.location}-statekeep",
        "stores.backup.factories": "blob",
    }


@pytest.mark.parametrize(
    "settings", [{}, pytest.param(FORMAT_2, marks=pytest.mark.long)], ids=["format1", "format2"]
)
def test_timers_and_times_to_live_are_carried_over_exactly(
    spark: SparkSession, tmp_path: Path, settings: dict[str, str]
) -> None:
    moving = Moving(spark, tmp_path, wait, spark_settings=settings)
    for rows in [("a", 0, 1), ("b", 0, 2)], [("a", 0, 3), ("c", 0, 0)]:
        moving.add(rows)
        moving.on_spark(once=True)
    columns = {"short": "value", "long": "value", "list": "list_element", "map": "user_map_value"}
    ends: dict[str | None, list[tuple[str, int]]] = {}
    with conf(spark, settings):
        for name, column in columns.items():
            reader = spark.read.format("statestore").option("stateVarName", name)
            found = reader.load(str(moving.location)).collect()
            ends[name] = sorted((row.key.key, row[column].ttlExpirationMs) for row in found)
        timers = spark.read.format("statestore").option("readRegisteredTimers", "true")
        found = timers.load(str(moving.location)).collect()
        ends[None] = sorted((row.key.key, row.expiration_timestamp_ms) for row in found)
    moving.moved()

    def ends_here(name: str | None) -> list[tuple[str, int]]:
        given = moving.settings | _beside(moving)
        rows = sk.read_state(given, name, timers=name is None).to_pylist()
        return sorted((row["key"]["key"], row["expiration_timestamp_ms"]) for row in rows)

    assert {name: ends_here(name) for name in ends} == ends
    assert {name: len(found) for name, found in ends.items() if name != "short"} == {
        "long": 3,
        "list": 4,
        "map": 4,
        None: 5,
    }

    moving.add([("a", 0, 4)])
    moving.on_ours(once=True)
    assert moving.rows()[4:] == [
        ("a", "before", "None (3,) ([1, 3], ['k1', 'k3'])"),
        ("c", "timer", "None (0,) ([0], ['k0'])"),
    ]
    # What has ended is gone from the state too, and so is its index.
    assert [key for key, _ in ends_here("short")] == ["a"]
    assert {time_ms for _, time_ms in ends_here(None)} == {NEVER + number for number in range(5)}


def test_timers_in_event_time_fire_as_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    moving = Moving(spark, tmp_path, watermarked, watermark="0 seconds")
    batches: list[Rows] = [
        [("a", 1, 1), ("b", 9, 1)],
        [("a", 5, 1)],
        [("c", 12, 1)],
        [("c", 30, 1)],
    ]
    for rows in batches:
        moving.add(rows)
    stays = beside(moving, "stays")
    stays.on_spark()
    for number in range(2, 4):
        (tmp_path / "in" / f"{number:03}.json").rename(tmp_path / f"{number:03}.json")
    moving.on_spark()
    moving.moved()
    for number in range(2, 4):
        (tmp_path / f"{number:03}.json").rename(tmp_path / "in" / f"{number:03}.json")
    moving.on_ours()
    # Our runtime runs one more batch for the timers that are due once the last watermark holds.
    assert moving.delivered[: len(stays.delivered)] == stays.delivered
    assert len(moving.rows()) > len(stays.rows()) > 0


@pytest.mark.parametrize(
    ("timeout", "settings"),
    [
        ("NoTimeout", {f"{STATE_STORE}.providerClass": ""}),
        ("EventTimeTimeout", {}),
        pytest.param("EventTimeTimeout", FORMAT_2, marks=pytest.mark.long),
        ("ProcessingTimeTimeout", {f"{STATE_STORE}.providerClass": ""}),
    ],
)
def test_a_function_with_group_state_moves_with_its_values_and_timeouts(
    spark: SparkSession, tmp_path: Path, timeout: str, settings: dict[str, str]
) -> None:
    hdfs = ROCKSDB.replace("RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider")
    given = {key: value or hdfs for key, value in settings.items()}

    def group(data: Any) -> Any:
        return data.applyInPandasWithState(
            obey_key, TOLD, "n long, texts string", "Update", timeout
        )

    moving = Moving(
        spark, tmp_path, group, "key string, t timestamp, op string", "0 seconds", given
    )
    soon, later = {
        "NoTimeout": ("look", "look"),
        "EventTimeTimeout": ("at 20", "at 50"),
        "ProcessingTimeTimeout": ("soon", "never"),
    }[timeout]
    ours = beside(moving, "ours")
    first: list[Rows] = [
        [(k, 10, op) for k in ("a", "gone", "waits") for op in ("add 1", "add 2")],
        [("gone", 11, "remove"), ("a", 11, soon), ("waits", 11, later), ("left", 11, soon)],
    ]
    second: list[Rows] = [[("other", 30, "add 5")], [("a", 31, "add 7"), ("waits", 31, "look")]]
    for number, rows in enumerate(first):
        moving.add(rows)
        moving.on_spark(once=True)
        if number == 0 and timeout != "NoTimeout":
            with pytest.raises(ConfigError, match="the query had timeouts") as failed:
                moving.moved()
            assert "NoTimeout" not in failed.value.hints[0]
    made = moving.moved(timeoutConf=None if timeout == "NoTimeout" else timeout)
    assert list(made.variables) == ["groupState"]
    for rows in second:
        moving.add(rows)
        moving.on_ours(once=True)
    for name in sorted((tmp_path / "in").iterdir()):
        name.rename(tmp_path / name.name)
    for number in range(4):
        (tmp_path / f"{number:03}.json").rename(tmp_path / "in" / f"{number:03}.json")
        ours.on_ours(once=True)
    assert [rows for _, rows in moving.delivered] == [rows for _, rows in ours.delivered]
    assert any("timed out" in row for row in moving.rows()) == (timeout != "NoTimeout")


def test_until_its_start_the_location_is_sparks_and_an_import_can_be_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Moving(spark, tmp_path, remember)
    add_counts(moving, 2)
    moving.on_spark()

    begun = moving.location / "offsets" / "2"
    add_task = NewJob.add

    async def add_while_spark_goes_on(self: NewJob, *args: Any) -> None:
        begun.write_text("by a query that runs elsewhere")
        await add_task(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(NewJob, "add", add_while_spark_goes_on)
        with pytest.raises(CheckpointLocationError, match=r"the query runs.* begun=2 committed=1"):
            moving.moved()
    begun.unlink()

    async def fails(self: NewJob, query: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NewJob, "finish", fails)
        with pytest.raises(KeyboardInterrupt):
            moving.moved()
    with pytest.raises(ConfigError, match="was only partly made"):
        moving.on_ours()
    add_counts(moving, 1)
    moving.on_spark()

    assert moving.moved().batch == 2
    with pytest.raises(ConfigError, match="there is a job of that name"):
        moving.moved()
    add_counts(moving, 1)
    moving.on_spark()
    with pytest.raises(CheckpointLocationError, match=r"run a batch since .* imported=2 begun=3"):
        moving.on_ours()
    other = moving.settings | {"job.name": "other"}
    assert sk.import_spark_state(spark, moving.location, other).batch == 3


def test_the_old_program_started_by_mistake_fails_and_the_job_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    moving = Moving(spark, tmp_path, remember)
    add_counts(moving, 2)
    moving.on_spark()
    moving.moved()
    add_counts(moving, 1)
    moving.on_ours()
    add_counts(moving, 1)
    with pytest.raises(StreamingQueryException, match="Failed to read the operator metadata"):
        moving.on_spark()
    assert (moving.location / "offsets" / "3").exists()
    moving.on_ours()
    stays = beside(moving, "stays")
    stays.on_spark()
    assert moving.delivered == stays.delivered


def test_after_an_interrupted_first_start_the_state_can_be_imported_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Moving(spark, tmp_path, wait)
    moving.add([("a", 0, 1)])
    moving.add([("a", 0, 3)])
    moving.on_spark()
    moving.moved()

    before = files_in(moving.location)
    moving.watermark = "0 seconds"
    moving.operate = watermarked
    with pytest.raises(ConfigError, match="imported=ProcessingTime timeMode=EventTime"):
        moving.on_ours()
    assert files_in(moving.location) == before
    moving.watermark, moving.operate = None, wait

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointLocation, "move", crash)
        with pytest.raises(KeyboardInterrupt):
            moving.on_ours()
    assert files_in(moving.location) != before
    moving.job_name = "again"
    assert moving.moved().batch == 1
    moving.add([("a", 0, 4)])
    moving.on_ours(once=True)
    assert [row for row in moving.rows() if row[1] == "before"][-1][2].endswith(
        "([1, 3], ['k1', 'k3'])"
    )


def test_what_cannot_be_imported_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    def moved(location: Path, **options: Any) -> None:
        sk.import_spark_state(spark, location, {"job.name": "moved", **options})

    with pytest.raises(CheckpointLocationError, match="has committed no batch"):
        moved(tmp_path / "nowhere")

    moving = Moving(spark, tmp_path, remember)
    add_counts(moving, 2)
    moving.on_spark()
    with pytest.raises(
        ConfigError, match=r"no operator has a state variable .* variable=suns"
    ) as failed:
        moved(moving.location, **{"state.variables.suns.store": "state"})
    assert "did you mean 'sums'" in failed.value.hints[0]
    cache = {"state.variables.sums.store": "scratch", "stores.scratch.backup.factories": ""}
    with pytest.raises(ConfigError, match=r"is a cache.* variable=sums store=scratch"):
        moved(moving.location, **cache)
    with pytest.raises(ConfigError, match="only applyInPandasWithState has a timeout"):
        moving.moved(timeoutConf="NoTimeout")
    shutil.copytree(moving.location, tmp_path / "begun")
    for name in ("1", ".1.crc"):
        (tmp_path / "begun" / "commits" / name).unlink()
    with pytest.raises(CheckpointLocationError, match=r"within a batch: .* begun=1 committed=0"):
        moved(tmp_path / "begun")

    def twice(data: Any) -> Any:
        again = data._df.withWatermark("t", "1 second").dropDuplicates(["v"]).groupBy("key")
        return remember(again)

    several = beside(moving, "several")
    several.operate = twice
    several.on_spark()
    with pytest.raises(ConfigError, match=r"operators=0:transformWithState\w+,1:dedupe"):
        several.moved()
    alone = beside(moving, "alone")
    alone.operate = lambda data: data._df.dropDuplicates(["v"])
    alone.on_spark()
    with pytest.raises(ConfigError, match="operator=dedupe"):
        alone.moved()
    stateless = beside(moving, "stateless")
    stateless.operate = lambda data: data._df
    stateless.on_spark()
    with pytest.raises(CheckpointLocationError, match="no stateful operator of Spark has run"):
        stateless.moved()

    assert not list(tmp_path.glob("*-statekeep"))
    moving.moved()


def test_a_query_that_runs_is_not_imported(spark: SparkSession, tmp_path: Path) -> None:
    stateless = Moving(spark, tmp_path, lambda data: data._df)
    add_counts(stateless, 1)
    writer = stateless._grouped()._df.writeStream.foreachBatch(stateless._sink)
    query = writer.option("checkpointLocation", str(stateless.location)).start()
    query.processAllAvailable()
    with pytest.raises(ConfigError, match="the query runs: "):
        stateless.moved()
    query.stop()

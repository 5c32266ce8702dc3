"""Bad input on Spark: a clear error that names what is wrong, before anything is lost."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from conftest import Stream
from processors import OUTPUT, Count, CountFrames, Overflowing
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.streaming import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

import statekeep as sk
from statekeep.errors import (
    CheckpointCorruptError,
    CheckpointLocationError,
    ConfigError,
    StateSchemaError,
)
from statekeep.spark import grouped_data

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_used_checkpoint_location_beside_an_empty_log_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run()
    with pytest.raises(CheckpointLocationError, match="job log has no commit"):
        stream.run(blob__store__uri=str(stream.root / "elsewhere"))


def test_the_error_of_a_renamed_query_has_its_name_and_where_that_comes_from(
    stream: Stream,
) -> None:
    stream.add_batches(1)
    stream.run()
    with pytest.raises(CheckpointLocationError) as caught:
        stream.run(job__name="renamed")
    assert "the job's name is 'renamed', set by settings" in str(caught.value)


def test_the_checkpoint_location_of_another_query_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    backup = {"blob.store.uri": str(stream.root / "backup")}
    stream.settings = backup
    stream.run()
    shutil.rmtree(stream.location)
    with pytest.raises(CheckpointLocationError, match="is empty"):
        stream.run()


UPSTREAM: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "an aggregation": lambda rows: rows.groupBy(F.window("t", "1 minute"), "key").count(),
    "dropDuplicates": lambda rows: rows.dropDuplicates(["key"]),
    "dropDuplicatesWithinWatermark": lambda rows: rows.dropDuplicatesWithinWatermark(["key"]),
    "limit": lambda rows: rows.limit(3),
    "subtract": lambda rows: rows.subtract(rows.sparkSession.createDataFrame([], rows.schema)),
    "exceptAll": lambda rows: rows.exceptAll(rows.sparkSession.createDataFrame([], rows.schema)),
    "a stream-stream join": lambda rows: rows.join(
        rows.selectExpr("key", "t as other"), "key"
    ).where("other between t - interval 1 minute and t"),
    "transformWithState": lambda rows: rows.groupBy("key").transformWithStateInPandas(
        CountFrames(), OUTPUT, "Append", "None"
    ),
    "applyInPandasWithState": lambda rows: rows.groupBy("key").applyInPandasWithState(
        lambda key, frames, state: frames,
        "key string, v long, t timestamp",
        "n long",
        "Append",
        "NoTimeout",
    ),
}
"""Spark's own stateful operators, by what the error calls them."""


@pytest.mark.parametrize("name", UPSTREAM)
def test_a_stateful_operator_upstream_is_refused(stream: Stream, name: str) -> None:
    stream.add_batches(1)
    rows = (
        stream.frame()
        .selectExpr("key", "v", "timestamp_seconds(v) t")
        .withWatermark("t", "1 minute")
    )
    with pytest.raises(ConfigError, match=f"is upstream: operator={name};"):
        sk.grouped(UPSTREAM[name](rows).groupBy("key"))


def joined_with_state(rows: DataFrame) -> DataFrame:
    """Join with an operator on a static frame, which Spark runs as one of the stream."""
    static = rows.sparkSession.createDataFrame([("key-1", 1)], "key string, v long")
    counted = static.groupBy("key").transformWithStateInPandas(
        CountFrames(), OUTPUT, "Append", "None"
    )
    return rows.join(counted.select("key"), "key", "left")


def with_rocksdb(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """Let Spark's own operators keep their state in RocksDB until the end of a test."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    request.addfinalizer(lambda: spark.conf.unset(name))


@pytest.mark.parametrize(
    ("rows_of", "node"),
    [
        (UPSTREAM["dropDuplicates"], "StreamingDeduplicate"),
        (joined_with_state, "TransformWithStateIn(PySpark|Pandas)"),
    ],
)
def test_state_that_only_the_plan_shows_is_refused_before_its_first_batch(
    stream: Stream,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    rows_of: Callable[[DataFrame], DataFrame],
    node: str,
) -> None:
    """As of an operator of a release to come."""
    monkeypatch.delitem(grouped_data._STATEFUL, "Deduplicate")
    with_rocksdb(stream.spark, request)
    frame = stream.frame
    monkeypatch.setattr(stream, "frame", lambda: rows_of(frame()))
    stream.add_batches(1)
    with pytest.raises(StreamingQueryException, match=f"is upstream: operator={node}"):
        stream.run()
    assert stream.delivered == []
    monkeypatch.setattr(stream, "frame", frame)
    stream.run()
    assert stream.received() == stream.expected(1)


def test_a_processor_that_cannot_be_sent_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    processor = Count()
    processor.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot be sent"):
        stream.stateful(processor)


class NotNull(Count):
    """Declares a field of its state as not null."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long NOT NULL, s long")


def test_state_that_cannot_be_kept_is_refused_before_the_start(stream: Stream) -> None:
    stream.add_batches(1)
    with pytest.raises(StateSchemaError, match=r"not null: .*variable=count fields=n"):
        stream.stateful(NotNull())


def test_an_unknown_store_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    with pytest.raises(ConfigError, match="unknown store: store=stat "):
        stream.run(stores__stat__backup__factories="blob")


def test_a_sink_without_idempotence_is_refused_by_name(stream: Stream) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream.option("checkpointLocation", str(stream.location))
    with pytest.raises(ConfigError, match="format='delta' supported=csv"):
        writer.format("delta").start()


def test_a_local_directory_that_cannot_be_written_is_named(stream: Stream) -> None:
    stream.add_batches(1)
    (stream.root / "file").write_text("not a directory")
    with pytest.raises(StreamingQueryException, match=r"job\.logged\.store\.base\.dir|/file"):
        stream.run(job__logged__store__base__dir=str(stream.root / "file"))


def test_a_backup_location_that_cannot_be_written_is_named(stream: Stream) -> None:
    stream.add_batches(1)
    (stream.root / "file").write_text("not a directory")
    with pytest.raises(ConfigError, match="/file"):
        stream.run(blob__store__uri=str(stream.root / "file" / "backup"))


def test_another_type_of_the_key_is_refused(stream: Stream) -> None:
    stream.add_batches(1)
    stream.run()
    stream.key = F.length("key").alias("key_length")
    with pytest.raises(ConfigError, match="another grouping key: before='struct<key:string>'"):
        stream.run()


def test_a_session_without_the_settings_is_refused_by_name(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.add_batches(1)
    conf = stream.spark.sparkContext.getConf().set("spark.locality.wait", "3s")
    monkeypatch.setattr(stream.spark.sparkContext, "_conf", conf)
    with pytest.raises(ConfigError, match=r"spark\.locality\.wait must be 600s: value='3s'"):
        sk.grouped(stream.frame().groupBy("key"))


class Timed(Count):
    """Registers a timer, which needs a time mode."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        super().init(handle)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        yield from super().handleInputRows(key, rows, timerValues)
        self._handle.registerTimer(1)


class Renamed(Count):
    """Yields a column that the output does not have."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, number=row.n, s=row.s)


class Retyped(Count):
    """Yields a text where the output has a number."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        for row in super().handleInputRows(key, rows, timerValues):
            yield Row(key=row.key, n="many", s=row.s)


class Late(Count):
    """Declares a state variable while rows are processed."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        super().init(handle)

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        self._handle.getValueState("late", "n long")
        yield from super().handleInputRows(key, rows, timerValues)


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (Overflowing, r"count.*key-.*(str|bigint|long)"),
        (Timed, "CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE"),
        (Renamed, "missing=n unknown=number"),
        (Retyped, "column=n expected=int64 found=str"),
        (Late, r"in init\(\) only: variable=late"),
    ],
)
def test_a_processor_that_does_wrong_commits_nothing_and_goes_on_once_mended(
    stream: Stream, processor: type[Count], words: str
) -> None:
    """In its second batch: state and output of the first one stay as they are."""
    stream.add_batches(1)
    stream.run()
    stream.add_batches(1)
    query = stream.start(processor())
    with pytest.raises(StreamingQueryException, match=words):
        query.awaitTermination()
    assert [batch for batch, _ in stream.delivered] == [0]
    assert query.lastCommit is None or query.lastCommit.batch == 0
    stream.run()
    assert [batch for batch, _ in stream.delivered] == [0, 1]
    assert stream.received() == stream.expected(2)


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_a_damaged_record_of_the_job_log_stops_the_start_and_changes_nothing(
    stream: Stream, damage: str
) -> None:
    backup = stream.root / "backup"
    stream.settings = {"blob.store.uri": str(backup)}
    stream.add_batches(2)
    stream.run()
    records = sorted((backup / "counts" / "log").iterdir())
    commit = next(path for path in reversed(records) if b" commit " in path.read_bytes()[:40])
    sound = commit.read_bytes()
    bad = sound[:-9] if damage == "truncated" else sound[:-9] + b"#" + sound[-8:]
    commit.write_bytes(bad)
    stream.add_batches(1)
    with pytest.raises(CheckpointCorruptError, match="position="):
        stream.run()
    commit.write_bytes(sound)
    stream.run()
    assert stream.received() == stream.expected(3)


def test_a_job_under_the_name_of_another_is_refused(stream: Stream) -> None:
    stream.settings = {"blob.store.uri": str(stream.root / "backup")}
    stream.add_batches(1)
    stream.run()
    other = Stream(stream.spark, stream.root / "other", stream.settings)
    other.root.mkdir()
    other.add_batches(1)
    with pytest.raises(CheckpointLocationError, match="job log is of query_id="):
        other.run()
    assert other.delivered == []

"""Initial state and batch frames: the rows are those of Spark's own operator in the same session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chained_processors import FIRST, Counts
from conftest import Stream, lose_directory, needs_structs_in_structs_on_spark
from processors import OUTPUT, Begun, BegunFrames
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from random_processor import ORDERS, Obedient, ObedientOfFrames
from random_processor import OUTPUT as RANDOM_OUTPUT

import statekeep as sk
from statekeep.errors import ConfigError, ReplayDivergedError
from statekeep.spark.driver.batch_loop import BatchLoop

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(240)]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BEGIN = [(5, "key-1"), (7, "key-1"), (11, "key-3"), (13, "no rows"), (17, None)]
Grouped = Callable[[GroupedData], Any]
Rows = set[tuple[Any, ...]]


def initial(spark: SparkSession, rows: list[Any] | None = None) -> GroupedData:
    return spark.createDataFrame(rows or BEGIN, "begin long, name string").groupBy("name")


def transformed(data: Any, begin: GroupedData | None, *, is_pandas: bool) -> Any:
    """What the operator gives: of Spark, or of ours, as ``data`` is."""
    if is_pandas:
        return data.transformWithStateInPandas(BegunFrames(), OUTPUT, "Update", "None", begin)
    return data.transformWithState(Begun(), OUTPUT, "Update", "None", begin)


def batches_of(stream: Stream, grouped: Grouped, name: str, *, is_pandas: bool) -> list[Rows]:
    """The rows of each batch of a query from the first file to the last."""
    seen: list[Rows] = []

    def keep(frame: DataFrame, _: int) -> None:
        seen.append(set(map(tuple, frame.collect())))

    frame = transformed(
        grouped(stream.frame().groupBy("key")), initial(stream.spark), is_pandas=is_pandas
    )
    writer = frame.writeStream.foreachBatch(keep).outputMode("update")
    writer = writer.option("checkpointLocation", str(stream.root / name))
    writer.trigger(availableNow=True).start().awaitTermination()
    return seen


@pytest.fixture
def spark_of_rocksdb(spark: SparkSession) -> Any:
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, ROCKSDB)
    yield spark
    spark.conf.set(key, str(before))


@pytest.mark.parametrize("is_pandas", [False, True], ids=["rows", "frames"])
def test_a_stream_that_begins_with_state_gives_the_rows_that_spark_gives(
    spark_of_rocksdb: SparkSession, stream: Stream, *, is_pandas: bool
) -> None:
    stream.add_batches(3, rows=30, keys=5)
    settings = {"job.name": "begun", "job.logged.store.base.dir": str(stream.local_dir)}
    ours = batches_of(stream, lambda data: sk.grouped(data, settings), "ours", is_pandas=is_pandas)
    assert len(ours) == 3
    assert ours == batches_of(stream, lambda data: data, "spark", is_pandas=is_pandas)


@pytest.mark.parametrize("is_pandas", [False, True], ids=["rows", "frames"])
@pytest.mark.parametrize("has_initial", [False, True])
def test_a_batch_gives_the_rows_that_spark_gives(
    spark_of_rocksdb: SparkSession, stream: Stream, *, has_initial: bool, is_pandas: bool
) -> None:
    stream.add_batches(3, rows=30, keys=5)
    data = spark_of_rocksdb.read.parquet(str(stream.root / "in")).groupBy("key")
    begin = initial(spark_of_rocksdb) if has_initial else None
    ours = transformed(sk.grouped(data), begin, is_pandas=is_pandas).collect()
    assert len(ours) == 5
    assert set(ours) == set(transformed(data, begin, is_pandas=is_pandas).collect())


@needs_structs_in_structs_on_spark
@pytest.mark.parametrize("is_pandas", [False, True], ids=["rows", "frames"])
@pytest.mark.parametrize("time_mode", ["ProcessingTime", "EventTime"])
def test_timers_and_a_time_to_live_on_a_batch_give_the_rows_that_spark_gives(
    spark_of_rocksdb: SparkSession, time_mode: str, *, is_pandas: bool
) -> None:
    rows = [(key, v, ORDERS[(v * 7 + n) % 10]) for n, key in enumerate("aabbc") for v in range(9)]
    data = spark_of_rocksdb.createDataFrame(rows, "key string, v long, op string").groupBy("key")
    begun = spark_of_rocksdb.createDataFrame([("a", 3), ("d", 4)], "key string, v long")

    def run(grouped: Any) -> list[tuple[str, ...]]:
        kind = ObedientOfFrames if is_pandas else Obedient
        call = "transformWithStateInPandas" if is_pandas else "transformWithState"
        frame = getattr(grouped, call)(
            kind(time_mode), RANDOM_OUTPUT, "Update", time_mode, begun.groupBy("key")
        )
        return sorted(tuple(map(str, row)) for row in frame.collect())

    ours = run(sk.grouped(data))
    assert ours == run(data)
    # Those of processing time lie in the past, or beyond the year 2090. There is no watermark.
    assert any(what.startswith("fired") for _, what, *_ in ours) == (time_mode == "ProcessingTime")


def test_no_row_of_a_batch_is_late_as_on_spark(spark_of_rocksdb: SparkSession) -> None:
    """What foreachBatch gets, and files written there, keep the metadata of the watermark."""
    marked = F.col("t").alias("t", metadata={"spark.watermarkDelayMs": 3000})
    years = spark_of_rocksdb.range(1965, 2025, 10).select(F.make_timestamp("id", *[F.lit(1)] * 5))
    data = years.toDF("t").select(F.lit("a").alias("key"), marked).groupBy("key")

    def run(grouped: Any) -> set[Any]:
        frame = grouped.transformWithState(Counts("None"), FIRST, "Append", "EventTime")
        return set(frame.collect())

    ours = run(sk.grouped(data))
    assert len(ours) == 6
    assert ours == run(data)


def start(stream: Stream, begin: list[Any] | None = None, **settings: Any) -> Any:
    """Start the query with an initial state."""
    given = {"job.name": "counts", "job.logged.store.base.dir": str(stream.local_dir)}
    given |= {key.replace("__", "."): value for key, value in settings.items()}
    frame = transformed(
        sk.grouped(stream.frame().groupBy("key"), given),
        initial(stream.spark, begin),
        is_pandas=False,
    )
    writer = frame.writeStream.foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", str(stream.location))
    return writer.trigger(availableNow=True).start()


def expected(stream: Stream, batches: int) -> dict[str, tuple[int, int]]:
    rows = stream.expected(batches)
    for value, name in BEGIN:
        if name in rows:
            n, s = rows[name]
            rows[name] = (n + 1000, s + value)
    begun = {"key-1": 12, "key-3": 11}
    return {key: (n, s + 1_000_000 * begun.get(key, 0)) for key, (n, s) in rows.items()}


@pytest.mark.parametrize("is_sorted", [False, True])
def test_state_that_is_lost_after_the_first_batch_begins_with_the_initial_state_again(
    stream: Stream, *, is_sorted: bool
) -> None:
    # Each task has rows in the last batch: what is lost of another is only found by the next start.
    stream.add_batches(3, rows=30, keys=20)
    lost = stream.root / "lost"

    def lose(batch: int) -> None:
        if batch == 1 and not lost.exists():
            lost.touch()
            lose_directory(stream.local_dir)

    stream.on_batch = lose
    settings: dict[str, Any] = {"task__commit__ms": 600_000}
    if is_sorted:  # as where the initial state does not fit into memory
        settings["task__grouping__max__bytes"] = 200
    start(stream, **settings).awaitTermination()
    assert lost.exists()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2]
    assert stream.received() == expected(stream, 3)


@pytest.mark.parametrize("where", ["before the record", "in the sink"])
@pytest.mark.parametrize("is_disk_lost", [False, True], ids=["disk kept", "disk lost"])
def test_a_first_batch_that_fails_begins_with_the_initial_state_once(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, where: str, *, is_disk_lost: bool
) -> None:
    stream.add_batches(2, rows=30, keys=5)
    failed: list[int] = []
    record = BatchLoop._record_beside

    def fail(batch: int) -> None:
        if not failed:
            failed.append(batch)
            if is_disk_lost:
                lose_directory(stream.local_dir)
            raise RuntimeError("failed as planned")

    def fail_first(loop: BatchLoop, batch: int, *others: Any) -> Any:
        fail(batch)
        return record(loop, batch, *others)

    if where == "in the sink":
        stream.on_batch = fail
    else:
        monkeypatch.setattr(BatchLoop, "_record_beside", fail_first)
    with pytest.raises(StreamingQueryException, match="failed as planned"):
        start(stream).awaitTermination()
    assert (failed, stream.delivered) == ([0], [])
    start(stream).awaitTermination()
    stream.add_batches(1, rows=30, keys=5)
    start(stream).awaitTermination()
    assert stream.received() == expected(stream, 3)


def test_another_initial_state_at_a_replay_is_an_error(stream: Stream) -> None:
    stream.add_batches(2, rows=30, keys=5)
    failed = stream.root / "failed"

    def fail(batch: int) -> None:
        if batch == 1:
            failed.touch()
            lose_directory(stream.local_dir)
            raise RuntimeError("the sink fails")

    stream.on_batch = fail
    # No commit is made when the query fails, so that the first batch has to be replayed.
    with pytest.raises(StreamingQueryException):
        start(stream, task__commit__ms=600_000).awaitTermination()
    stream.on_batch = lambda _: None
    with pytest.raises((ReplayDivergedError, StreamingQueryException)) as caught:
        start(stream, [(6, "key-1")], task__commit__ms=600_000).awaitTermination()
    errors = (caught.value, caught.value.__cause__)
    assert any(isinstance(error, ReplayDivergedError) for error in errors)


def test_an_initial_state_with_another_key_is_refused(stream: Stream, tmp_path: Path) -> None:
    stream.add_batches(1)
    grouped = sk.grouped(stream.frame().groupBy("key"), {"job.name": "counts"})
    for begin, words in (
        (
            stream.spark.range(3).groupBy("id"),
            "another grouping key .* expected=string found=bigint",
        ),
        (stream.frame().groupBy("key"), "the initial state is a stream"),
    ):
        with pytest.raises(ConfigError, match=words):
            grouped.transformWithState(Begun(), OUTPUT, "Update", "None", begin)

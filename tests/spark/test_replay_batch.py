"""A recorded batch again, in this process: what it shows, and how it compares with the record."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Stream
from processors import BegunFrames, Count, KeysSeen, OfEveryKind
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

import statekeep as sk
from statekeep.errors import CheckpointLocationError, ConfigError, StateBackupError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(220)]

BATCHES = 4
IMPORTS = [Path(sk.__file__).parents[1]]
OUTPUT = "key string, n long, s long"


class Stopping(OfEveryKind):
    """The same, with a breakpoint for each key."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        breakpoint()  # noqa: T100
        return super().handleInputRows(key, rows, timerValues)


class Doubling(OfEveryKind):
    """Another program: one key gets another sum."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        (row,) = super().handleInputRows(key, rows, timerValues)
        yield Row(key=row.key, n=row.n, s=row.s * (2 if row.key == "key-3" else 1))


def writer(stream: Stream, processor: Any = None, key: Any = "key") -> Any:
    settings = {"job.name": "every kind", "job.logged.store.base.dir": str(stream.local_dir)}
    grouped = sk.grouped(stream.frame().groupBy(key), settings | stream.settings)
    frame = grouped.transformWithState(
        processor or OfEveryKind(), OUTPUT, "Append", "ProcessingTime"
    )
    return frame.writeStream.foreachBatch(stream.sink).option(
        "checkpointLocation", str(stream.location)
    )


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """A job whose four batches were committed at its end, in one commit."""
    stream = Stream(spark, tmp_path_factory.mktemp("job"), {"task.commit.ms": "3600000"})
    stream.add_batches(BATCHES)
    writer(stream).trigger(availableNow=True).start().awaitTermination()
    return stream


def files(stream: Stream) -> dict[Path, bytes | int]:
    """Return what each file holds, and when each directory has changed: also by what is gone again."""
    return {
        path: path.read_bytes() if path.is_file() else path.stat().st_mtime_ns
        for path in (stream.root, *stream.root.rglob("*"))
    }


def rows_of(stream: Stream, batch: int, key: str) -> list[int]:
    table = pq.read_table(stream.root / "in" / f"{batch:03d}.parquet").to_pylist()
    return [row["v"] for row in table if row["key"] == key]


def test_a_batch_runs_again_as_recorded_and_nothing_of_the_job_is_touched(job: Stream) -> None:
    before = files(job)
    again = sk.replay_batch(writer(job), 2)
    assert files(job) == before
    assert again.matches, again.differences
    assert (again.batch, again.commit_batch, again.untraced) == (2, -1, 0)
    (delivered,) = [rows for batch, rows in job.delivered if batch == 2]
    found = {row["key"]: (row["n"], row["s"]) for row in again.output.to_pylist()}
    assert found == delivered
    assert {trace.key[0]: trace.rows_out for trace in again.keys} == {
        key: [{"key": key, "n": n, "s": s}] for key, (n, s) in delivered.items()
    }
    for trace in again.keys:
        (key,) = trace.key
        assert sorted(row["v"] for row in trace.rows_in) == sorted(rows_of(job, 2, key))
        n, s = job.expected(2)[key]
        after = job.expected(3)[key]
        steps = {(step.variable, step.operation): step for step in trace.steps}
        assert steps["count", "get"].before == {"n": n, "s": s}
        assert steps["count", "update"].before == {"n": n, "s": s}
        assert steps["count", "update"].after == {"n": after[0], "s": after[1]}
        assert steps["count", "update"].is_write
        assert not steps["count", "get"].is_write
        grown = steps["seen", "appendList"]
        assert (len(grown.before), len(grown.after)) == (n, after[0])
        assert steps["timers", "registerTimer"].after == 4_000_000_000_000 + len(trace.rows_in)
        parity = [step for step in trace.steps if step.variable == "parity"]
        assert {step.map_key["odd"] for step in parity} == {
            v % 2 == 1 for v in rows_of(job, 2, key)
        }


def test_one_key_runs_with_its_task_and_alone_is_traced_and_stops(
    job: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: stops.append(sys._getframe(1).f_locals["key"][0])
    )
    again = sk.replay_batch(writer(job, Stopping()), 3, "key-3", debug=True)
    assert stops == ["key-3"]
    (trace,) = again.keys
    assert (trace.key, again.tasks) == (("key-3",), [trace.task])
    assert again.matches, again.differences
    assert sorted(row["v"] for row in trace.rows_in) == sorted(rows_of(job, 3, "key-3"))
    assert sk.replay_batch(writer(job, Stopping()), 3, {"key": "unknown"}).keys == []
    assert stops == ["key-3"]


PROGRAM = """
import statekeep as sk
from processors import OfEveryKind


class Stopping(OfEveryKind):
    def handleInputRows(self, key, rows, timerValues):
        breakpoint()
        return super().handleInputRows(key, rows, timerValues)


def query(spark):
    reader = spark.readStream.schema("key string, v long").option("maxFilesPerTrigger", 1)
    grouped = sk.grouped(reader.parquet({source!r}).groupBy("key"), {settings!r})
    frame = grouped.transformWithState(Stopping(), {output!r}, "Append", "ProcessingTime")
    return frame.writeStream.option("checkpointLocation", {location!r})
"""


def test_the_command_stops_in_the_processor_in_its_own_terminal(
    job: Stream, tmp_path: Path
) -> None:
    settings = {"job.name": "every kind", "job.logged.store.base.dir": str(job.local_dir)}
    program = PROGRAM.format(
        source=str(job.root / "in"),
        settings=settings | job.settings,
        output=OUTPUT,
        location=str(job.location),
    )
    (tmp_path / "stopping_job.py").write_text(program)
    words = "replay --batch 3 --key key-3 --debug --program stopping_job:query --master local[1]"
    spark_settings = ["--spark-set", "spark.ui.enabled=false"]
    done = subprocess.run(
        [sys.executable, "-m", "statekeep.cli", *words.split(), *spark_settings],
        input="p 'here', key, timerValues.getCurrentProcessingTimeInMs() > 0\nc\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, [Path(__file__).parent, *IMPORTS]))},
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done
    assert done.stdout.count("(Pdb)") == 2
    assert "('here', ('key-3',), True)" in done.stdout
    assert done.stdout.splitlines()[-1].rstrip() == "as recorded"


def test_what_another_program_does_is_shown(job: Stream) -> None:
    again = sk.replay_batch(writer(job, Doubling()), 3, "key-3")
    assert not again.matches
    assert {(found.batch, found.task, found.what) for found in again.differences} == {
        (batch, again.tasks[0], "output_digest") for batch in range(4)
    }
    assert again.as_json()["matches"] is False


def test_what_cannot_run_again_is_refused_by_name(job: Stream, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch=4 recorded=0\.\.3"):
        sk.replay_batch(writer(job), 4)
    with pytest.raises(ConfigError, match="the key does not fit the grouping key"):
        sk.replay_batch(writer(job), 3, 7)
    with pytest.raises(ConfigError, match="the query is grouped by another key"):
        sk.replay_batch(writer(job, key=["key", "v"]), 3)
    with pytest.raises(ConfigError, match="has no checkpoint location"):
        sk.replay_batch(writer(job).option("checkpointLocation", None), 3)
    elsewhere = writer(job).option("checkpointLocation", str(tmp_path / "other"))
    with pytest.raises((ConfigError, CheckpointLocationError)):
        sk.replay_batch(elsewhere, 3)


def test_a_batch_of_a_running_job_runs_again_on_the_commit_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, {"task.commit.every.batch": "true"})
    stream.add_batches(3)
    query = writer(stream, Count()).start()
    query.processAllAvailable()
    again = sk.replay_batch(writer(stream, Count()), 2)
    assert (again.commit_batch, again.matches) == (1, True)
    (delivered,) = [rows for batch, rows in stream.delivered if batch == 2]
    found = {row["key"]: (row["n"], row["s"]) for row in again.output.to_pylist()}
    assert found == delivered
    stream.add_batches(1)
    query.processAllAvailable()
    query.stop()
    assert [batch for batch, _ in stream.delivered] == [0, 1, 2, 3]
    assert stream.received() == stream.expected(4)
    source = stream.root / "in" / "003.parquet"
    source.write_bytes(b"no parquet")
    with pytest.raises(StateBackupError, match="replay of a batch failed: batch=3"):
        sk.replay_batch(writer(stream, Count()), 3)
    source.unlink()  # for Spark it has no rows then
    again = sk.replay_batch(writer(stream, Count()), 3)
    assert {found.what for found in again.differences} >= {"rows_in", "input_digest"}
    assert sum(int(d.recorded) for d in again.differences if d.what == "rows_in") == 200


def add(rows: pa.RecordBatch, state: Mapping[str, sk.ArrowValueState]) -> Iterator[pa.RecordBatch]:
    yield state["count"].merge(rows, rows, "sum")


def with_initial_state(grouped: Any, spark: SparkSession) -> Any:
    begin = spark.createDataFrame([(5, "key-1"), (7, "no rows")], "begin long, name string")
    named = begin.groupBy("name")
    return grouped.transformWithStateInPandas(BegunFrames(), OUTPUT, "Update", "None", named)


OPERATORS: dict[str, Callable[[Any, SparkSession], Any]] = {
    "initial": with_initial_state,
    "timers": lambda grouped, _: grouped.transformWithState(
        KeysSeen(), "what string, key string, n long", "Append", "ProcessingTime"
    ),
    "combined": lambda grouped, _: grouped.transformWithStateInArrow(
        add,
        OUTPUT,
        "Append",
        {"count": "n long, s long"},
        {"n": ("*", "count"), "s": ("v", "sum")},
    ),
}


def delivering(stream: Stream, operator: str, seen: dict[int, list[Any]]) -> Any:
    settings = {"job.name": operator, "job.logged.store.base.dir": str(stream.local_dir)}
    grouped = sk.grouped(stream.frame().groupBy("key"), settings | {"task.commit.ms": "3600000"})
    frame = OPERATORS[operator](grouped, stream.spark)

    def keep(rows: DataFrame, batch: int) -> None:
        seen[batch] = sorted(rows.collect())

    writer = frame.writeStream.foreachBatch(keep)
    return writer.option("checkpointLocation", str(stream.location))


@pytest.mark.parametrize("operator", OPERATORS)
def test_batches_of_each_kind_of_operator_run_again_as_recorded(
    stream: Stream, operator: str
) -> None:
    stream.add_batches(2, rows=60, keys=7)
    seen: dict[int, list[Any]] = {}
    delivering(stream, operator, seen).trigger(availableNow=True).start().awaitTermination()
    traces: list[Any] = []
    for batch in (0, 1):
        again = sk.replay_batch(delivering(stream, operator, {}), batch)
        assert again.matches, again.differences
        columns = [tuple(row.values()) for row in again.output.to_pylist()]
        assert sorted(columns) == [tuple(row) for row in seen[batch]]
        traces += again.keys
    operations = {step.operation for trace in traces for step in trace.steps}
    if operator == "combined":
        assert traces == []
        with pytest.raises(ConfigError, match="has no single keys"):
            sk.replay_batch(delivering(stream, operator, {}), 1, "key-1")
    elif operator == "timers":
        assert {"registerTimer", "fired", "deleteTimer", "update"} <= operations
    else:
        (begun,) = [trace for trace in traces if trace.key == ("no rows",)]
        assert begun.rows_in == [{"begin": 7, "name": "no rows"}]


def test_a_query_of_several_operators_and_a_socket_are_refused(stream: Stream) -> None:
    stream.add_batches(1)
    first = stream.stateful()
    second = sk.grouped(first.groupBy("key")).transformWithState(Count(), OUTPUT, "Append", "None")
    written = second.writeStream.option("checkpointLocation", str(stream.location))
    with pytest.raises(ConfigError, match="one stateful operator can run again: operators=2"):
        sk.replay_batch(written, 0)
    lines = stream.spark.readStream.format("socket").option("host", "127.0.0.1")
    frame = sk.grouped(lines.option("port", 1).load().groupBy("value"), {"job.name": "lines"})
    written = frame.transformWithState(
        KeysSeen(), "what string, key string, n long", "Append", "None"
    )
    with pytest.raises(ConfigError, match=r"the rows of a batch cannot be read again: .*socket"):
        sk.replay_batch(written.writeStream.option("checkpointLocation", str(stream.location)), 0)

"""The ready-made sinks on Spark: with their query, and with a driver that comes too late."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Rows, Stream
from pyspark.sql import DataFrame

import statekeep as sk
from statekeep.errors import ConfigError, TaskFencedError
from statekeep.spark.batch_token import delivering
from statekeep.spark.fenced_sinks import FENCE_TABLE, batch_directory_sink, upsert_sink
from statekeep.spark.sinks import BatchSink

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

OUTPUT = "key string, n long, s long"


def run_into(stream: Stream, sink: BatchSink) -> list[sk.BatchToken]:
    """Run the stream into a sink; return the token of each batch."""
    tokens: list[sk.BatchToken] = []

    def write(frame: DataFrame, batch: int) -> None:
        tokens.append(sk.current_batch())
        sink(frame, batch)

    stream.sink = write  # type: ignore[method-assign]
    stream.run()
    return tokens


def deliver(stream: Stream, sink: BatchSink, token: sk.BatchToken, rows: Rows) -> None:
    """Give a sink some rows as the driver of a token would."""
    frame = stream.spark.createDataFrame([(k, n, s) for k, (n, s) in rows.items()], OUTPUT)
    with delivering(token):
        sink(frame, token.batch)


def later(token: sk.BatchToken, **changes: int | str) -> sk.BatchToken:
    given = {name: getattr(token, name) for name in ("job_uid", "query_id", "epoch", "batch")}
    return sk.BatchToken(**(given | changes))


def test_a_query_upserts_into_a_table_that_refuses_its_driver_once_there_is_a_newer_one(
    stream: Stream, tmp_path: Path
) -> None:
    path = tmp_path / "counts.db"
    with sqlite3.connect(path) as connection:
        connection.execute(FENCE_TABLE)
        connection.execute("CREATE TABLE counts (key TEXT PRIMARY KEY, n INT, s INT)")
    sink = upsert_sink(lambda: sqlite3.connect(path), "counts", ["key"])

    def table() -> Rows:
        return {key: (n, s) for key, n, s in connection.execute("SELECT key, n, s FROM counts")}

    stream.add_batches(3)
    tokens = run_into(stream, sink)
    assert [(token.epoch, token.batch) for token in tokens] == [(1, 0), (1, 1), (1, 2)]
    metadata = json.loads((stream.location / "metadata").read_text())
    assert {token.query_id for token in tokens} == {metadata["id"]}
    assert table() == stream.expected(3)

    stream.add_batches(1)
    (newer,) = run_into(stream, sink)
    assert (newer.job_uid, newer.epoch, newer.batch) == (tokens[0].job_uid, 2, 3)
    with pytest.raises(TaskFencedError, match="a newer driver has written"):
        deliver(stream, sink, later(tokens[-1], batch=3), {"key-0": (1, 1)})
    assert table() == stream.expected(4)
    connection.close()


class Directories:
    """Output as directories, and what they hold."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.path = stream.root / "out"
        self.sink = batch_directory_sink(f"file://{self.path}", "json")
        stream.add_batches(2)
        self.token = run_into(stream, self.sink)[-1]

    def state(self) -> Rows:
        """Return what another program makes of the files."""
        found: Rows = {}
        for batch in range(len(list(self.path.glob("batch=*")))):
            for file in self.path.glob(f"batch={batch}/part-*.json"):
                for row in map(json.loads, file.read_text().splitlines()):
                    found[row["key"]] = (row["n"], row["s"])
        return found

    def deliver(self, token: sk.BatchToken, rows: Rows) -> None:
        deliver(self.stream, self.sink, token, rows)


@pytest.fixture
def directories(stream: Stream) -> Directories:
    return Directories(stream)


def test_each_batch_has_a_directory_which_is_written_once(directories: Directories) -> None:
    assert directories.state() == directories.stream.expected(2)
    frame = directories.stream.spark.read.json(str(directories.path))
    assert {row.batch for row in frame.select("batch").distinct().collect()} == {0, 1}
    again = later(directories.token, epoch=2)
    directories.deliver(again, {"key-0": (0, 0)})
    assert directories.state() == directories.stream.expected(2)
    assert not list((directories.path / "_staging").iterdir())


def test_a_late_driver_publishes_nothing(directories: Directories) -> None:
    newer = later(directories.token, epoch=2, batch=2)
    directories.deliver(newer, {"a": (2, 2)})
    with pytest.raises(TaskFencedError, match="own_epoch=1 newer_epoch=2"):
        directories.deliver(later(newer, epoch=1), {"b": (1, 1)})
    assert directories.state() == directories.stream.expected(2) | {"a": (2, 2)}


def test_of_two_drivers_that_publish_a_batch_at_once_one_does(directories: Directories) -> None:
    newer = later(directories.token, epoch=2, batch=2)
    frame = directories.stream.spark.createDataFrame([("a", 1, 1)], OUTPUT)
    publish: Callable[[], None] = lambda: directories.deliver(newer, {"b": (2, 2)})  # noqa: E731

    class Raced:
        """A frame whose files are written while another driver publishes the batch."""

        sparkSession = frame.sparkSession  # noqa: N815 - Spark's name

        @property
        def write(self) -> object:
            publish()
            return frame.write

    with delivering(later(newer, epoch=1)), pytest.raises(TaskFencedError):
        directories.sink(Raced(), 2)  # type: ignore[arg-type]
    assert directories.state() == directories.stream.expected(2) | {"b": (2, 2)}
    assert not list((directories.path / "_staging").iterdir())
    assert not [path for path in (directories.path / "batch=2").iterdir() if path.is_dir()]


def test_a_driver_removes_what_those_before_it_have_left(directories: Directories) -> None:
    for name in ("_1-2", "_3-2"):
        (directories.path / "_staging" / name).mkdir(parents=True)
    directories.deliver(later(directories.token, epoch=2, batch=2), {"a": (1, 1)})
    assert [path.name for path in (directories.path / "_staging").iterdir()] == ["_3-2"]


@pytest.mark.parametrize("other", [{"query_id": "another"}, {"job_uid": "another"}])
def test_batches_of_another_query_are_not_taken_for_own_ones(
    directories: Directories, other: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="another query's"):
        directories.deliver(later(directories.token, **other), {"a": (1, 1)})


def test_a_directory_of_another_program_is_left_alone(directories: Directories) -> None:
    (directories.path / "batch=2").mkdir()
    with pytest.raises(ConfigError, match="another program"):
        directories.deliver(later(directories.token, batch=2), {"a": (1, 1)})


def test_a_store_without_atomic_renames_is_refused(stream: Stream) -> None:
    sink = batch_directory_sink("http://127.0.0.1/out")
    with pytest.raises(ConfigError, match="does not appear whole there"):
        deliver(stream, sink, sk.BatchToken("j", "q", 1, 0), {"a": (1, 1)})

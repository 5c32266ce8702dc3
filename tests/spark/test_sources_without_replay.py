"""A source that cannot give a batch again: the query commits each batch, and says so."""

import logging
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from conftest import Rows, Stream, events_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import split
from typing_extensions import override

import statekeep as sk
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


class LineServer:
    """Sends lines to connected clients; what was sent is gone."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def send(self, values: Mapping[str, int]) -> None:
        """Send a line for each key, with its value."""
        for key, value in values.items():
            self._lines.put(f"{key} {value}\n")

    def close(self) -> None:
        self._lines.put(None)
        # There may have been no client.
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(10)
        self._listening.close()

    def _serve(self) -> None:
        self._listening.settimeout(60)
        connection, _ = self._listening.accept()
        with connection:
            while (line := self._lines.get()) is not None:
                connection.sendall(line.encode())


@dataclass
class SocketStream(Stream):
    """A stream of the lines of a server."""

    port: int = 0
    done: SimpleQueue[int] = field(default_factory=SimpleQueue)

    @override
    def frame(self) -> DataFrame:
        reader = self.spark.readStream.format("socket").option("host", "127.0.0.1")
        words = split("value", " ")
        lines = reader.option("port", self.port).load()
        return lines.select(words[0].alias("key"), words[1].cast("long").alias("v"))

    @override
    def sink(self, frame: DataFrame, batch: int) -> None:
        super().sink(frame, batch)
        self.done.put(batch)

    def wait_for(self, rows: Rows) -> None:
        """Wait until the sink has got these rows, in however many batches."""
        while self.received() != rows:
            self.done.get(timeout=60)

    def start_often(self, settings: Mapping[str, Any] | None = None) -> sk.StatefulStreamingQuery:
        writer = self.stateful(settings=settings).writeStream.foreachBatch(self.sink)
        writer = writer.option("checkpointLocation", str(self.location))
        query: sk.StatefulStreamingQuery = writer.trigger(processingTime="200 milliseconds").start()
        return query


@pytest.fixture
def server() -> Iterator[LineServer]:
    made = LineServer()
    yield made
    made.close()


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path, server: LineServer) -> SocketStream:
    return SocketStream(spark, tmp_path, port=server.port)


def test_each_batch_is_committed_and_lost_state_comes_back_without_a_replay(
    lines: SocketStream, server: LineServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "statekeep"):
        query = lines.start_often()
    try:
        server.send({"a": 5, "b": 7})
        lines.wait_for({"a": (1, 5), "b": (1, 7)})
        query.processAllAvailable()
        for state in lines.local_dir.glob("*/main/*"):
            shutil.rmtree(state)
        server.send({"a": 10})
        lines.wait_for({"a": (2, 15), "b": (1, 7)})
        query.processAllAvailable()
    finally:
        query.stop()
    batches, commits = events_of(query, "batch"), events_of(query, "commit")
    assert [done["batch"] for done in batches] == [done["batch"] for done in commits]
    (recovery,) = events_of(query, "recovery")
    assert recovery["restored"]
    assert (recovery["replayed"], recovery["failures"]) == ([], [])
    (began,) = events_of(query, "job-initialised")
    (limit,) = began["limits"]
    assert limit.startswith("nothing is replayed, each batch is committed before it ends")
    assert f"the query runs with a limit: {limit}" in caplog.text


def test_replays_that_are_asked_for_are_refused_with_the_setting(lines: SocketStream) -> None:
    with pytest.raises(ConfigError, match=r"cannot give a batch again: .*source=socket") as caught:
        lines.start_often({"task.commit.every.batch": "false"})
    assert caught.value.key == "task.commit.every.batch"


def test_a_source_that_can_replay_has_no_limit(stream: Stream) -> None:
    stream.add_batches(1)
    (began,) = events_of(stream.run(), "job-initialised")
    assert began["limits"] == []

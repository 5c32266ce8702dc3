"""Writer, query, manager and listeners: what a program for native Spark does with them."""

import gc
import queue
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Stream
from pyspark.errors import PySparkValueError, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import override

import statekeep as sk
from statekeep.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

LOCATIONS = "spark.sql.streaming.checkpointLocation"


class Heard(StreamingQueryListener):
    """Keeps the events of queries."""

    def __init__(self) -> None:
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()

    @override
    def onQueryStarted(self, event: Any) -> None:
        self._events.put(("started", event))

    @override
    def onQueryProgress(self, event: Any) -> None:
        self._events.put(("progress", event.progress))

    @override
    def onQueryIdle(self, event: Any) -> None:
        self._events.put(("idle", event))

    @override
    def onQueryTerminated(self, event: Any) -> None:
        self._events.put(("terminated", event))

    def next(self, kind: str, query: Any) -> Any:
        """Return the next event of a kind that is of a query; Spark brings them on a thread of its own."""
        while True:
            found, event = self._events.get(timeout=60)
            if found == kind and str(event.id) == query.id:
                return event


@pytest.fixture
def heard(spark: SparkSession) -> Iterator[Heard]:
    spark.streams.resetTerminated()  # queries of other tests
    listener = Heard()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


def test_a_listener_of_sparks_gets_the_entries_of_our_operators(stream: Stream) -> None:
    streams, inner = stream.spark.streams, Heard()
    listener = sk.state_listener(inner)
    stream.add_batches(2)
    streams.addListener(listener)
    try:
        query = stream.run()
        found = [inner.next("progress", query) for _ in range(2)]
        inner.next("terminated", query)
    finally:
        streams.removeListener(listener)
    of_query = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert [p.batchId for p in found] == [p["batchId"] for p in of_query] == [0, 1]
    for given, expected in zip(found, of_query, strict=True):
        ((entry,), (wanted,)) = (given.stateOperators, expected["stateOperators"])
        assert entry.operatorName == "statekeep"
        assert entry.customMetrics["rowsIn"] == wanted["customMetrics"]["rowsIn"] == 200
        assert [source.description for source in given.sources] == [
            source["description"] for source in expected["sources"]
        ]


def test_options_have_any_case_and_the_last_sink_counts(stream: Stream) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream.format("kafka").foreachBatch(stream.sink)
    writer = writer.option("checkpointLocation", "/nowhere").option("topic", None)
    writer = writer.options(CHECKPOINTLOCATION=str(stream.location), queryname="named")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.name == "named"
    assert (stream.location / "commits" / "0").exists()
    assert stream.received() == stream.expected(1)
    stream.add_batches(1)
    writer.format("noop").start().awaitTermination()
    assert (stream.location / "commits" / "1").exists()
    assert len(stream.delivered) == 1


def test_a_location_is_that_of_the_session_or_made_for_the_query(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the session's by the name of the query, or by a new one; a temporary one without both."""
    stream.add_batches(1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def started(name: str = "") -> None:
        writer = stream.stateful().writeStream.foreachBatch(stream.sink)
        if name:
            writer = writer.queryName(name)
        writer.trigger(availableNow=True).start().awaitTermination()

    started()
    (made,) = (tmp_path / "temporary").glob("statekeep-temporary-*")
    assert (made / "checkpoint" / "commits" / "0").exists()
    root = tmp_path / "locations"
    stream.spark.conf.set(LOCATIONS, str(root))
    try:
        started("by_name")
        gc.collect()
        assert not made.exists(), "it goes once the next query has taken its place"
        started()
    finally:
        stream.spark.conf.unset(LOCATIONS)
    found = sorted(path.name for path in root.iterdir() if not path.name.endswith("-statekeep"))
    assert len(found) == 2
    assert "by_name" in found
    assert all((root / name / "commits" / "0").exists() for name in found)
    assert [batch for batch, _ in stream.delivered] == [0, 0, 0]


def test_what_the_writer_cannot_do_is_refused_at_once(stream: Stream) -> None:
    stream.add_batches(1)
    writer = stream.stateful().writeStream
    with pytest.raises(ConfigError, match="cluster rows by columns: clusterBy="):
        writer.clusterBy("key")
    for name in ("continuous", "realTime"):
        with pytest.raises(ConfigError, match=f"no batches to commit: trigger={name}"):
            writer.trigger(**{name: "5 minutes"})
    for triggers in ({}, {"once": True, "availableNow": True}):
        with pytest.raises(PySparkValueError, match="ONLY_ALLOW_SINGLE_TRIGGER"):
            writer.trigger(**triggers)
    with pytest.raises(PySparkValueError, match="VALUE_NOT_ALLOWED"):
        writer.trigger(once=False)


def test_the_manager_and_listeners_see_a_query_as_spark_has_it(
    stream: Stream, heard: Heard
) -> None:
    streams = stream.spark.streams
    stream.add_batches(1)
    writer = stream.stateful(settings={"task.commit.ms": "1h"}).writeStream
    writer = writer.foreachBatch(stream.sink).option("checkpointLocation", str(stream.location))
    query = writer.queryName("seen").start()
    assert not isinstance(query, StreamingQuery)
    started = heard.next("started", query)
    assert (str(started.runId), started.name) == (query.runId, "seen")
    query.processAllAvailable()
    progress = heard.next("progress", query)
    assert (progress.batchId, progress.numInputRows, progress.stateOperators) == (0, 200, [])
    assert heard.next("idle", query)

    (active,) = streams.active
    found = streams.get(query.id)
    assert found is not None
    assert (active.id, active.runId) == (found.id, found.runId) == (query.id, query.runId)
    assert streams.awaitAnyTermination(0) is False
    assert [query.lastCommit] == [None]
    found.stop()
    assert query.awaitTermination(60) is True
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 0
    assert heard.next("terminated", query).exception is None
    assert streams.awaitAnyTermination(60) is True
    streams.resetTerminated()
    assert streams.awaitAnyTermination(0) is False
    assert (streams.active, streams.get(query.id), query.isActive) == ([], None, False)


def test_a_query_that_failed_says_so_wherever_it_is_asked(stream: Stream, heard: Heard) -> None:
    def fail(batch: int) -> None:
        raise RuntimeError(f"failed as planned: batch={batch}")

    stream.add_batches(1)
    stream.on_batch = fail
    query = stream.start()
    with pytest.raises(StreamingQueryException, match="failed as planned"):
        query.awaitTermination()
    assert "failed as planned" in str(query.exception())
    assert "failed as planned" in heard.next("terminated", query).exception
    with pytest.raises(StreamingQueryException, match="failed as planned"):
        stream.spark.streams.awaitAnyTermination(60)

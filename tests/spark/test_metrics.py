"""What listeners learn of a query: of its driver, and of the sidecars beside its executors."""

import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from conftest import PARTITIONS, Stream, events_of, lose_directory
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from spark_processes import wait_until
from typing_extensions import override

import statekeep as sk
from statekeep.events import (
    BackendUploaded,
    BatchDone,
    BatchReplayed,
    CommitDone,
    JobStarted,
    JobStopped,
    Recovered,
    RequestDone,
    RequestsCounted,
    StoreFetched,
    TaskRestored,
    TaskUploaded,
)
from statekeep.metrics.opentelemetry import OpenTelemetryListener
from statekeep.spark.metrics_system import part_of_name

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


class Hearing(sk.Listener):
    def __init__(self) -> None:
        self.heard: list[tuple[sk.Event, sk.EventSource]] = []
        self.is_closed = False

    @override
    def on_event(self, event: sk.Event, source: sk.EventSource, /) -> None:
        self.heard.append((event, source))

    @override
    def close(self) -> None:
        self.is_closed = True

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event, _ in self.heard]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event, _ in self.heard if isinstance(event, kind)]


class Failing(Hearing):
    @override
    def on_event(self, event: sk.Event, source: sk.EventSource, /) -> None:
        raise ValueError("the listener's own mistake")


def run(stream: Stream, *listeners: sk.Listener, **settings: Any) -> sk.StatefulStreamingQuery:
    frame = stream.stateful(settings={k.replace("__", "."): v for k, v in settings.items()})
    writer = frame.writeStream.foreachBatch(stream.sink).listeners(*listeners)
    writer = writer.option("checkpointLocation", str(stream.location))
    query: sk.StatefulStreamingQuery = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def tree(root: ReadableSpan, spans: list[ReadableSpan]) -> dict[str, int]:
    """Count the spans below one by their names, from there on."""
    found: dict[str, int] = {}
    for span in spans:
        if span.parent is not None and span.parent.span_id == root.context.span_id:
            found[span.name] = found.get(span.name, 0) + 1
            for name, count in tree(span, spans).items():
                path = f"{span.name} {name}"
                found[path] = found.get(path, 0) + count
    return found


def test_listeners_learn_of_commits_uploads_and_requests_of_all_executors(stream: Stream) -> None:
    listener, reader, exporter = Hearing(), InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = OpenTelemetryListener(MeterProvider([reader]), tracers)
    stream.add_batches(2)
    query = run(stream, Failing(), listener, telemetry, task__commit__every__batch=True)

    assert {source.job for _, source in listener.heard} == {"counts"}
    assert [event.batch for event in listener.of(BatchDone)] == [0, 1]
    assert [event.batch for event in listener.of(CommitDone)] == [0, 1]
    assert len(listener.of(TaskUploaded)) == 2 * PARTITIONS
    uploads = listener.of(BackendUploaded)
    assert [upload.outcome for upload in uploads] == ["done"] * 2 * PARTITIONS
    assert {upload.task for upload in uploads} == {f"Partition {n}" for n in range(PARTITIONS)}
    assert all(upload.bytes > 0 and upload.bytes_sent > 0 for upload in uploads)
    puts = [r for r in listener.of(RequestDone) if (r.purpose, r.operation) == ("upload", "put")]
    assert sum(put.count for put in puts) >= 2 * PARTITIONS
    assert [event.error for event in listener.of(JobStopped)] == [None]
    assert listener.is_closed
    recorded = [event for event, _ in listener.heard if event.is_recorded]
    assert [e.kind for e in query.events] == [e.kind for e in recorded]
    assert events_of(query, "commit") == [e.details() for e in listener.of(CommitDone)]

    spans = list(exporter.get_finished_spans())
    commits = [span for span in spans if span.name == "statekeep.commit"]
    below = tree(commits[-1], spans)
    assert below["statekeep.task"] == PARTITIONS
    assert below["statekeep.task statekeep.upload"] == PARTITIONS
    assert below["statekeep.task statekeep.upload statekeep.request"] >= PARTITIONS
    first, second = (p["stateOperators"] for p in query.recentProgress if p["numInputRows"])
    assert first[0]["customMetrics"]["committedBatch"] == 0
    assert first[0]["numRowsUpdated"] > 0
    figures = second[0]["customMetrics"]
    assert figures["committedBatch"] == 1
    assert figures["rocksdbBytesCopied"] == figures["lastCommitBytes"] > 0
    assert figures["rocksdbCommitFileSyncLatencyMs"] == sum(
        e.elapsed_ms for e in listener.of(TaskUploaded)[PARTITIONS:]
    )
    assert figures["rocksdbCommitCheckpointLatencyMs"] >= figures["maxSyncPauseMs"]


def test_the_driver_serves_prometheus_what_all_executors_have_done(stream: Stream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def value(name: str, **labels: str) -> float:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        wanted = {"job_name": "counts", **labels}.items()
        samples = (sample for family in families for sample in family.samples)
        return sum(s.value for s in samples if s.name == name and wanted <= s.labels.items())

    stream.add_batches(2)
    stream.settings = {
        "metrics.listeners": "prometheus",
        "metrics.prometheus.port": port,
        "task.commit.every.batch": "true",
    }
    writer = stream.stateful().writeStream.foreachBatch(stream.sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    query.processAllAvailable()
    done = {"backend": "blob", "outcome": "done"}
    uploads = "statekeep_upload_duration_seconds_count"
    assert wait_until(lambda: value(uploads, **done) == 2 * PARTITIONS)
    puts = value("statekeep_requests_total", operation="put", purpose="upload", **done)
    assert puts >= 2 * PARTITIONS
    assert value("statekeep_batch_last") == 1
    assert value("statekeep_job_running") == 1
    query.stop()
    with pytest.raises(URLError, match="refused"):
        value(uploads)


def test_a_start_that_fails_after_it_was_reported_has_an_end(stream: Stream) -> None:
    """A second query of the same name is refused by Spark, when the job is taken over already."""
    rate = stream.spark.readStream.format("rate").load().writeStream.format("noop")
    other = rate.queryName("counts").option("checkpointLocation", f"{stream.root}/rate").start()
    listener = Hearing()
    stream.add_batches(1)
    writer = stream.stateful().writeStream.foreachBatch(stream.sink).listeners(listener)
    writer = writer.option("checkpointLocation", str(stream.location)).queryName("counts")
    try:
        with pytest.raises(IllegalArgumentException, match="already active"):
            writer.trigger(availableNow=True).start()
    finally:
        other.stop()
    assert len(listener.of(JobStarted)) == 1
    (stopped,) = listener.of(JobStopped)
    assert "already active" in stopped.error
    assert listener.is_closed


def requests_of(query: sk.StatefulStreamingQuery) -> Counter[tuple[str, str]]:
    """Return the requests of a query as its events have them, by backend and operation."""
    found: Counter[tuple[str, str]] = Counter()
    for details in events_of(query, "requests"):
        for backend, counts in details["requests"].items():
            found.update({(backend, operation): n for operation, n in counts.items()})
    return found


def test_the_requests_of_driver_and_sidecars_are_on_record_with_and_without_listeners(
    stream: Stream,
) -> None:
    stream.add_batches(2)
    listener = Hearing()
    query = run(stream, listener, task__commit__every__batch=True)
    heard: Counter[tuple[str, str]] = Counter()
    told = [event for event, _ in listener.heard]
    last = max(n for n, event in enumerate(told) if isinstance(event, RequestsCounted))
    for event in told[:last]:
        if isinstance(event, RequestDone):
            heard[event.backend, event.operation] += event.count
    assert requests_of(query) == heard

    stream.add_batches(2)
    puts = requests_of(run(stream, task__commit__every__batch=True))["blob", "put"]
    # Its own of the driver: what it put before, less what was put for the tasks.
    uploads = sum(
        r.count for r in listener.of(RequestDone) if (r.purpose, r.operation) == ("upload", "put")
    )
    assert puts > heard["blob", "put"] - uploads
    assert puts >= 2 * PARTITIONS


_METRICS_SYSTEM = """
import sys
from pyspark.sql import SparkSession
from statekeep.config.load import load_dict
from statekeep.events import BatchDone, BackendUploaded, EventSource, JobStarted, JobStopped
from statekeep.metrics.listeners import load_listeners

sink = "spark.metrics.conf.driver.sink.csv"
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config(f"{sink}.class", "org.apache.spark.metrics.sink.CsvSink")
spark = builder.config(f"{sink}.directory", sys.argv[1]).getOrCreate()
settings = {"job.name": "j", "stores.backup.factories": "blob", "metrics.listeners": "spark"}
source = EventSource("or.ders", "", 10**18)
for rows in (5, 7):  # a query, and the next one of its job
    (listener,) = load_listeners(load_dict(settings))
    listener.on_event(JobStarted(1, {}, ["blob"], "blob", 1, 0, 0, []), source)
    uploaded = BackendUploaded("Partition 0", "blob", "1-0", "done", 1, 10**9, bytes_sent=12)
    listener.on_event(uploaded, source)
    listener.on_event(BatchDone(rows, rows, rows, 0), source)
    listener.on_event(JobStopped(None), source)
    listener.close()
spark.stop()
listener.on_event(BatchDone(9, 1, 1, 0), source)
listener.close()
"""


def test_figures_are_gauges_of_sparks_metrics_system(tmp_path: Path) -> None:
    """As its sink for files has them, which is written to when the session stops."""
    done = subprocess.run(
        [sys.executable, "-c", _METRICS_SYSTEM, tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = {}
    for path in tmp_path.glob("*.driver.AccumulatorSource.statekeep.*.csv"):
        name = path.stem.partition(".AccumulatorSource.statekeep.")[2]
        found[name] = float(path.read_text().split()[-1].rpartition(",")[2])
    job = part_of_name("or.ders")
    assert found[f"{job}.batch.last"] == 7
    assert found[f"{job}.batch.rows.in"] == 7
    assert found[f"{job}.job.running"] == 0
    assert found[f"{job}.upload.sent.blob.done"] == 12
    assert found[f"{job}.upload.duration.blob.done.count"] == 1
    assert found[f"{job}.upload.duration.blob.done.sum"] == 1
    assert found[f"{job}.job.start.timestamp"] == pytest.approx(10**9)


def test_listeners_learn_of_a_recovery_with_its_fetches_and_replays(stream: Stream) -> None:
    stream.add_batches(2)
    run(stream, task__commit__ms="1h")  # the last commit alone
    stream.add_batches(2)

    def fail(batch: int) -> None:
        if batch == 3:
            raise ValueError("the sink's own mistake")

    stream.on_batch = fail
    with pytest.raises(StreamingQueryException, match="own mistake"):
        run(stream, task__commit__ms="1h")  # so that batch 2 is in no commit
    stream.on_batch = lambda batch: None
    listener, exporter = Hearing(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    lose_directory(stream.local_dir)
    run(stream, listener, OpenTelemetryListener(tracer_provider=tracers))
    (recovered,) = listener.of(Recovered)
    assert recovered.reason == "start"
    assert list(recovered.phases_ms) == ["restore", "replay"]
    assert all(ms > 0 for ms in recovered.phases_ms.values())
    assert sum(recovered.phases_ms.values()) <= recovered.elapsed_ms
    fetches = listener.of(StoreFetched)
    assert [fetch.outcome for fetch in fetches] == ["done"] * PARTITIONS
    assert sum(fetch.bytes for fetch in fetches) == recovered.bytes_fetched > 0
    assert len(listener.of(TaskRestored)) == PARTITIONS
    assert any(request.purpose == "restore" for request in listener.of(RequestDone))
    spans = list(exporter.get_finished_spans())
    (recovery,) = [span for span in spans if span.name == "statekeep.recovery"]
    below = tree(recovery, spans)
    assert below["statekeep.task"] == below["statekeep.task statekeep.fetch"] == PARTITIONS
    assert below["statekeep.task statekeep.fetch statekeep.request"] >= PARTITIONS
    assert [event.batch for event in listener.of(BatchReplayed)] == recovered.replayed
    assert 2 in recovered.replayed
    assert below["statekeep.replay"] == len(recovered.replayed)

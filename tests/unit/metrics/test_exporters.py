"""A job in plain Python, seen by Prometheus over HTTP and by the real SDK of OpenTelemetry."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families
from typing_extensions import override

import statekeep as sk
from statekeep.checkpoint.error_summary import summary_of
from statekeep.events import (
    BackendUploaded,
    BatchReplayed,
    CleanUpFailing,
    CommitBegan,
    CommitDone,
    CommitFailed,
    EventSource,
    JobStarted,
    JobStopped,
    Recovered,
    RequestDone,
    StoreFetched,
    TaskRestored,
)
from statekeep.metrics.figures import METRICS
from statekeep.metrics.opentelemetry import OpenTelemetryListener
from statekeep.metrics.prometheus import PrometheusListener

pytestmark = pytest.mark.asyncio

STARTED = JobStarted(1, {}, ["blob"], "blob", 1, 0, 0, [])
INPUT = sk.SystemStreamPartition("gen", "numbers", 0)


def settings(root: Path, **more: str) -> sk.Config:
    return sk.load_dict(
        {
            "job.name": "orders",
            "job.logged.store.base.dir": str(root / "local"),
            "stores.default.factory": "memory",
            "stores.backup.factories": "blob",
            "blob.store.uri": (root / "blobs").as_uri(),
            "task.commit.ms": "0",
            "checkpoint.clean.up.ms": "0",
        }
        | {key.replace("__", "."): value for key, value in more.items()}
    )


async def run_job(config: sk.Config, root: Path, *listeners: sk.Listener) -> None:
    """Commit three times; start again without the local disk, so that the task is restored."""
    for start in range(2):
        async with sk.Container(config, listeners=listeners if start else ()) as container:
            task = await container.start_task("Partition 0", ["counts"])
            for number in range(3):
                task.store("counts").put(b"key", b"%d %d" % (start, number))
                await (await task.commit({INPUT: f"{start}{number}"}, force=True)).wait()
            await task.wait()
        if start == 0:
            (root / "local").rename(root / "lost")


class Scraping(PrometheusListener):
    """Reads its own page once all events are in, as Prometheus would."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0)
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.names: set[str] = set()

    @override
    def close(self) -> None:
        assert self.address is not None
        with urlopen(f"http://{self.address[0]}:{self.address[1]}/metrics") as page:
            text = page.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.names.add(sample.name)
                self.samples[sample.name, frozenset(sample.labels.items())] = sample.value
        super().close()

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of what has these labels."""
        wanted = {"job_name": "orders", **labels}.items()
        found = [v for (n, of), v in self.samples.items() if n == name and set(wanted) <= of]
        assert found, (name, labels)
        return sum(found)


async def test_prometheus_reads_the_figures_of_a_job(tmp_path: Path) -> None:
    listener = Scraping()
    await run_job(settings(tmp_path), tmp_path, listener)
    value = listener.value
    assert value("statekeep_commit_duration_seconds_count", outcome="done") == 3
    assert value("statekeep_commit_pause_seconds_count") == 3
    assert value("statekeep_upload_duration_seconds_count", backend="blob", outcome="done") == 3
    assert value("statekeep_upload_planned_bytes_total", backend="blob") > 0
    assert value("statekeep_upload_sent_bytes_total", backend="blob", outcome="done") > 0
    assert value("statekeep_upload_remaining_bytes", backend="blob") == 0
    files = value("statekeep_upload_planned_files_total", backend="blob")
    assert files == value("statekeep_upload_files_total", backend="blob", outcome="done") >= 3
    assert value("statekeep_upload_remaining_files", backend="blob") == 0
    assert value("statekeep_fetch_duration_seconds_count", backend="blob", outcome="done") == 1
    assert value("statekeep_fetch_received_bytes_total", backend="blob", outcome="done") > 0
    assert value("statekeep_recovery_duration_seconds_count") == 1
    assert value("statekeep_clean_up_duration_seconds_count", outcome="done") >= 1
    assert value("statekeep_job_running") == 0
    assert value("statekeep_commit_last_timestamp_seconds") > 1_700_000_000
    puts = value("statekeep_requests_total", operation="put", outcome="done")
    uploads = value("statekeep_requests_total", operation="put", outcome="done", purpose="upload")
    assert 3 <= uploads < puts  # the job log is counted apart
    assert value("statekeep_request_duration_seconds_count", operation="put") >= puts


def page_of(listener: PrometheusListener) -> str:
    """Return what Prometheus is served."""
    assert listener.address is not None
    with urlopen(f"http://{listener.address[0]}:{listener.address[1]}/metrics") as page:
        return str(page.read().decode())


async def test_two_jobs_of_a_process_share_a_port_which_the_last_one_closes() -> None:
    first = PrometheusListener("127.0.0.1", 0)
    second = PrometheusListener("127.0.0.1", 0)
    assert first.address == second.address
    first.close()
    assert second.address is not None
    url = f"http://127.0.0.1:{second.address[1]}/metrics"
    with urlopen(url) as page:
        assert page.status == 200
    second.close()
    with pytest.raises(OSError, match="refused"):
        urlopen(url)


async def test_a_port_that_is_taken_costs_the_metrics_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = PrometheusListener("127.0.0.1", 0)
    assert taken.address is not None
    config = settings(
        tmp_path,
        metrics__listeners="prometheus",
        metrics__prometheus__port=str(taken.address[1]),
    )
    await run_job(config, tmp_path)
    taken.close()
    assert "the port cannot be opened" in caplog.text


async def test_a_port_that_is_taken_is_tried_again_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("statekeep.metrics.prometheus._RETRY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as owner:
        listener = PrometheusListener("127.0.0.1", owner.getsockname()[1])
        assert listener.address is None
        listener.on_event(STARTED, EventSource("orders", "", 10**9))
        (opening,) = [t for t in threading.enumerate() if t.name == "statekeep-metrics-port"]
        opening.join(0.1)
        assert opening.is_alive()
    opening.join(20)
    assert 'statekeep_job_running{job_name="orders"} 1.0' in page_of(listener)
    listener.close()
    assert [r.levelname for r in caplog.records].count("ERROR") == 1


async def test_a_listener_may_end_while_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        PrometheusListener("127.0.0.1", owner.getsockname()[1]).close()
    assert "statekeep-metrics-port" not in {thread.name for thread in threading.enumerate()}


async def test_the_figures_of_a_job_that_has_gone_leave_a_shared_port() -> None:
    gone, other = PrometheusListener("127.0.0.1", 0), PrometheusListener("127.0.0.1", 0)
    for listener, job in ((gone, "gone"), (other, "other")):
        listener.on_event(STARTED, EventSource(job, "", 10**9))
    gone.on_event(CleanUpFailing(90, "no answer"), EventSource("gone", "", 10**9))
    assert 'statekeep_clean_up_failing_seconds{job_name="gone"} 5400.0' in page_of(other)
    gone.close()
    page = page_of(other)
    other.close()
    assert 'job_name="gone"' not in page
    assert 'statekeep_job_running{job_name="other"} 1.0' in page


async def test_two_programs_of_one_job_and_process_are_added_up() -> None:
    first, second = PrometheusListener("127.0.0.1", 0), PrometheusListener("127.0.0.1", 0)
    for listener, task in ((first, "Partition 0"), (second, "Partition 1")):
        listener.on_event(STARTED, EventSource("orders", task, 10**9))
    assert 'statekeep_job_running{job_name="orders"} 2.0' in page_of(first)
    first.on_event(JobStopped(None), EventSource("orders", "Partition 0", 10**9))
    first.close()
    assert 'statekeep_job_running{job_name="orders"} 1.0' in page_of(second)
    second.close()


class Telemetry:
    """The SDK of OpenTelemetry, whose exporters keep all in memory."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._exporter = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.listener = OpenTelemetryListener(MeterProvider([self._reader]), tracers)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def points(self) -> Iterator[tuple[str, str, Mapping[str, Any], Any]]:
        """Yield name, unit, attributes and figure of each point."""
        data = self._reader.get_metrics_data()
        assert data is not None
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        yield metric.name, metric.unit or "", dict(point.attributes or {}), point

    def tree(self, root: ReadableSpan) -> list[Any]:
        """Return the names below a span: ``[name, [child, ...], ...]``."""
        below = [s for s in self.spans if s.parent and s.parent.span_id == root.context.span_id]
        return [root.name, *(self.tree(child) for child in below)]


async def test_opentelemetry_gets_figures_and_spans_of_a_job(tmp_path: Path) -> None:
    telemetry = Telemetry()
    await run_job(settings(tmp_path), tmp_path, telemetry.listener)
    points = list(telemetry.points())
    (done,) = [point for name, _, _, point in points if name == "statekeep.commit.duration"]
    assert (done.count, dict(done.attributes)) == (
        3,
        {"statekeep.job_name": "orders", "statekeep.outcome": "done"},
    )
    units = {metric.otel_name: metric.unit for metric in METRICS}
    assert {name: unit for name, unit, _, _ in points}.items() <= units.items()

    roots = [span for span in telemetry.spans if span.parent is None]
    commits = [span for span in roots if span.name == "statekeep.commit"]
    assert len(commits) == 3
    for commit in commits:
        name, (task, (upload, *requests)) = telemetry.tree(commit)
        assert (name, task, upload) == ("statekeep.commit", "statekeep.task", "statekeep.upload")
        assert requests
        assert all(request == ["statekeep.request"] for request in requests)
    (recovery,) = [span for span in roots if span.name == "statekeep.recovery"]
    _, (task, (fetch, *requests)) = telemetry.tree(recovery)
    assert (task, fetch) == ("statekeep.task", "statekeep.fetch")
    assert requests
    for span in telemetry.spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 <= span.end_time - span.start_time < 60e9
        if span.parent is not None:
            (parent,) = [s for s in telemetry.spans if s.context.span_id == span.parent.span_id]
            assert parent.start_time is not None
            assert parent.end_time is not None
            assert parent.start_time <= span.start_time
            assert span.end_time <= parent.end_time


async def test_a_batch_that_ran_again_is_a_span_of_the_recovery() -> None:
    telemetry = Telemetry()
    source = EventSource("orders", "", 5_000_000_000)
    telemetry.listener.on_event(BatchReplayed(7, 2, 40, 1_000_000), source)
    telemetry.listener.on_event(Recovered(7, 2, {}, 0, [7], 40, [], 9, "loss"), source)
    (recovery,) = [span for span in telemetry.spans if span.parent is None]
    assert telemetry.tree(recovery) == ["statekeep.recovery", ["statekeep.replay"]]
    assert (recovery.attributes or {})["statekeep.reason"] == "loss"
    (replay,) = [span for span in telemetry.spans if span.parent is not None]
    assert dict(replay.attributes or {}) == {
        "statekeep.job_name": "orders",
        "statekeep.batch": 7,
        "statekeep.rows": 40,
    }


async def test_what_a_run_has_left_open_is_in_no_span_of_the_next_one() -> None:
    telemetry = Telemetry()
    source = EventSource("orders", "", 5_000_000_000)
    restored = TaskRestored("Partition 0", {"state": "blob"}, 7, 1_000)
    recovered = Recovered(0, 1, {}, 7, [], 0, [], 10)
    for event in (
        STARTED,
        restored,
        JobStopped("RestoreFailedError: no answer"),
        STARTED,
        recovered,
    ):
        telemetry.listener.on_event(event, source)
    assert [span.name for span in telemetry.spans] == ["statekeep.recovery"]


async def test_requests_of_a_task_are_counted_once_though_it_fetches_two_stores() -> None:
    telemetry = Telemetry()
    source = EventSource("orders", "", 5_000_000_000)
    read = RequestDone("blob", "get", "done", 90, 5, "restore", "Partition 0")
    for _ in range(700):  # of 1000 that are kept
        telemetry.listener.on_event(read, source)
    for store, elapsed_ns in (("a", 100), ("b", 50)):
        fetched = StoreFetched("Partition 0", store, "blob", "done", 100, elapsed_ns)
        telemetry.listener.on_event(fetched, source)
    telemetry.listener.on_event(TaskRestored("Partition 0", {"a": "blob"}, 7, 1_000), source)
    telemetry.listener.on_event(Recovered(0, 1, {}, 7, [], 0, [], 10), source)
    assert [span.name for span in telemetry.spans].count("statekeep.request") == 700


async def test_a_failed_commit_is_a_span_with_an_error() -> None:
    telemetry = Telemetry()
    source = EventSource("orders", "", 5_000)
    telemetry.listener.on_event(CommitBegan("1-0"), source)
    telemetry.listener.on_event(CommitFailed("1-0", 4, "upload", "OSError: no", 3), source)
    (span,) = telemetry.spans
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["statekeep.step"] == "upload"


async def test_the_spans_of_a_commit_take_time_in_proportion_to_its_tasks() -> None:
    """Counted in events that are compared, as a clock would tell of this machine's load."""
    compared: dict[int, int] = {}
    for tasks in (20, 40):
        count = compared[tasks] = 0

        class Name(str):
            __slots__ = ()
            __hash__ = str.__hash__

            @override
            def __eq__(self, other: object) -> bool:
                nonlocal count
                count += 1
                return str(self) == other

        telemetry = Telemetry()
        on_event = telemetry.listener.on_event
        source = EventSource("orders", "", 10_000)
        on_event(CommitBegan("1-0"), source)
        for task in range(tasks):
            for number in range(4):
                name = Name(f"Partition {task}")
                on_event(RequestDone("blob", "put", "done", 90 + number, 5, "upload", name), source)
            name = Name(f"Partition {task}")
            on_event(BackendUploaded(name, "blob", "1-0", "done", 100, 50), source)
        on_event(CommitDone(0, "1-0", 1, 1, tasks), source)
        assert len(telemetry.spans) == 1 + tasks * 6
        compared[tasks] = count
    assert compared[40] <= 3 * compared[20]


async def test_a_trace_has_the_requests_of_the_slowest_uploads() -> None:
    telemetry = Telemetry()
    source = EventSource("orders", "", 10**9)
    telemetry.listener.on_event(CommitBegan("1-0"), source)
    for task in range(100):
        for _ in range(32):
            request = RequestDone("blob", "put", "done", 500, 5, "upload", f"Partition {task}")
            telemetry.listener.on_event(request, source)
        uploaded = BackendUploaded(f"Partition {task}", "blob", "1-0", "done", 500, 100 + task)
        telemetry.listener.on_event(uploaded, source)
    telemetry.listener.on_event(CommitDone(0, "1-0", 1, 1, 100), source)
    names = [span.name for span in telemetry.spans]
    assert names.count("statekeep.upload") == 100
    assert names.count("statekeep.request") == 1_000
    (commit,) = [span for span in telemetry.spans if span.parent is None]
    _, *tasks = telemetry.tree(commit)
    assert [len(upload) - 1 for _, upload in tasks[-32:]] == [8] + [32] * 31


async def test_a_request_is_below_the_fetch_in_whose_time_it_is() -> None:
    telemetry = Telemetry()
    source = EventSource("orders", "", 1_000)
    for event in (
        RequestDone("blob", "get", "done", 20, 10, "restore", "Partition 0"),
        StoreFetched("Partition 0", "counts", "blob", "done", 25, 20),
        RequestDone("blob", "get", "done", 40, 10, "restore", "Partition 0"),
        StoreFetched("Partition 0", "sums", "blob", "done", 45, 20),
        TaskRestored("Partition 0", {"counts": "blob", "sums": "blob"}, 7, 100),
        Recovered(0, 1, {}, 7, [], 0, [], 0),
    ):
        telemetry.listener.on_event(event, source)
    (recovery,) = [span for span in telemetry.spans if span.parent is None]
    fetch = ["statekeep.fetch", ["statekeep.request"]]
    assert telemetry.tree(recovery) == ["statekeep.recovery", ["statekeep.task", fetch, fetch]]


async def test_a_trace_that_is_sampled_away_costs_one_span() -> None:
    drawn: list[str] = []

    class Dropping(Sampler):
        @override
        def should_sample(
            self, parent_context: Any, trace_id: int, name: str, *_: Any, **__: Any
        ) -> SamplingResult:
            drawn.append(name)
            return SamplingResult(Decision.DROP)

        @override
        def get_description(self) -> str:
            return "drops all"

    listener = OpenTelemetryListener(MeterProvider(), TracerProvider(sampler=Dropping()))
    source = EventSource("orders", "", 1_000)
    listener.on_event(CommitBegan("1-0"), source)
    listener.on_event(BackendUploaded("Partition 0", "blob", "1-0", "done", 5, 5), source)
    listener.on_event(CommitDone(0, "1-0", 1, 1, 1), source)
    listener.on_event(StoreFetched("Partition 0", "counts", "blob", "done", 25, 20), source)
    listener.on_event(TaskRestored("Partition 0", {}, 7, 100), source)
    listener.on_event(Recovered(0, 1, {}, 7, [], 0, [], 0), source)
    assert drawn == ["statekeep.commit", "statekeep.recovery"]


async def test_no_attribute_has_a_secret() -> None:
    """The user and the password of a URI are in no figure and in no span."""
    telemetry, scraping = Telemetry(), Scraping()
    error = sk.RetriableError("no answer: uri=sftp://frank:sesame@host/state")
    source = EventSource("orders", "", 5_000)
    failed = CommitFailed("1-0", 4, "upload", summary_of(error), 3)
    for event in (CommitBegan("1-0"), failed):
        for listener in (telemetry.listener, scraping):
            listener.on_event(event, source)
    scraping.close()
    told = json.dumps([json.loads(span.to_json()) for span in telemetry.spans])
    assert "no answer" in told
    assert "sesame" not in told + str(scraping.samples)

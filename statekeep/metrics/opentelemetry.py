"""Figures and spans for OpenTelemetry, by the providers that the program has set up."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, _Gauge
from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider
from typing_extensions import override

from statekeep.events import (
    BackendUploaded,
    BatchReplayed,
    CommitBegan,
    CommitDone,
    CommitFailed,
    Event,
    EventSource,
    JobStarted,
    JobStopped,
    Listener,
    Recovered,
    RequestDone,
    StoreFetched,
    TaskRestored,
)
from statekeep.metrics.figures import BUCKETS_S, METRICS, Figure, Figures, Metric

_SCOPE: Final = "statekeep"
_MOST_PARTS: Final = 10_000
"""Of one commit or recovery, and so many requests: one that never ends must not fill the memory."""
_MOST_REQUESTS: Final = 1_000
"""Spans of requests in one trace: of the slowest uploads or fetches. With hundreds of tasks all of them
would take the driver seconds for each commit."""

_OfTask = TypeVar("_OfTask", BackendUploaded, StoreFetched)
_Attributes = Mapping[str, str | int | float | bool]


class _Part(NamedTuple):
    """An event that becomes a span below that of a commit or recovery."""

    event: Event
    seen_ns: int


class _Time(NamedTuple):
    began_ns: int
    ended_ns: int


_Key = tuple[str, str]
"""Task and backend."""


@dataclass(slots=True)
class _Open:
    """A commit or recovery that has not ended."""

    began_ns: int = 0
    parts: list[_Part] = field(default_factory=list[_Part])
    """All but requests."""
    requests: dict[_Key, list[RequestDone]] = field(default_factory=dict[_Key, list[RequestDone]])
    request_count: int = 0

    def add(self, event: Event, seen_ns: int) -> None:
        if not isinstance(event, RequestDone):
            if len(self.parts) < _MOST_PARTS:
                self.parts.append(_Part(event, seen_ns))
        elif event.count == 1 and self.request_count < _MOST_PARTS:
            self.request_count += 1
            self.requests.setdefault((event.task, event.backend), []).append(event)

    def of(self, kind: type[_OfTask]) -> dict[str, list[_OfTask]]:
        """Return the uploads or fetches, by task."""
        found: dict[str, list[_OfTask]] = {}
        for part in self.parts:
            if isinstance(part.event, kind):
                found.setdefault(part.event.task, []).append(part.event)
        return found

    def keep_slowest(self, by_task: Mapping[str, Sequence[BackendUploaded | StoreFetched]]) -> None:
        """Forget the requests of quick uploads or fetches, where there are too many."""
        rest = _MOST_REQUESTS
        slowest = sorted(chain(*by_task.values()), key=lambda e: e.elapsed_ns, reverse=True)
        # A task may fetch several stores from one backend.
        for key in dict.fromkeys((event.task, event.backend) for event in slowest):
            requests = self.requests.get(key, [])
            del requests[rest:]
            rest -= len(requests)


class OpenTelemetryListener(Listener):
    """Exports figures and spans.

    A commit is one trace: the commit, below it each task, each of its backends, each request. So is a
    recovery: the recovery, below it each task with its fetches and their requests, and each batch that
    was replayed. Spans are made when the commit or recovery has ended, with the times of the events.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        """Make the instruments.

        Args:
            meter_provider: By default the one that the program has set.
            tracer_provider: Likewise.
        """
        meter = (meter_provider or metrics.get_meter_provider()).get_meter(_SCOPE)
        self._instruments = {metric.name: _made(meter, metric) for metric in METRICS}
        self._figures = Figures()
        self._spans = _Spans((tracer_provider or trace.get_tracer_provider()).get_tracer(_SCOPE))

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        for figure in self._figures.of(event, source):
            self._put(figure, source.job)
        self._spans.take(event, source)

    @override
    def close(self) -> None:
        """The providers are the program's."""

    def _put(self, figure: Figure, job: str) -> None:
        instrument = self._instruments[figure.metric.name]
        attributes = {f"statekeep.{name}": value for name, value in figure.attributes.items()}
        attributes["statekeep.job_name"] = job
        if isinstance(instrument, Counter):
            instrument.add(figure.value, attributes)
        elif isinstance(instrument, Histogram):
            instrument.record(figure.value, attributes)
        else:
            instrument.set(figure.value, attributes)


class _Spans:
    """Makes spans of commits and recoveries. Used by one thread."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._commits: dict[tuple[str, str], _Open] = {}
        """By job, and task of plain Python."""
        self._recoveries: defaultdict[tuple[str, str], _Open] = defaultdict(_Open)

    def take(self, event: Event, source: EventSource) -> None:
        """Take in an event; make the spans of what has ended with it."""
        own = (source.job, source.task)
        match event:
            case JobStarted() | JobStopped():  # what has not ended never will
                self._commits.pop(own, None)
                self._recoveries.pop(own, None)
            case CommitBegan():
                self._commits[own] = _Open(source.time_ns)
            case BackendUploaded() | RequestDone(purpose="upload"):
                if own in self._commits:
                    self._commits[own].add(event, source.time_ns)
            case CommitDone() | CommitFailed():
                opened = self._commits.pop(own, None)
                if opened is not None:
                    self._end_commit(opened, event, source)
            case RequestDone(purpose="restore") | StoreFetched() | TaskRestored() | BatchReplayed():
                self._recoveries[own].add(event, source.time_ns)
            case Recovered():
                self._end_recovery(own, event, source)
            case _:
                pass

    def _end_commit(
        self, opened: _Open, event: CommitDone | CommitFailed, source: EventSource
    ) -> None:
        attributes: dict[str, str | int | float | bool] = {
            "statekeep.checkpoint_id": event.checkpoint_id,
            "statekeep.batch": event.batch,
        }
        error = None
        if isinstance(event, CommitDone):
            attributes["statekeep.tasks_uploaded"] = event.tasks_uploaded
            attributes["statekeep.bytes_uploaded"] = event.bytes_uploaded
        else:
            attributes["statekeep.step"] = event.step
            error = event.error
        time = _Time(opened.began_ns, source.time_ns)
        commit = self._span("commit", time, None, source, attributes, error=error)
        if not commit.get_span_context().trace_flags.sampled:
            return
        uploads = opened.of(BackendUploaded)
        opened.keep_slowest(uploads)
        for task, of_task in uploads.items():
            parent = self._span(
                "task", _around(map(_time_of, of_task)), commit, source, {"statekeep.task": task}
            )
            spans = [
                self._span(
                    "upload",
                    _time_of(upload),
                    parent,
                    source,
                    {
                        "statekeep.backend": upload.backend,
                        "statekeep.outcome": upload.outcome,
                        "statekeep.files": upload.files,
                        "statekeep.bytes_sent": upload.bytes_sent,
                    },
                    error=None if upload.outcome == "done" else upload.outcome,
                )
                for upload in of_task
            ]
            self._requests(opened, of_task, spans, source)

    def _end_recovery(self, own: tuple[str, str], event: Recovered, source: EventSource) -> None:
        opened = self._recoveries.pop(own, _Open())
        own_time = _Time(source.time_ns - event.elapsed_ms * 1_000_000, source.time_ns)
        fetches = opened.of(StoreFetched)
        # Its whole milliseconds may begin after the first fetch.
        time = _around([own_time, *map(_time_of, chain(*fetches.values()))])
        attributes: dict[str, str | int | float | bool] = {
            "statekeep.head": event.head,
            "statekeep.tasks": event.tasks,
            "statekeep.bytes_fetched": event.bytes_fetched,
            "statekeep.rows_replayed": event.rows_replayed,
            "statekeep.reason": event.reason,
        }
        recovery = self._span("recovery", time, None, source, attributes)
        if not recovery.get_span_context().trace_flags.sampled:
            return
        opened.keep_slowest(fetches)
        for part in opened.parts:
            match part.event:
                case TaskRestored():
                    of_task = fetches.pop(part.event.task, [])
                    self._task_restored(part, of_task, opened, recovery, source)
                case BatchReplayed():
                    self._span(
                        "replay",
                        _Time(part.seen_ns - part.event.elapsed_ns, part.seen_ns),
                        recovery,
                        source,
                        {"statekeep.batch": part.event.batch, "statekeep.rows": part.event.rows},
                    )
                case _:
                    pass

    def _task_restored(
        self,
        part: _Part,
        fetches: Sequence[StoreFetched],
        opened: _Open,
        recovery: Span,
        source: EventSource,
    ) -> None:
        assert isinstance(part.event, TaskRestored)  # noqa: S101 - by the caller
        own = _Time(part.seen_ns - part.event.elapsed_ns, part.seen_ns)
        time = _around(map(_time_of, fetches)) if fetches else own
        span = self._span("task", time, recovery, source, {"statekeep.task": part.event.task})
        spans = [
            self._span(
                "fetch",
                _time_of(fetch),
                span,
                source,
                {
                    "statekeep.backend": fetch.backend,
                    "statekeep.store": fetch.store,
                    "statekeep.outcome": fetch.outcome,
                    "statekeep.bytes": fetch.bytes,
                },
                error=None if fetch.outcome == "done" else fetch.outcome,
            )
            for fetch in fetches
        ]
        self._requests(opened, fetches, spans, source)

    def _requests(
        self,
        opened: _Open,
        events: Sequence[_OfTask],
        spans: Sequence[Span],
        source: EventSource,
    ) -> None:
        """Make the spans of requests, each below the upload or fetch in whose time it is."""
        for number, event in enumerate(events):
            for request in opened.requests.pop((event.task, event.backend), ()):
                parents = [
                    span
                    for other, span in zip(events[number:], spans[number:], strict=True)
                    if other.backend == event.backend and _is_within(request, other)
                ]
                self._span(
                    "request",
                    _time_of(request),
                    parents[0] if parents else spans[number],
                    source,
                    {
                        "statekeep.backend": request.backend,
                        "statekeep.operation": request.operation,
                        "statekeep.outcome": request.outcome,
                    },
                )

    def _span(
        self,
        name: str,
        time: _Time,
        parent: Span | None,
        source: EventSource,
        attributes: _Attributes,
        *,
        error: str | None = None,
    ) -> Span:
        """Make a span that has ended."""
        context = Context() if parent is None else trace.set_span_in_context(parent, Context())
        span = self._tracer.start_span(
            f"statekeep.{name}",
            context=context,
            attributes={"statekeep.job_name": source.job, **attributes},
            start_time=time.began_ns,
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=max(time))
        return span


def _time_of(event: BackendUploaded | StoreFetched | RequestDone) -> _Time:
    return _Time(event.ended_ns - event.elapsed_ns, event.ended_ns)


def _around(times: Iterable[_Time]) -> _Time:
    found = list(times)
    return _Time(min(t.began_ns for t in found), max(t.ended_ns for t in found))


def _is_within(request: RequestDone, event: BackendUploaded | StoreFetched) -> bool:
    own, around = _time_of(request), _time_of(event)
    return around.began_ns <= own.began_ns and own.ended_ns <= around.ended_ns


def _made(meter: Meter, metric: Metric) -> "Counter | Histogram | _Gauge":
    name, unit, description = metric.otel_name, metric.unit, metric.description
    if metric.kind == "counter":
        return meter.create_counter(name, unit, description)
    if metric.kind == "gauge":
        return meter.create_gauge(name, unit, description)
    return meter.create_histogram(
        name, unit, description, explicit_bucket_boundaries_advisory=BUCKETS_S
    )

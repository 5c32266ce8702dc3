"""Figures for Prometheus: ``/metrics`` of the driver, or of a program in plain Python."""

import logging
import threading
from collections import Counter as CounterOf
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from typing_extensions import override

from statekeep.events import Event, EventSource, JobStarted, Listener
from statekeep.metrics.figures import BUCKETS_S, METRICS, Figure, Figures, Metric

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

logger = logging.getLogger(__name__)

_RETRY_S: Final = 10.0
_Series = tuple[str, tuple[str, ...]]
"""A metric, and the values of its attributes."""


class _Exporter:
    """One port, with the figures of all jobs of this process that are served there."""

    def __init__(self, host: str, port: int) -> None:
        self.registry = CollectorRegistry()
        self.users = 0
        self.address: tuple[str, int] | None = None
        self._address = (host, port)
        self._metrics = {metric.name: _made(metric, self.registry) for metric in METRICS}
        self._figures = Figures()
        self._series: dict[str, dict[_Series, Counter | Gauge | Histogram]] = {}
        """By job, metric and attributes."""
        self._users_of: CounterOf[str] = CounterOf()
        """Listeners that have had events of a job."""
        self._lock = threading.Lock()
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._opening: threading.Thread | None = None
        error = self._open()
        if error is not None:
            # Another driver on this host: a job must not end for its metrics.
            logger.error(
                "metrics are not served for now: the port cannot be opened, and is tried again every"
                " %.0f s (set metrics.prometheus.port): host=%s port=%d error=%s",
                _RETRY_S,
                host,
                port,
                error,
            )
            self._opening = threading.Thread(
                target=self._keep_opening, name="statekeep-metrics-port", daemon=True
            )
            self._opening.start()

    def _open(self) -> OSError | None:
        """Open the port; return why that failed."""
        host, port = self._address
        try:
            self._server, self._thread = start_http_server(port, host, self.registry)
        except OSError as exc:
            return exc
        self.address = (host, int(self._server.server_port))
        logger.info("metrics are served: url=http://%s:%d/metrics", *self.address)
        return None

    def _keep_opening(self) -> None:
        while not self._is_closing.wait(_RETRY_S):
            if self._open() is None:
                return

    def take(self, event: Event, source: EventSource, *, is_new_user: bool) -> None:
        """Take in an event; any thread.

        Args:
            event: What has happened.
            source: Where.
            is_new_user: It is the first one of its job from a listener, which is to `leave` the job.
        """
        with self._lock:
            self._users_of[source.job] += is_new_user
            if isinstance(event, JobStarted):
                self._foresee(source.job, event.backends)
            for figure in self._figures.of(event, source):
                self._put(figure, source.job)

    def leave(self, job: str) -> None:
        """End the figures of a job, if no other listener has it: it has gone."""
        with self._lock:
            self._users_of[job] -= 1
            if self._users_of[job] == 0:
                del self._users_of[job]
                self._figures.forget(job)
                for name, values in self._series.pop(job, {}):
                    self._metrics[name].remove(job, *values)

    def _foresee(self, job: str, backends: Sequence[str]) -> None:
        """Begin counters at 0, so that an alert sees the first failure as an increase."""
        for metric in METRICS:
            if metric.kind != "gauge":
                for attributes in metric.series(backends):
                    self._of(metric, job, attributes)

    def _of(
        self, metric: Metric, job: str, attributes: Mapping[str, str]
    ) -> Counter | Gauge | Histogram:
        """Return a time series."""
        values = tuple(attributes[name] for name in metric.attributes)
        of_job = self._series.setdefault(job, {})
        found = of_job.get((metric.name, values))
        if found is None:
            found = of_job[metric.name, values] = self._metrics[metric.name].labels(job, *values)
        return found

    def _put(self, figure: Figure, job: str) -> None:
        series = self._of(figure.metric, job, figure.attributes)
        if isinstance(series, Counter):
            series.inc(figure.value)
        elif isinstance(series, Gauge):
            series.set(figure.value)
        else:
            series.observe(figure.value)

    def close(self) -> None:
        """Close the port."""
        self._is_closing.set()
        if self._opening is not None:
            self._opening.join()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@dataclass
class _Exporters:
    """Those of this process, by what the settings say; a port can be opened only once."""

    by_address: dict[tuple[str, int], _Exporter] = field(
        default_factory=dict[tuple[str, int], _Exporter]
    )
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, host: str, port: int) -> _Exporter:
        with self.lock:
            exporter = self.by_address.get((host, port))
            if exporter is None:
                exporter = self.by_address[host, port] = _Exporter(host, port)
            exporter.users += 1
            return exporter

    def leave(self, host: str, port: int) -> None:
        with self.lock:
            exporter = self.by_address[host, port]
            exporter.users -= 1
            if exporter.users == 0:
                del self.by_address[host, port]
                exporter.close()


_exporters: Final = _Exporters()


class PrometheusListener(Listener):
    """Serves the figures of a job for Prometheus, until the last job of the port has ended."""

    def __init__(self, host: str, port: int) -> None:
        """Open the port, if no other job of this process has; one that is taken is tried again.

        Args:
            host: The address to listen on.
            port: 0: a free one.
        """
        self._address = (host, port)
        self._exporter = _exporters.enter(host, port)
        self._jobs: set[str] = set()

    @property
    def address(self) -> tuple[str, int] | None:
        """Where ``/metrics`` is served; None while the port cannot be opened."""
        return self._exporter.address

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        is_new = source.job not in self._jobs
        self._jobs.add(source.job)
        self._exporter.take(event, source, is_new_user=is_new)

    @override
    def close(self) -> None:
        for job in self._jobs:
            self._exporter.leave(job)
        _exporters.leave(*self._address)


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name = metric.prometheus_name
    labels = ("job_name", *metric.attributes)
    if metric.kind == "counter":
        return Counter(name, metric.description, labels, registry=registry)
    if metric.kind == "gauge":
        return Gauge(name, metric.description, labels, registry=registry)
    return Histogram(name, metric.description, labels, registry=registry, buckets=BUCKETS_S)

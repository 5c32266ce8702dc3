"""The settings of metrics: what listens to the events of a job."""

from dataclasses import dataclass

from statekeep.config.key import setting
from statekeep.config.values import TEXT, name_list, whole_number


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What listens to the events of a job."""

    listeners: tuple[str, ...] = setting("metrics.listeners", name_list(), (), default_text="none")
    """Listeners of the driver, or of the program in plain Python: `prometheus`, `opentelemetry`, on
    Spark `spark` (its metrics system), and dotted paths of classes of yours, which are called without
    arguments. A program can give objects, too: `writeStream.listeners(...)`,
    `sk.Container(config, listeners=[...])`. *Without listeners nothing is measured for them.*"""
    prometheus_host: str = setting("metrics.prometheus.host", TEXT, "127.0.0.1")
    """Address on which `prometheus` serves `/metrics`. *Figures name jobs and backends, and anyone
    who reaches the port can read them: only this host, unless you say otherwise.*"""
    prometheus_port: int = setting("metrics.prometheus.port", whole_number(0, 65_535), 9464)
    """Port on which `prometheus` serves `/metrics`; 0: a free one, which the log names. Jobs of one
    process share it. While it is taken, there are no metrics, and it is tried again. *The value is
    OpenTelemetry's for its exporter to Prometheus.*"""

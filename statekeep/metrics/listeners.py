"""From the names in ``metrics.listeners`` to listeners."""

from typing import Final, cast

from statekeep.backends.dotted_path import is_dotted_path, load_object
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.events import Listener
from statekeep.extras import missing_package
from statekeep.reporter import ListenerThread

_KEY: Final = "metrics.listeners"
_OF_SPARK: Final = "statekeep.spark.metrics_system.SparkMetricsListener"
"""By its path, as this package knows nothing of Spark."""


def load_listeners(config: Config) -> tuple[Listener, ...]:
    """Make the listeners that the settings name.

    Raises:
        ConfigError: One is unknown, has no method ``on_event``, or needs a package that is missing.
    """
    found: list[Listener] = []
    try:
        for name in config.metrics.listeners:
            found.append(_load(name, config))  # noqa: PERF401 - those before one that fails are closed
    except BaseException as exc:
        ListenerThread(found).close()
        missing = missing_package(exc, key=_KEY) if isinstance(exc, ModuleNotFoundError) else None
        if missing is None:
            raise
        raise missing from exc
    return tuple(found)


def _load(name: str, config: Config) -> Listener:
    if name == "prometheus":
        from statekeep.metrics.prometheus import (  # noqa: PLC0415 - needs a package of an extra
            PrometheusListener,
        )

        settings = config.metrics
        return PrometheusListener(settings.prometheus_host, settings.prometheus_port)
    if name == "opentelemetry":
        from statekeep.metrics.opentelemetry import (  # noqa: PLC0415 - needs a package of an extra
            OpenTelemetryListener,
        )

        return OpenTelemetryListener()
    if name == "spark":
        name = _OF_SPARK
    if not is_dotted_path(name):
        raise ConfigError(
            f"unknown listener: {_KEY}={name}",
            key=_KEY,
            hint="write prometheus, opentelemetry, spark, or package.module.Class",
        )
    make = load_object(name, key=_KEY)
    listener = make() if callable(make) else None
    if not callable(getattr(listener, "on_event", None)):
        raise ConfigError(
            f"not a listener: {_KEY}={name}", key=_KEY, hint="it needs a method on_event"
        )
    return cast("Listener", listener)

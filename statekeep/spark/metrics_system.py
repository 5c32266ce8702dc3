"""Figures for Spark's metrics system, whose sinks (JMX, Graphite, a servlet, ...) the cluster has set up."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import SparkContext
from typing_extensions import override

from statekeep.errors import ConfigError
from statekeep.events import Event, EventSource, Listener
from statekeep.metrics.figures import Figure, Figures

_NO_NAME: Final = re.compile(r"[^\w-]+")
"""What is no part of a name: sinks divide names at dots."""

_Gauges = dict[str, Any]
_gauges: Final[WeakKeyDictionary[SparkContext, _Gauges]] = WeakKeyDictionary()
"""Accumulators by name: Spark keeps a gauge until its application ends, and takes each name once."""


def part_of_name(text: str) -> str:
    """Return a text as a part of a gauge's name; two texts never share one."""
    part = _NO_NAME.sub("_", text)
    return part if part == text else f"{part}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class SparkMetricsListener(Listener):
    """Shows the figures of a job as gauges of the driver, in Spark's accumulator source.

    They are brought there with the events that are written down, such as those of batches and commits.
    """

    def __init__(self) -> None:
        """Use the running session.

        Raises:
            ConfigError: There is none, as in a program in plain Python.
        """
        context = SparkContext._active_spark_context  # noqa: SLF001 - the session of this process
        if context is None:
            raise ConfigError(
                "no Spark session runs whose metrics system could be used",
                key="metrics.listeners",
                hint="take prometheus or opentelemetry in plain Python",
            )
        self._context: Any = context
        self._figures = Figures()
        self._values: defaultdict[str, float] = defaultdict(float)
        self._shown: dict[str, float] = {}

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        for figure in self._figures.of(event, source):
            self._take(figure, source.job)
        if event.is_recorded:
            self._show()

    @override
    def close(self) -> None:
        with suppress(Py4JError, OSError):  # the JVM may have gone with the program
            self._show()

    def _take(self, figure: Figure, job: str) -> None:
        metric = figure.metric
        attributes = (part_of_name(figure.attributes[name]) for name in metric.attributes)
        name = ".".join(["statekeep", part_of_name(job), metric.name, *attributes])
        if metric.kind == "gauge":
            self._values[name] = figure.value
        elif metric.kind == "counter":
            self._values[name] += figure.value
        else:
            self._values[f"{name}.count"] += 1
            self._values[f"{name}.sum"] += figure.value

    def _show(self) -> None:
        if self._context._jsc is None:  # noqa: SLF001 - the session has ended
            return
        changed = {n: v for n, v in self._values.items() if v != self._shown.get(n)}
        gauges = _gauges.setdefault(self._context, {})
        self._register(gauges, [name for name in changed if name not in gauges])
        for name, value in changed.items():
            # What is public of an accumulator is to read it and to add to it.
            gauges[name].add(value - float(gauges[name].value()))
        self._shown.update(changed)

    def _register(self, gauges: _Gauges, names: list[str]) -> None:
        if not names:
            return
        jvm, java_context = self._context._jvm, self._context._jsc.sc()  # noqa: SLF001 - no other way
        made: Mapping[str, Any] = {name: java_context.doubleAccumulator(name) for name in names}
        source = getattr(jvm.org.apache.spark.metrics.source, "DoubleAccumulatorSource$")
        scala = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap(made))
        getattr(source, "MODULE$").register(java_context, scala)
        gauges.update(made)

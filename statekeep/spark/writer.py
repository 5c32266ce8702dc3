"""``writeStream`` of a stateful stream, with the habits of Spark's `DataStreamWriter`."""

import logging
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession

from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.config.query_defaults import with_query_defaults
from statekeep.errors import ConfigError
from statekeep.events import Listener
from statekeep.metrics.listeners import load_listeners
from statekeep.spark import narration
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import source_limits
from statekeep.spark.driver.ticks import Ticks
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.query import StatefulStreamingQuery
from statekeep.spark.query_run import QueryPlan
from statekeep.spark.refused_settings import check_settings
from statekeep.spark.sinks import BatchSink, SinkTarget, build_sink, row_sink, table_sink
from statekeep.spark.stage import QueryDefinition, Stage, Transformation, transformed
from statekeep.spark.termination import termination

logger = logging.getLogger(__name__)

_REFUSED_OPTIONS: Mapping[str, str] = {
    "asyncprogresstrackingenabled": "Spark's offsets and commits would not follow each batch",
}
_OUTPUT_MODES: Final = ("append", "update")
_WITHOUT_LOCATION: Final = ("console", "memory", "noop")
"""Formats for which Spark makes a temporary checkpoint location, as for ``foreachBatch``."""
_LOCATIONS: Final = "spark.sql.streaming.checkpointLocation"
_READ_HERE: Final = ("checkpointLocation", "numRows", "path", "truncate")
"""Options that no class of Spark's looks up: as in Spark, they may be given in any case."""
_WITHOUT_BATCHES: Final = ("continuous", "realTime")
"""Triggers whose queries do not run batch by batch."""


class StatefulStreamWriter:
    """Collects where and how to write; `start` begins the query."""

    def __init__(
        self,
        source: DataFrame,
        stages: tuple[Stage, ...],
        config: Config,
        transformations: tuple[Transformation, ...],
    ) -> None:
        """Begin with the defaults.

        Args:
            source: The streaming input.
            stages: The stateful operators.
            config: The settings that were given.
            transformations: From the output of the last operator to what is written.
        """
        self._source = source
        self._stages = stages
        self._config = config
        self._output_mode = "append"
        self._transformations = transformations
        self._batch_function: Callable[[DataFrame, int], None] | None = None
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._partition_columns: list[str] = []
        self._query_name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._listeners: tuple[Listener, ...] = ()

    @property
    def _spark(self) -> SparkSession:
        return self._source.sparkSession

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Self:  # noqa: N802
        """Give each batch's output and its number to ``func``.

        As in Spark, the last call of this, of `foreach` and of `format` counts.
        """
        self._batch_function = func
        return self

    def foreach(self, f: Any) -> Self:  # noqa: ANN401 - a function or an object, as in Spark
        """Call a function for each row, or the ``open``, ``process`` and ``close`` of an object.

        After a crash the rows of one batch may come again, with the same epoch id in ``open``.

        Raises:
            PySparkAttributeError: It is neither.
        """
        self._batch_function = row_sink(f)
        return self

    def format(self, source: str) -> Self:
        """Write in a format: parquet, orc, json, csv, text, kafka, memory, console or noop."""
        self._format = source
        self._batch_function = None
        return self

    def option(self, key: str, value: str | float | bool | None) -> Self:  # noqa: FBT001 - Spark's
        """Set an option of the query or its sink; None takes it back.

        As in Spark, the case of its name does not matter.

        Raises:
            ConfigError: It is not possible here.
        """
        reason = _REFUSED_OPTIONS.get(key.lower())
        if reason is not None and str(value).lower() == "true":
            msg = f"option is not possible: option={key} ({reason})"
            raise ConfigError(msg, key=key)
        if key.lower() == "queryname":
            return self if value is None else self.queryName(str(value))
        self._options = {k: v for k, v in self._options.items() if k.lower() != key.lower()}
        if value is not None:
            name = next((name for name in _READ_HERE if name.lower() == key.lower()), key)
            self._options[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: str | float | bool | None) -> Self:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> Self:  # noqa: N802, N803 - Spark's names
        """Say how the sink takes rows: ``append``, which is the default, or ``update``.

        As in Spark, it may be another mode than that of ``transformWithState``.

        Raises:
            ConfigError: It is neither.
        """
        if outputMode.lower() not in _OUTPUT_MODES:
            msg = f"output mode is not possible after transformWithState: outputMode={outputMode!r}"
            raise ConfigError(msg, hint="use append or update")
        self._output_mode = outputMode.lower()
        return self

    def partitionBy(self, *cols: str | list[str]) -> Self:  # noqa: N802 - Spark's name
        """Lay files out by these columns."""
        self._partition_columns = [
            name for col in cols for name in ([col] if isinstance(col, str) else col)
        ]
        return self

    def clusterBy(self, *cols: str | list[str]) -> Self:  # noqa: N802 - Spark's name
        """Refuse what none of the sinks can do.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"no sink can cluster rows by columns: clusterBy={cols}",
            hint="use partitionBy, or write each batch yourself in foreachBatch",
        )

    def queryName(self, queryName: str) -> Self:  # noqa: N802, N803 - Spark's names
        """Name the query, and the job if ``job.name`` is not set."""
        self._query_name = queryName
        return self

    def listeners(self, *listeners: Listener) -> Self:
        """Let these get the events of the query, beside those that ``metrics.listeners`` names."""
        self._listeners += listeners
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803 - Spark's name
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,  # noqa: N803 - Spark's name
        realTime: str | None = None,  # noqa: N803 - Spark's name
    ) -> Self:
        """Say when batches run.

        Raises:
            ConfigError: For the continuous and the real-time trigger: they have no batches.
            PySparkValueError: Not one trigger is given, or not with a value of its kind.
        """
        every = {
            "processingTime": processingTime,
            "once": once,
            "continuous": continuous,
            "availableNow": availableNow,
            "realTime": realTime,
        }
        given: dict[str, Any] = {name: value for name, value in every.items() if value is not None}
        for name in _WITHOUT_BATCHES:
            if name in given:
                raise ConfigError(
                    f"the trigger has no batches to commit: trigger={name}",
                    hint="use processingTime, availableNow or once",
                )
        self._source.writeStream.trigger(**given)  # refuses what is wrong in Spark's words
        self._trigger = given
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's name
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: str | float | bool | None,
    ) -> StatefulStreamingQuery:
        """Take over the job, recover its state, and start the query.

        Returns once every task has its state, so that errors of recovery are raised here.

        Raises:
            ConfigError: A setting, a backend or the session is wrong.
            CheckpointLocationError: The checkpoint location is not the job's.
            RestoreFailedError: State is out of reach of every backend.
        """
        self._take(format, outputMode, partitionBy, queryName, options)
        if path is not None:
            self._options["path"] = path
        if self._batch_function is not None:
            return self._start(self._batch_function)
        format_name = self._format or str(self._spark.conf.get("spark.sql.sources.default"))
        return self._start(
            build_sink(self._spark, format_name, self._target(), self._output_shape())
        )

    def toTable(  # noqa: N802 - Spark's name
        self,
        tableName: str,  # noqa: N803
        format: str | None = None,  # noqa: A002 - Spark's name
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: str | float | bool | None,
    ) -> StatefulStreamingQuery:
        """Start the query with a table of files as its sink; see `start`."""
        self._take(format, outputMode, partitionBy, queryName, options)
        format_name = self._format or str(self._spark.conf.get("spark.sql.sources.default"))
        shape, target = self._output_shape(), self._target()
        return self._start(table_sink(self._spark, shape, tableName, format_name, target))

    def _take(
        self,
        format_name: str | None,
        output_mode: str | None,
        partition_by: str | list[str] | None,
        query_name: str | None,
        options: Mapping[str, str | float | bool | None],
    ) -> None:
        if format_name is not None:
            self.format(format_name)
        if output_mode is not None:
            self.outputMode(output_mode)
        if partition_by is not None:
            self.partitionBy(partition_by)
        if query_name is not None:
            self.queryName(query_name)
        self.options(**options)

    def _target(self) -> SinkTarget:
        options = {k: value for k, value in self._options.items() if k != "checkpointLocation"}
        return SinkTarget(
            options, tuple(self._partition_columns), self._output_mode, self._query_name
        )

    def _output_shape(self) -> DataFrame:
        output = self._stages[-1].operator.output_schema
        return transformed(self._spark.createDataFrame([], output), self._transformations)

    def _start(self, sink: BatchSink) -> StatefulStreamingQuery:
        narration.show()
        given = self._checkpoint_location() or self._unnamed_location()
        temporary = None if given else self._temporary_directory()
        location = CheckpointLocation(self._spark, given or f"{temporary}/checkpoint")
        config = self._complete(location, temporary)

        def deliver(output: DataFrame, batch: int) -> None:
            sink(transformed(output, self._transformations), batch)

        ticks = self._ticks()
        plan = QueryPlan(
            source=self._source if ticks is None else ticks.beside(self._source),
            stages=self._stages,
            config=config,
            location=location,
            sink=deliver,
            ticks=ticks,
            query_name=self._query_name,
            trigger=dict(self._trigger),
            listeners=(*load_listeners(config), *self._listeners),
        )
        try:
            query = StatefulStreamingQuery.start(plan, SystemClock())
        except BaseException:
            _remove(temporary)
            raise
        weakref.finalize(query, _remove, temporary)
        termination.stop_before_end(query, config.task.shutdown_ms, self._spark.sparkContext)
        return query

    def definition(self) -> QueryDefinition:
        """Return what the query is; nothing is started, and nothing is written.

        Raises:
            ConfigError: It has no checkpoint location, or a setting is wrong.
        """
        given = self._checkpoint_location()
        if not given:
            raise ConfigError(
                "the query has no checkpoint location",
                key="checkpointLocation",
                hint='give .option("checkpointLocation", ...), as where the query is started',
            )
        location, ticks = CheckpointLocation(self._spark, given), self._ticks()
        source = self._source if ticks is None else ticks.beside(self._source)
        return QueryDefinition(source, self._stages, self._complete(location, None), location)

    def _ticks(self) -> Ticks | None:
        """Return the source that asks for batches; None where nothing waits for a time."""
        is_timed = any(stage.operator.time_mode is not TimeMode.NONE for stage in self._stages)
        return Ticks(self._spark) if is_timed else None

    def _checkpoint_location(self) -> str | None:
        """Return where the query's checkpoints are, None if it was not given."""
        given = self._options.get("checkpointLocation")
        root = self._spark.conf.get(_LOCATIONS, None)
        if not given and root and self._query_name:
            return f"{root.rstrip('/')}/{self._query_name}"
        return given

    def _unnamed_location(self) -> str | None:
        """Return a new location where the session says where they are, as Spark does: it stays."""
        root = self._spark.conf.get(_LOCATIONS, None)
        return f"{root.rstrip('/')}/{uuid.uuid4()}" if root else None

    def _temporary_directory(self) -> Path:
        """Make the directory of a query that leaves nothing behind, where Spark makes one.

        Raises:
            ConfigError: The sink keeps rows, so that a query without its location would write them
                twice.
        """
        if self._batch_function is None and (self._format or "").lower() not in _WITHOUT_LOCATION:
            raise ConfigError(
                "the query has no checkpoint location",
                key="checkpointLocation",
                hint='give .option("checkpointLocation", ...)',
            )
        directory = Path(tempfile.mkdtemp(prefix="statekeep-temporary-"))
        logger.warning(
            "the query has no checkpoint location: its state is lost with it, temporary=%s",
            directory,
        )
        return directory

    def _complete(self, location: CheckpointLocation, temporary: Path | None) -> Config:
        config = with_query_defaults(
            self._config,
            location.uri,
            self._query_name,
            shared_uri=location.shared_uri,
            is_every_batch=bool(source_limits(self._source)),
            temporary=temporary,
        )
        check_settings(config)
        return config


def _remove(temporary: Path | None) -> None:
    """Remove what a query without a checkpoint location has written, as far as that is possible."""
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)

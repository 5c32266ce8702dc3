"""``writeStream`` of a stateful stream, with the habits of Spark's `DataStreamWriter`."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from pyspark.sql import DataFrame, SparkSession

from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark import narration
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.replay import source_limits
from statekeep.spark.driver.ticks import Ticks
from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.query import StatefulStreamingQuery
from statekeep.spark.query_defaults import with_query_defaults
from statekeep.spark.query_run import QueryPlan
from statekeep.spark.refused_settings import check_settings
from statekeep.spark.sinks import BatchSink, SinkTarget, build_sink, table_sink
from statekeep.spark.termination import termination

logger = logging.getLogger(__name__)

Transformation = Callable[[DataFrame], DataFrame]

_REFUSED_OPTIONS: Mapping[str, str] = {
    "asyncprogresstrackingenabled": "Spark's offsets and commits would not follow each batch",
}
_OUTPUT_MODES: Final = ("append", "update")
_WITHOUT_LOCATION: Final = ("console", "noop")
"""Formats for which Spark makes a temporary checkpoint location, as for ``foreachBatch``."""


class StatefulStreamWriter:
    """Collects where and how to write; `start` begins the query."""

    def __init__(
        self,
        source: DataFrame,
        operator: OperatorSpec,
        config: Config,
        transformations: tuple[Transformation, ...],
        initial: InitialState | None,
    ) -> None:
        self._source = source
        self._operator = operator
        self._config = config
        self._output_mode = "append"
        self._transformations = transformations
        self._initial = initial
        self._batch_function: Callable[[DataFrame, int], None] | None = None
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._partition_columns: list[str] = []
        self._query_name: str | None = None
        self._trigger: dict[str, Any] = {}

    @property
    def _spark(self) -> SparkSession:
        return self._source.sparkSession

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> Self:  # noqa: N802
        """Give each batch's output and its number to ``func``."""
        self._batch_function = func
        return self

    def foreach(self, f: object) -> Self:  # noqa: ARG002 - Spark's signature
        """Refuse: rows written one by one cannot be kept from doubling.

        Raises:
            ConfigError: Always.
        """
        msg = "foreach is not supported"
        raise ConfigError(msg, hint="write each batch in foreachBatch, keyed by the batch id")

    def format(self, source: str) -> Self:
        """Write in a format: parquet, orc, json, csv, text, console or noop."""
        self._format = source
        return self

    def option(self, key: str, value: str | float | bool | None) -> Self:  # noqa: FBT001 - Spark's
        """Set an option of the query or its sink."""
        reason = _REFUSED_OPTIONS.get(key.lower())
        if reason is not None and str(value).lower() == "true":
            msg = f"option is not possible: option={key} ({reason})"
            raise ConfigError(msg, key=key)
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
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

    def queryName(self, queryName: str) -> Self:  # noqa: N802, N803 - Spark's names
        """Name the query, and the job if ``job.name`` is not set."""
        self._query_name = queryName
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803 - Spark's name
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,  # noqa: N803 - Spark's name
    ) -> Self:
        """Say when batches run.

        Raises:
            ConfigError: For the continuous trigger, which has no batches.
        """
        if continuous is not None:
            raise ConfigError("the continuous trigger has no batches to commit")
        given = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        self._trigger = {name: value for name, value in given.items() if value is not None}
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
        return self._start(build_sink(self._spark, format_name, self._target()))

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
        shape = self._transform(self._spark.createDataFrame([], self._operator.output_schema))
        format_name = self._format or str(self._spark.conf.get("spark.sql.sources.default"))
        return self._start(table_sink(self._spark, shape, tableName, format_name, self._target()))

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
        return SinkTarget(options, tuple(self._partition_columns), self._output_mode)

    def _transform(self, frame: DataFrame) -> DataFrame:
        for transformation in self._transformations:
            frame = transformation(frame)
        return frame

    def _start(self, sink: BatchSink) -> StatefulStreamingQuery:
        narration.tell()
        given = self._checkpoint_location()
        temporary = None if given else self._temporary_directory()
        location = CheckpointLocation(self._spark, given or f"{temporary}/checkpoint")
        config = self._complete(location.uri, temporary)

        def deliver(output: DataFrame, batch: int) -> None:
            sink(self._transform(output), batch)

        is_timed = self._operator.time_mode is not TimeMode.NONE
        ticks = Ticks(self._spark) if is_timed else None
        plan = QueryPlan(
            source=self._source if ticks is None else ticks.beside(self._source),
            operator=self._operator,
            initial=self._initial,
            config=config,
            location=location,
            sink=deliver,
            ticks=ticks,
            query_name=self._query_name,
            trigger=dict(self._trigger),
        )
        try:
            query = StatefulStreamingQuery.start(plan, SystemClock())
        except BaseException:
            _remove(temporary)
            raise
        weakref.finalize(query, _remove, temporary)
        termination.stop_before_end(query, config.task.shutdown_ms, self._spark.sparkContext)
        return query

    def _checkpoint_location(self) -> str | None:
        """Return where the query's checkpoints are, None if nobody has said it."""
        given = self._options.get("checkpointLocation")
        root = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if not given and root and self._query_name:
            return f"{root.rstrip('/')}/{self._query_name}"
        return given

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

    def _complete(self, location: str, temporary: Path | None) -> Config:
        config = with_query_defaults(
            self._config,
            location,
            self._query_name,
            is_every_batch=bool(source_limits(self._source)),
            temporary=temporary,
        )
        check_settings(config)
        return config


def _remove(temporary: Path | None) -> None:
    """Remove what a query without a checkpoint location has written, as far as that is possible."""
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)

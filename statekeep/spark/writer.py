"""``writeStream`` of a stateful stream, with the habits of Spark's `DataStreamWriter`."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Mapping
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from statekeep.clock import SystemClock
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.replay_checks import source_limits
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.query import StatefulStreamingQuery
from statekeep.spark.query_defaults import with_query_defaults
from statekeep.spark.query_run import QueryPlan
from statekeep.spark.refused_settings import check_settings
from statekeep.spark.sinks import BatchSink, SinkTarget, build_sink, table_sink
from statekeep.spark.termination import termination

Transformation = Callable[[DataFrame], DataFrame]

_REFUSED_OPTIONS: Mapping[str, str] = {
    "asyncprogresstrackingenabled": "Spark's offsets and commits would not follow each batch",
}


class StatefulStreamWriter:
    """Collects where and how to write; `start` begins the query."""

    def __init__(
        self,
        source: DataFrame,
        operator: OperatorSpec,
        config: Config,
        output_mode: str,
        transformations: tuple[Transformation, ...],
    ) -> None:
        self._source = source
        self._operator = operator
        self._config = config
        self._output_mode = output_mode
        self._transformations = transformations
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
        """Repeat the operator's output mode; another one is an error.

        Raises:
            ConfigError: It differs from that of ``transformWithState``.
        """
        if outputMode.lower() != self._output_mode.lower():
            raise ConfigError(
                f"output mode differs from the operator's: outputMode={outputMode!r}"
                f" operator={self._output_mode!r}"
            )
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
        location = CheckpointLocation(self._spark, self._checkpoint_location())
        config = self._complete(location.uri)

        def deliver(output: DataFrame, batch: int) -> None:
            sink(self._transform(output), batch)

        plan = QueryPlan(
            source=self._source,
            operator=self._operator,
            config=config,
            location=location,
            sink=deliver,
            query_name=self._query_name,
            trigger=dict(self._trigger),
        )
        query = StatefulStreamingQuery.start(plan, SystemClock())
        termination.stop_before_end(query, config.task.shutdown_ms)
        return query

    def _checkpoint_location(self) -> str:
        given = self._options.get("checkpointLocation")
        if given:
            return given
        root = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if root and self._query_name:
            return f"{root.rstrip('/')}/{self._query_name}"
        raise ConfigError(
            "the query has no checkpoint location",
            key="checkpointLocation",
            hint='give .option("checkpointLocation", ...)',
        )

    def _complete(self, location: str) -> Config:
        config = with_query_defaults(
            self._config,
            location,
            self._query_name,
            is_every_batch=bool(source_limits(self._source)),
        )
        check_settings(config)
        return config

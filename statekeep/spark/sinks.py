"""Sinks: what a stateful stream's output may be written to, each idempotent or refused by name."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statekeep.errors import ConfigError
from statekeep.spark.releases import RELEASE

BatchSink = Callable[[DataFrame, int], None]

FILE_FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "csv": ("csv", "CSVFileFormat"),
    "json": ("json", "JsonFileFormat"),
    "orc": ("orc", "OrcFileFormat"),
    "parquet": ("parquet", "ParquetFileFormat"),
    "text": ("text", "TextFileFormat"),
}
"""Where Spark has the class of each file format."""
_OTHERS: Final = ("console", "kafka", "memory", "noop")


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """What the writer was given about its sink besides the format."""

    options: Mapping[str, str]
    partition_columns: Sequence[str]
    output_mode: str
    query_name: str | None = None


def build_sink(
    spark: SparkSession, format_name: str, target: SinkTarget, shape: DataFrame
) -> BatchSink:
    """Return the sink of a format.

    Args:
        spark: The session.
        format_name: As the user wrote it.
        target: What else the user said.
        shape: A frame without rows, of the schema that is written.

    Raises:
        ConfigError: The format is not supported, or not in this output mode, or lacks something.
    """
    name = format_name.lower()
    if name in FILE_FORMATS:
        return _file_sink(spark, name, target)
    if name == "console":
        options = target.options
        rows, is_truncated = int(options.get("numRows", "20")), options.get("truncate", "true")
        return _console_sink(rows, is_truncated=is_truncated.lower() == "true")
    if name == "noop":
        return lambda frame, _: frame.write.format("noop").mode("overwrite").save()
    if name == "memory":
        return _memory_sink(spark, target, shape)
    if name == "kafka":
        return lambda frame, _: frame.write.format("kafka").options(**target.options).save()
    supported = ", ".join([*FILE_FORMATS, *_OTHERS])
    raise ConfigError(
        f"sink format is not supported: format={format_name!r} supported={supported}",
        hint="write each batch yourself in foreachBatch, keyed by the batch id",
    )


def table_sink(
    spark: SparkSession, shape: DataFrame, table: str, format_name: str, target: SinkTarget
) -> BatchSink:
    """Return the sink of a table of files, which is created empty if it is not there.

    Raises:
        ConfigError: The table is not one of files, or not in this output mode.
    """
    if not spark.catalog.tableExists(table):
        writer = shape.write.format(format_name).options(**target.options)
        if target.partition_columns:
            writer = writer.partitionBy(*target.partition_columns)
        writer.saveAsTable(table)
    details = {
        row["col_name"]: row["data_type"]
        for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    }
    provider, location = details.get("Provider", ""), details.get("Location", "")
    if provider.lower() not in FILE_FORMATS or not location:
        raise ConfigError(
            f"cannot write to the table: table={table} provider={provider}",
            hint="use a table of parquet, orc, json, csv or text files, or foreachBatch",
        )
    return _file_sink(
        spark, provider, replace(target, options={**target.options, "path": location})
    )


def row_sink(function: Any) -> BatchSink:  # noqa: ANN401 - what `foreach` takes, which has no type
    """Return the sink that calls a function for each row, or an object with ``process``, as Spark's.

    Raises:
        PySparkAttributeError: It is neither.
    """
    call: Any = DataStreamWriter._construct_foreach_function(function)  # noqa: SLF001

    def write(frame: DataFrame, _: int) -> None:
        frame.rdd.mapPartitionsWithIndex(call).count()

    return write


def _memory_sink(spark: SparkSession, target: SinkTarget, shape: DataFrame) -> BatchSink:
    """Return Spark's own sink for trying: a table in the driver's memory, named as the query."""
    if not target.query_name:
        raise ConfigError("memory sink has no name for its table", hint="give queryName()")
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark's sink is a class of the JVM
    sql = jvm.org.apache.spark.sql
    sources = sql.execution.streaming.sources
    sink = sources.MemorySink()
    columns = sql.catalyst.types.DataTypeUtils.toAttributes(_java(shape).schema())
    plan = sources.MemoryPlan(sink, columns)
    table = sql.classic.Dataset.ofRows(spark._jsparkSession, plan)  # noqa: SLF001
    table.createOrReplaceTempView(target.query_name)

    def write(frame: DataFrame, batch: int) -> None:
        sink.write(batch, False, _java(frame).collect())  # noqa: FBT003 - a method of the JVM

    return write


def _java(frame: DataFrame) -> Any:  # noqa: ANN401 - an object of the JVM
    return frame._jdf  # noqa: SLF001


def _file_sink(spark: SparkSession, format_name: str, target: SinkTarget) -> BatchSink:
    """Return Spark's own file sink: it logs the files of a batch under the batch's number.

    A batch that is in its log already is not written again.
    """
    if not target.options.get("path"):
        raise ConfigError("file sink has no path", hint="give it to start() or as option path")
    if target.output_mode.lower() != "append":
        raise ConfigError(
            f"files cannot be written in this output mode: outputMode={target.output_mode!r}",
            hint='give the writer outputMode("append")',
        )
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark's sink is a class of the JVM
    execution = jvm.org.apache.spark.sql.execution
    package, name = FILE_FORMATS[format_name.lower()]
    sinks = execution.streaming.sinks if RELEASE >= (4, 1) else execution.streaming
    sink = sinks.FileStreamSink(
        spark._jsparkSession,  # noqa: SLF001
        target.options["path"],
        getattr(getattr(execution.datasources, package), name)(),
        jvm.PythonUtils.toSeq(list(target.partition_columns)),
        jvm.PythonUtils.toScalaMap(dict(target.options)),
    )

    def write(frame: DataFrame, batch: int) -> None:
        sink.addBatch(batch, frame._jdf)  # noqa: SLF001

    return write


def _console_sink(rows: int, *, is_truncated: bool) -> BatchSink:
    rule = "-" * 43

    def write(frame: DataFrame, batch: int) -> None:
        sys.stdout.write(f"{rule}\nBatch: {batch}\n{rule}\n")
        frame.show(rows, truncate=is_truncated)

    return write

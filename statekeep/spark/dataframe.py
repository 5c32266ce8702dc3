"""What a stateful operator gives: a frame to which stateless transformations may be chained."""

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import StructType

from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.plan import check_by_batch, stream_of
from statekeep.spark.stage import Stage, Transformation
from statekeep.spark.writer import StatefulStreamWriter

_STATELESS: Final = frozenset(
    {
        "alias",
        "coalesce",
        "drop",
        "dropna",
        "fillna",
        "filter",
        "hint",
        "join",
        "mapInArrow",
        "mapInPandas",
        "melt",
        "repartition",
        "repartitionByRange",
        "replace",
        "select",
        "selectExpr",
        "sortWithinPartitions",
        "to",
        "toDF",
        "transform",
        "unpivot",
        "where",
        "withColumn",
        "withColumnRenamed",
        "withColumns",
        "withColumnsRenamed",
        "withMetadata",
    }
)
"""Transformations that give the same for a batch alone as for the whole stream."""


class StatefulDataFrame:
    """A streaming frame behind a stateful operator, with the habits of Spark's.

    Each transformation is checked at once against a stream without rows of the right schema, kept,
    and applied to the output of every batch.
    """

    isStreaming = True  # noqa: N815 - Spark's name

    def __init__(
        self,
        source: DataFrame,
        stages: tuple[Stage, ...],
        config: Config,
        *,
        shape: DataFrame | None = None,
        transformations: tuple[Transformation, ...] = (),
    ) -> None:
        """Begin with the output of an operator.

        Args:
            source: The streaming input.
            stages: The stateful operators so far.
            config: The settings.
            shape: What the transformations make of a stream without rows; None: there are none.
            transformations: What was done to the output of the last operator.
        """
        self._source = source
        self._stages = stages
        self._config = config
        output = stages[-1].operator.output_schema
        self._shape = shape or stream_of(source.sparkSession, output)
        self._transformations = transformations

    @property
    def schema(self) -> StructType:
        """The schema after all transformations."""
        return self._shape.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._shape.columns

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Names and types of the columns."""
        return self._shape.dtypes

    @property
    def sparkSession(self) -> Any:  # noqa: ANN401, N802 - Spark's name; its classes are many
        """The session."""
        return self._source.sparkSession

    @property
    def writeStream(self) -> StatefulStreamWriter:  # noqa: N802 - Spark's name
        """Begin to write the stream."""
        return StatefulStreamWriter(self._source, self._stages, self._config, self._transformations)

    def groupBy(self, *cols: Any) -> "GroupsBehindOperator":  # noqa: ANN401, N802 - Spark's
        """Group the rows for another stateful operator: ``grouped(frame.groupBy(...))``."""
        upstream = Upstream(self._source, self._stages, self._config, self._transformations)
        return GroupsBehindOperator(upstream, self._shape.groupBy(*cols))

    groupby = groupBy

    def printSchema(self, level: int | None = None) -> None:  # noqa: N802 - Spark's name
        """Print the schema as a tree."""
        self._shape.printSchema(level)

    def __getitem__(self, name: str) -> Column:
        if name not in self.columns:
            msg = f"no such column: column={name!r} columns={','.join(self.columns)}"
            raise ConfigError(msg)
        return F.col(f"`{name}`")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a column or a bound transformation
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _STATELESS:
            return lambda *args, **kwargs: self._chain(name, args, kwargs)
        if name in self.columns:
            return self[name]
        if hasattr(DataFrame, name):
            raise _not_possible(name)
        msg = f"no such attribute or column: {name} columns={','.join(self.columns)}"
        raise AttributeError(msg)

    def _chain(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "StatefulDataFrame":
        def apply(frame: DataFrame) -> DataFrame:
            result: DataFrame = getattr(frame, name)(*args, **kwargs)
            return result

        shape = apply(self._shape)
        check_by_batch(shape)
        return StatefulDataFrame(
            self._source,
            self._stages,
            self._config,
            shape=shape,
            transformations=(*self._transformations, apply),
        )


@dataclass(frozen=True)
class Upstream:
    """All that is before a stateful operator which is not the first one."""

    source: DataFrame
    stages: tuple[Stage, ...]
    config: Config
    transformations: tuple[Transformation, ...]


class GroupsBehindOperator:
    """Rows behind a stateful operator, grouped: what `grouped` takes for the next one."""

    def __init__(self, upstream: Upstream, groups: GroupedData) -> None:
        self.upstream = upstream
        self.groups = groups
        """Of a stream without rows that has the same schema."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - always an error
        if name.startswith("_") or not hasattr(GroupedData, name):
            raise AttributeError(name)
        raise _not_possible(f"groupBy(...).{name}")


def _not_possible(name: str) -> AttributeError:
    error = AttributeError(f"not possible after a stateful operator of statekeep: {name}")
    error.add_note(
        "hint: do it to each batch in foreachBatch, or use another stateful operator:"
        " sk.grouped(frame.groupBy(...)).transformWithState(...)"
    )
    return error

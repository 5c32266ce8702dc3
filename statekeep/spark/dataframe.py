"""What a stateful operator gives: a frame to which stateless transformations may be chained."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import StructType

from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.writer import StatefulStreamWriter

Transformation = Callable[[DataFrame], DataFrame]

_STATELESS: Final = frozenset(
    {
        "alias",
        "coalesce",
        "colRegex",
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

    Each transformation is checked at once against an empty frame of the right schema, kept, and
    applied to the output of every batch.
    """

    isStreaming = True  # noqa: N815 - Spark's name

    def __init__(
        self,
        source: DataFrame,
        operator: OperatorSpec,
        config: Config,
        *,
        initial: InitialState | None = None,
        shape: DataFrame | None = None,
        transformations: tuple[Transformation, ...] = (),
    ) -> None:
        self._source = source
        self._operator = operator
        self._config = config
        self._initial = initial
        self._shape = shape or source.sparkSession.createDataFrame([], operator.output_schema)
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
        return StatefulStreamWriter(
            self._source, self._operator, self._config, self._transformations, self._initial
        )

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
            msg = f"not possible after a stateful operator of statekeep: {name}"
            error = AttributeError(msg)
            error.add_note("hint: do it to each batch in foreachBatch")
            raise error
        msg = f"no such attribute or column: {name} columns={','.join(self.columns)}"
        raise AttributeError(msg)

    def _chain(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "StatefulDataFrame":
        def apply(frame: DataFrame) -> DataFrame:
            result: DataFrame = getattr(frame, name)(*args, **kwargs)
            return result

        return StatefulDataFrame(
            self._source,
            self._operator,
            self._config,
            initial=self._initial,
            shape=apply(self._shape),
            transformations=(*self._transformations, apply),
        )

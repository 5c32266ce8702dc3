"""What a query is, as its program says it: its operators, each a stage of every batch, and their rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructType

from statekeep.config.model import Config
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.combiner import ROWS_COLUMN, Combiner
from statekeep.spark.operator.group_state import GroupStateProcessor
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.placement import DIGEST_COLUMN, row_digest

Transformation = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Stage:
    """One operator, and how its rows come about."""

    operator: OperatorSpec
    initial: InitialState | None = None
    """What its state begins with."""
    transformations: tuple[Transformation, ...] = ()
    """From the output of the operator before to the rows of this one; the first one reads the source."""


@dataclass(frozen=True)
class QueryDefinition:
    """A query of a program that names its checkpoint location."""

    source: DataFrame
    """The streaming input, with the source of ticks where an operator has timers."""
    stages: Sequence[Stage]
    config: Config
    """Complete: with what the query itself says."""
    location: CheckpointLocation


def transformed(frame: DataFrame, transformations: tuple[Transformation, ...]) -> DataFrame:
    """Return what stateless transformations make of a frame, in their order."""
    for transformation in transformations:
        frame = transformation(frame)
    return frame


def combined(frame: DataFrame, combiner: Combiner) -> DataFrame:
    """Return the combined rows of a frame, with `DIGEST_COLUMN` and `ROWS_COLUMN`.

    Both tell of the rows before: a replay compares these, and may read them in other partitions.
    """
    schema = StructType([*combiner.schema.fields])
    for name in (DIGEST_COLUMN, ROWS_COLUMN):
        schema.add(name, LongType())
    digested = frame.select("*", row_digest(frame.schema, frame.columns))
    return digested.mapInArrow(lambda rows: combiner.combine(rows, DIGEST_COLUMN), schema)


def operators_with_watermark(stages: Sequence[Stage]) -> list[bool]:
    """Return for each operator whether the watermark of the source reaches it.

    Times in rows that were put out by processing time mean nothing beside it, so Spark passes no
    watermark on from such an operator, nor from `applyInPandasWithState`.

    Source: Spark 4.3 `StateStoreWriter.produceOutputWatermark`.
    """
    is_passed_on = [
        stage.operator.time_mode is not TimeMode.PROCESSING
        and not isinstance(stage.operator.processor, GroupStateProcessor)
        for stage in stages
    ]
    return [all(is_passed_on[:number]) for number in range(len(stages))]

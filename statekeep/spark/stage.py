"""The stateful operators of a query, one after the other: each is a stage of every batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.operator.group_state import GroupStateProcessor
from statekeep.spark.operator.runner import OperatorSpec

Transformation = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True)
class Stage:
    """One operator, and how its rows come about."""

    operator: OperatorSpec
    initial: InitialState | None = None
    """What its state begins with."""
    transformations: tuple[Transformation, ...] = ()
    """From the output of the operator before to the rows of this one; the first one reads the source."""


def transformed(frame: DataFrame, transformations: tuple[Transformation, ...]) -> DataFrame:
    """Return what stateless transformations make of a frame, in their order."""
    for transformation in transformations:
        frame = transformation(frame)
    return frame


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

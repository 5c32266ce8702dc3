"""The stateful operators of a query, one after the other: each is a stage of every batch."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from statekeep.spark.initial_state import InitialState
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

"""What a query is, as its program says it, without a run of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from statekeep.config.model import Config
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.stage import Stage


@dataclass(frozen=True)
class QueryDefinition:
    """A query of a program that names its checkpoint location."""

    source: DataFrame
    """The streaming input, with the source of ticks where an operator has timers."""
    stages: Sequence[Stage]
    config: Config
    """Complete: with what the query itself says."""
    location: CheckpointLocation

"""The Spark data source ``statekeep``: committed state as a DataFrame, read by executors in parallel.

Filters are not pushed to the tasks, though Spark has a way for it: Spark 4.3 keeps what a source answers to
the filters of one query for all later queries of the frame, which then lack rows (decision 0047).
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from statekeep.errors import ConfigError
from statekeep.spark.own_loop import run_apart
from statekeep.spark.session import active
from statekeep.spark.state.key_text import parse_fields
from statekeep.spark.state.options import key_of, request_of
from statekeep.spark.state.plan import StatePlan, TaskPart, plan_state
from statekeep.spark.state.reading import read_parts
from statekeep.spark.state.restored import SCRATCH
from statekeep.stores.temporary_directory import temporary_directory

FORMAT: Final = "statekeep"


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("statekeep")`` known to a session.

    Spark looks for all data sources in Python at the first one, which takes about a second. Sessions
    that only run queries do without it.

    Args:
        spark: The session; others are not changed.
    """
    try:
        spark.dataSource.register(StateSource)
    except AnalysisException as exc:
        if exc.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Another session, which is active in this thread, has it: Spark looks there.
        with active(spark):
            spark.dataSource.register(StateSource)


class StateSource(DataSource):
    """Made by Spark on the driver for each ``load``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._plan: StatePlan | None = None

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> StructType:
        return self._planned().schema

    @override
    def reader(self, schema: StructType) -> "StateSourceReader":
        plan = self._planned()
        if schema != plan.schema:
            raise ConfigError(
                "the state has a schema of its own: "
                f"given={schema.simpleString()} found={plan.schema.simpleString()}",
                hint="leave schema() out; the option columns names the columns to read",
            )
        return StateSourceReader(plan)

    def _planned(self) -> StatePlan:
        # Once for a frame: it stands for one commit, whenever its rows are asked for.
        if self._plan is None:
            request, key = request_of(self.options), key_of(self.options)
            with temporary_directory(SCRATCH) as directory:
                plan = run_apart(plan_state(request, directory))
            if key is not None:
                plan = plan.with_key(parse_fields(key, plan.table.keys))
            self._plan = plan
        return self._plan


class _TaskPartition(InputPartition):
    """A Spark partition: one task."""

    def __init__(self, part: TaskPart) -> None:
        super().__init__(part)


class StateSourceReader(DataSourceReader):
    """Reads each task of a plan in a Spark partition of its own."""

    def __init__(self, plan: StatePlan) -> None:
        self._plan = plan

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return [_TaskPartition(part) for part in self._plan.parts]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, _TaskPartition):  # else Spark's own: there is no task to read
            with temporary_directory(SCRATCH) as directory:
                yield from read_parts(self._plan, [partition.value], directory)

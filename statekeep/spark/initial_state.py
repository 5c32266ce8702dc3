"""Initial state: rows of a batch frame that go to the tasks beside the rows of the first batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - pyspark's own convention
from pyspark.sql.types import StructType

from statekeep.errors import ConfigError
from statekeep.spark.operator.runner import InitialStateSpec, OperatorSpec
from statekeep.spark.placement import column

INITIAL_COLUMN: Final = "_statekeep_initial"
"""A row of the initial state, whole; null in all others."""


@dataclass(frozen=True)
class InitialState:
    """A batch frame and its grouping columns."""

    frame: DataFrame
    key_columns: tuple[str, ...]

    @property
    def spec(self) -> InitialStateSpec:
        """What tasks have to know of it."""
        return InitialStateSpec(self.key_columns, self.frame.schema)

    def check(self, key_schema: StructType) -> None:
        """Check that it can begin the state of an operator.

        Raises:
            ConfigError: It is a stream, or has another grouping key.
        """
        if self.frame.isStreaming:
            raise ConfigError("the initial state is a stream", hint="read it by spark.read")
        found = [self.frame.schema[name].dataType.simpleString() for name in self.key_columns]
        expected = [field.dataType.simpleString() for field in key_schema.fields]
        if found != expected:
            raise ConfigError(
                "the initial state has another grouping key than the rows:"
                f" expected={','.join(expected)} found={','.join(found)}",
                hint="group both by columns of the same types, in the same order",
            )


def with_initial_state(rows: DataFrame, operator: OperatorSpec, initial: InitialState) -> DataFrame:
    """Return the rows, and those of the initial state with the same grouping columns."""
    whole = initial.frame.schema
    keys = dict(zip(operator.key_columns, initial.key_columns, strict=True))

    def of_initial(name: str) -> Column:
        if name in keys:
            return column(keys[name]).alias(name)
        return F.lit(None).cast(operator.row_schema[name].dataType).alias(name)

    return rows.select(
        *map(column, operator.row_schema.names), F.lit(None).cast(whole).alias(INITIAL_COLUMN)
    ).unionAll(
        initial.frame.select(
            *map(of_initial, operator.row_schema.names),
            F.struct(*map(column, whole.names)).alias(INITIAL_COLUMN),
        )
    )


def with_initial_column(schema: StructType, initial: InitialStateSpec) -> StructType:
    """Return the schema of what `with_initial_state` returns."""
    return StructType([*schema.fields]).add(INITIAL_COLUMN, initial.row_schema)


def is_initial() -> Column:
    """Return whether a row is one of the initial state."""
    return column(INITIAL_COLUMN).isNotNull()


def divide(
    batches: Iterator[pa.RecordBatch], *others: str
) -> tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]:
    """Divide rows into those of the initial state, as it has them, and the others.

    Args:
        batches: Rows of the initial state come first, or all are in one batch. The first iterator is
            read to its end before the second one.
        others: Columns that rows of the initial state keep beside their own.
    """
    held: list[pa.RecordBatch] = []

    def initial() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_initial = batch.column(INITIAL_COLUMN).is_valid()
            rest = batch.filter(pc.invert(is_initial))  # pyright: ignore[reportAttributeAccessIssue] - pyarrow makes it at import
            if rest.num_rows < batch.num_rows:
                found = batch.filter(is_initial)
                struct = found.column(INITIAL_COLUMN)
                yield pa.RecordBatch.from_arrays(
                    [*struct.flatten(), *map(found.column, others)],
                    names=[*(field.name for field in struct.type), *others],
                )
            if rest.num_rows:
                held.append(rest)
                return

    def following() -> Iterator[pa.RecordBatch]:
        yield from chain(held, batches)

    return initial(), following()

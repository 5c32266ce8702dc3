"""The frame of combined rows of a batch."""

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructType

from statekeep.spark.operator.combiner import ROWS_COLUMN, Combiner
from statekeep.spark.placement import DIGEST_COLUMN, row_digest


def combined(frame: DataFrame, combiner: Combiner) -> DataFrame:
    """Return the combined rows of a frame, with `DIGEST_COLUMN` and `ROWS_COLUMN`.

    Both tell of the rows before: a replay compares these, and may read them in other partitions.
    """
    schema = StructType([*combiner.schema.fields])
    for name in (DIGEST_COLUMN, ROWS_COLUMN):
        schema.add(name, LongType())
    digested = frame.select("*", row_digest(frame.schema, frame.columns))
    return digested.mapInArrow(lambda rows: combiner.combine(rows, DIGEST_COLUMN), schema)

"""Compares what the job left behind with plain Spark SQL over the whole table.

    python -m examples.flights.check WORK FLIGHTS

A process of its own, so that no Spark runs in the supervisor; prints the comparisons as JSON.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.functions import sum as sum_

import statekeep as sk
from examples.flights.events import Event
from examples.flights.job import settings
from examples.flights.paths import Paths

SHOWN_ROWS = 5
HISTORY_SQL = """
WITH legs AS (
  SELECT *,
    scheduled DIV 10000 AS day,
    departure_delay IS NOT NULL AS flew,
    greatest(coalesce(departure_delay, 0), 0) AS late
  FROM flights WHERE tail_number IS NOT NULL
  DISTRIBUTE BY tail_number, carrier -- one shuffle serves all windows
), days AS (
  SELECT *,
    sum(late) OVER of_day AS day_delay,
    greatest(coalesce(lag(arrival_delay) OVER flown_that_day, 0), 0) AS late_before,
    last(if(flew, greatest(coalesce(arrival_delay, 0), 0), NULL), true) OVER of_day AS late_after
  FROM legs
  WINDOW
    of_day AS (PARTITION BY tail_number, carrier, day
      ORDER BY scheduled, flight, origin, destination ROWS UNBOUNDED PRECEDING),
    flown_that_day AS (PARTITION BY tail_number, carrier, day, flew
      ORDER BY scheduled, flight, origin, destination)
), carrying AS (
  SELECT *,
    if(flew, least(late, late_before), 0) AS carried,
    max(struct(day_delay, -day AS earlier_day)) OVER so_far AS worst
  FROM days
  WINDOW so_far AS (PARTITION BY tail_number, carrier
    ORDER BY scheduled, flight, origin, destination ROWS UNBOUNDED PRECEDING)
)
SELECT tail_number, carrier, scheduled, flight, origin, destination, carried,
  sum(CAST(flew AS BIGINT)) OVER so_far AS flights,
  sum(CAST(NOT flew AS BIGINT)) OVER so_far AS cancelled,
  sum(late) OVER so_far AS delay_minutes,
  sum(carried) OVER so_far AS carried_minutes,
  day,
  day_delay,
  coalesce(late_after, 0) AS arrival_delay,
  if(worst.day_delay > 0, -worst.earlier_day, NULL) AS worst_day,
  worst.day_delay AS worst_day_delay
FROM carrying
WINDOW so_far AS (PARTITION BY tail_number, carrier
  ORDER BY scheduled, flight, origin, destination ROWS UNBOUNDED PRECEDING)
"""
NEWEST_SQL = """
SELECT * EXCEPT (place, scheduled, flight, origin, destination, carried) FROM (
  SELECT *, row_number() OVER (PARTITION BY tail_number, carrier
    ORDER BY scheduled DESC, flight DESC, origin DESC, destination DESC) AS place
  FROM legs)
WHERE place = 1
"""


@dataclass(frozen=True)
class Comparison:
    """Two tables as bags of rows: how many rows only one of them has."""

    name: str
    expected_rows: int
    missing: list[str] = field(default_factory=list)
    """Rows that should be there and are not; the first few, as text."""
    surplus: list[str] = field(default_factory=list)
    """Rows that should not be there: wrong, or there twice."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing is lost, doubled or wrong."""
        return not self.missing and not self.surplus


def compare_all(spark: SparkSession, paths: Paths) -> list[Comparison]:
    """Compare each leg in the sink, and the state of each aircraft in the backup."""
    spark.read.parquet(str(paths.flights)).createOrReplaceTempView("flights")
    expected = spark.sql(HISTORY_SQL).cache()
    delivered = _delivered(spark, paths.sink).select(expected.columns)
    histories = newest(expected)
    return [
        compare("legs in the sink", delivered, expected),
        compare("histories in the backup", backed_up(spark, paths, histories), histories),
    ]


def backed_up(spark: SparkSession, paths: Paths, shape: DataFrame) -> DataFrame:
    """Return the state as the newest commit has it, read from the backup alone."""
    rows = sk.read_state(settings(paths), "history").to_pylist()
    values = [(*row["key"].values(), *row["value"].values()) for row in rows]
    return spark.createDataFrame(values, shape.schema)


def newest(legs: DataFrame) -> DataFrame:
    """Return each aircraft's history after its last leg: what the state holds at the end."""
    return legs.sparkSession.sql(NEWEST_SQL.replace("FROM legs", "FROM {legs}"), legs=legs)


def compare(name: str, actual: DataFrame, expected: DataFrame) -> Comparison:
    """Compare two tables as bags: order is ignored, repetition is not."""
    both = expected.withColumn("side", lit(1)).unionByName(actual.withColumn("side", lit(-1)))
    balance = both.groupBy(expected.columns).agg(sum_("side").alias("side"))
    unequal = balance.where("side <> 0").limit(1000).collect()
    return Comparison(
        name,
        expected_rows=expected.count(),
        missing=[str(row) for row in unequal if row["side"] > 0][:SHOWN_ROWS],
        surplus=[str(row) for row in unequal if row["side"] < 0][:SHOWN_ROWS],
    )


def _delivered(spark: SparkSession, sink: Path) -> DataFrame:
    return spark.read.parquet(str(sink)).drop("batch")


def contradictions(events: list[Event]) -> list[int]:
    """Return the batches that were delivered twice with different content.

    The batch in flight at a crash may come twice, as with any Spark sink: then it must be the same.
    """
    seen: dict[int, tuple[int, int]] = {}
    found = []
    for event in events:
        if event["kind"] == "delivered":
            content = event["rows"], event["digest"]
            if seen.setdefault(event["batch"], content) != content:
                found.append(event["batch"])
    return found


def main(work: str, flights: str) -> None:
    """Print the comparisons."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights-check")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    comparisons = compare_all(spark, Paths(Path(work), Path(flights)))
    spark.stop()
    sys.stdout.write(json.dumps([dataclasses.asdict(one) for one in comparisons]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

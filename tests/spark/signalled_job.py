"""A driver for a test to end by a signal: one query that commits only when it ends."""

import sys
from pathlib import Path

from processors import OUTPUT, Count
from pyspark.sql import DataFrame

import statekeep as sk


def main(root: Path) -> None:
    """Run the stream below ``root``, say ``idle`` once it has no more rows, until a signal ends it."""
    builder = sk.session_builder("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")  # the default, but not of spark-submit
    frame = spark.readStream.schema("key string, v long").option("maxFilesPerTrigger", 1)

    def sink(output: DataFrame, batch: int) -> None:
        output.collect()

    settings = {
        "job.name": "counts",
        "job.logged.store.base.dir": str(root / "local"),
        "blob.store.uri": str(root / "backup"),
        "task.commit.ms": 0,
    }
    grouped = sk.grouped(frame.parquet(str(root / "in")).groupBy("key"), settings)
    counts = grouped.transformWithState(Count(), OUTPUT, "Append", "None")
    writer = counts.writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
    query.processAllAvailable()
    sys.stdout.write("idle\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

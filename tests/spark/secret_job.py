"""A driver for a test of secrets: one query with one in its settings, and one in its Spark conf."""

import sys
from pathlib import Path

from processors import OUTPUT, Count
from pyspark.sql import DataFrame

import statekeep as sk
from statekeep.spark.redaction import REDACTION_KEY


def main(root: Path, given: str, of_conf: str, pattern: str) -> None:
    """Run the stream below ``root`` to its end; every place that Spark writes to is below it too."""
    builder = sk.session_builder("local[2]").config("spark.ui.enabled", "false")
    for key, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (root / "events").as_uri(),
        "spark.local.dir": str(root / "scratch"),
        "spark.statekeep.blob.store.azure.proxy": f"http://me:{of_conf}@proxy",
        **({REDACTION_KEY: pattern} if pattern else {}),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()

    def sink(output: DataFrame, batch: int) -> None:
        output.collect()
        output.explain(mode="extended")

    settings = {
        "job.name": "counts",
        "job.logged.store.base.dir": str(root / "local"),
        "blob.store.uri": str(root / "backup"),
        "blob.store.s3.proxy": f"http://me:{given}@proxy",
        "task.commit.ms": 0,
    }
    frame = spark.readStream.schema("key string, v long").option("maxFilesPerTrigger", 1)
    grouped = sk.grouped(frame.parquet(str(root / "in")).groupBy("key"), settings)
    counts = grouped.transformWithState(Count(), OUTPUT, "Append", "None")
    writer = counts.writeStream.foreachBatch(sink).trigger(availableNow=True)
    writer.option("checkpointLocation", str(root / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""A stream of files with event times, one a batch, that runs through our runtime or Spark's own."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import statekeep as sk

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PLAIN_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # Spark starts a worker and a server for each partition and batch: one will do.
    "spark.sql.shuffle.partitions": "1",
}

Rows = Sequence[tuple[str, int]]
"""(key, seconds of the event time)"""
Group = Callable[[Any], Any]
"""From a grouped frame to what has the operator."""


@dataclass
class EventFiles:
    """One query, started as often as needed, and what it has delivered."""

    spark: SparkSession
    root: Path
    build: Callable[[DataFrame, Group], Any]
    """From the rows to the frame that is written; groups by what it is given."""
    is_ours: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    on_batch: Callable[[int], None] = lambda batch: None
    """Called by the sink before it takes a batch."""
    batches: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    """Of the columns that the newest batch had."""

    def add(self, *batches: Rows) -> None:
        directory = self.root / "in"
        directory.mkdir(exist_ok=True, parents=True)
        for rows in batches:
            number = len(list(directory.iterdir()))
            lines = [
                json.dumps({"key": key, "t": f"2024-01-01T00:{t // 60:02}:{t % 60:02}Z"})
                for key, t in rows
            ]
            partial = self.root / "partial"
            partial.write_text("\n".join(lines))
            os.utime(partial, (1_700_000_000 + number,) * 2)
            partial.rename(directory / f"{number:03}.json")

    def start(self, **trigger: Any) -> Any:
        frame = self.spark.readStream.schema("key string, t timestamp")
        rows = frame.option("maxFilesPerTrigger", 1).json(str(self.root / "in"))
        given = {
            "job.name": self.root.name,
            "job.logged.store.base.dir": str(self.root / "local"),
            "stores.backup.factories": "blob",
            "blob.store.uri": (self.root / "backups").as_uri(),
            "task.replay.on.divergence": "error",
        }
        group: Group = lambda data: data  # noqa: E731 - a type checker sees the other one
        if self.is_ours:
            group = lambda data: sk.grouped(data, given | self.settings)  # noqa: E731
        writer = self.build(rows, group).writeStream.foreachBatch(self._sink).outputMode("append")
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, *batches: Rows) -> Any:
        self.add(*batches)
        query = self.start()
        query.awaitTermination()
        return query

    def _sink(self, frame: DataFrame, batch: int) -> None:
        self.on_batch(batch)
        self.metadata = {c.name: c.metadata for c in frame.schema.fields if c.metadata}
        rows = sorted(tuple(row) for row in frame.collect())
        if rows:
            assert self.batches.setdefault(batch, rows) == rows

"""Sinks that programs for native Spark use: a table in memory, and a call for each row."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Rows, Stream
from pyspark.sql import Row

from statekeep.errors import ConfigError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]


class Files:
    """Writes the rows of each partition and batch to a file of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, partition: int, epoch: int) -> bool:
        self._file = (self._directory / f"{epoch}-{partition}").open("w")
        return True

    def process(self, row: Row) -> None:
        self._file.write(json.dumps(row.asDict()) + "\n")

    def close(self, error: Exception | None) -> None:
        self._file.close()
        if error is not None:
            raise error


def newest(rows: list[Any]) -> Rows:
    """The last row of each key; a key's numbers only grow."""
    return {row["key"]: (row["n"], row["s"]) for row in sorted(rows, key=lambda row: row["n"])}


def test_a_table_in_memory_has_each_batch_once(stream: Stream) -> None:
    stream.add_batches(3)
    writer = stream.stateful().filter("n > 0").writeStream.format("memory")
    with pytest.raises(ConfigError, match="memory sink has no name"):
        writer.start()
    query = writer.queryName("totals_in_memory").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = stream.spark.table("totals_in_memory").collect()
    assert newest(rows) == stream.expected(3)
    assert len(rows) == sum(len(stream.expected(1)) for _ in range(3))
    stream.spark.catalog.dropTempView("totals_in_memory")


def test_foreach_opens_and_closes_for_each_partition_and_batch(
    stream: Stream, tmp_path: Path
) -> None:
    stream.add_batches(2)
    out = tmp_path / "rows"
    out.mkdir()
    writer = stream.stateful().writeStream.foreach(Files(out)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(stream.location)).start().awaitTermination()
    written = sorted(out.iterdir())
    assert {path.name.partition("-")[0] for path in written} == {"0", "1"}
    rows = [json.loads(line) for path in written for line in path.read_text().splitlines()]
    assert newest(rows) == stream.expected(2)


def test_foreach_calls_a_function_for_each_row(stream: Stream, tmp_path: Path) -> None:
    stream.add_batches(1)
    out = tmp_path / "keys"
    out.mkdir()
    writer = stream.stateful().writeStream.foreach(lambda row: (out / row.key).touch())
    writer = writer.trigger(availableNow=True).option("checkpointLocation", str(stream.location))
    writer.start().awaitTermination()
    assert {path.name for path in out.iterdir()} == stream.expected(1).keys()

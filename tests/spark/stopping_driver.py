"""A driver that stops its query in the middle of a batch.

``python stopping_driver.py ROOT WHERE`` stops it in a Spark job of the ``sink`` or of the ``processor``,
and says ``ended`` if that went well.
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from conftest import Stream
from processors import Count
from pyspark.sql import DataFrame, Row
from spark_processes import wait_until
from typing_extensions import override

import statekeep as sk

LONG_S = 120


class Slow(Count):
    """Gets no further than its first key, and says so by a file."""

    def __init__(self, sign: Path) -> None:
        self._sign = sign

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
        dawdle(self._sign)
        yield from ()


def dawdle(sign: Path) -> None:
    sign.touch()
    threading.Event().wait(LONG_S)  # never set


def main(root: Path, where: str) -> None:
    builder = sk.session_builder("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    stream, sign = Stream(spark, root), root / "in-a-batch"
    stream.add_batches(1)

    def dawdle_over(rows: Iterable[Row]) -> Iterable[Row]:
        dawdle(sign)
        yield from rows

    def sink(frame: DataFrame, _batch: int) -> None:
        frame.rdd.mapPartitions(dawdle_over).collect()

    processor = Slow(sign) if where == "processor" else None
    writer = stream.stateful(processor, {"task.count": 1}).writeStream.foreachBatch(sink)
    query = writer.option("checkpointLocation", str(stream.location)).start()
    assert wait_until(sign.exists)
    query.stop()
    if query.exception() is None:
        sys.stdout.write("ended\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

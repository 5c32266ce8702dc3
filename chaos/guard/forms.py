"""The queries of the guard level, each with what it should deliver."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

_STREAMING: Final = "spark.sql.streaming"
_STORE: Final = f"{_STREAMING}.stateStore"
_PROVIDERS: Final = "org.apache.spark.sql.execution.streaming.state"
_HDFS: Final = {f"{_STORE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider"}
_ROCKSDB: Final = {f"{_STORE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider"}
_CHANGELOG: Final = {f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true"}
_FORMAT_2: Final = {f"{_STORE}.checkpointFormatVersion": "2"}
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    f"{_STREAMING}.noDataMicroBatches.enabled": "false",
    f"{_STREAMING}.minBatchesToRetain": "3",
    f"{_STORE}.minDeltasForSnapshot": "2",
    f"{_STORE}.maintenanceInterval": "300ms",
}
"""Files are deleted as soon as Spark allows, so that copies meet that."""
SCHEMA: Final = "key string, v long"

Row = tuple[str, int]
"""Of an input file."""
Delivered = Counter[tuple[object, ...]]


@dataclass(frozen=True)
class Form:
    """How a query keeps its state, what it does, and what its batches deliver."""

    settings: Mapping[str, str]
    operate: Callable[[DataFrame, DataFrame], DataFrame]
    mode: str
    columns: tuple[str, ...]
    expected: Callable[[Sequence[Row], Sequence[Row]], Delivered]
    """Given the rows of earlier batches and those of the batch."""


def _count(left: DataFrame, _: DataFrame) -> DataFrame:
    return left.groupBy("key").count()


def _counted(before: Sequence[Row], now: Sequence[Row]) -> Delivered:
    counts = Counter(key for key, _ in [*before, *now])
    return Counter((key, counts[key]) for key in {key for key, _ in now})


def _join(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.join(right.select("key", sf.col("v").alias("other")), "key")


def _joined(before: Sequence[Row], now: Sequence[Row]) -> Delivered:
    pairs = [(a, b) for a in [*before, *now] for b in now] + [(a, b) for a in now for b in before]
    return Counter((a[0], a[1], b[1]) for a, b in pairs if a[0] == b[0])


FORMS: Final[Mapping[str, Form]] = {
    "hdfs": Form(_HDFS, _count, "update", ("key", "count"), _counted),
    "rocksdb": Form(_ROCKSDB, _count, "update", ("key", "count"), _counted),
    "changelog": Form(_ROCKSDB | _CHANGELOG, _count, "update", ("key", "count"), _counted),
    "format 2": Form(
        _ROCKSDB | _CHANGELOG | _FORMAT_2, _count, "update", ("key", "count"), _counted
    ),
    "join": Form(
        _ROCKSDB | _CHANGELOG | _FORMAT_2, _join, "append", ("key", "v", "other"), _joined
    ),
}

_MOST_FILES: Final = 3
"""In a batch: one, and as many more as a source had logged when it was killed before its batch began."""


def files_read(
    form: Form, files: Sequence[Sequence[Row]], batches: Mapping[int, Delivered], begun: int = 0
) -> Mapping[int, int] | None:
    """Return how many files have been read after each batch; None: one delivered something else.

    A batch reads one file. Where Spark was killed after its source had logged a file and before the batch was
    written to ``offsets``, the next batch reads that one too.

    Args:
        form: Of the query.
        files: All, in their order.
        batches: What each batch delivered.
        begun: How many files had been read before the first one of these batches.
    """
    found: dict[int, int] = {}
    for number in sorted(batches):
        before = [row for file in files[:begun] for row in file]
        for count in range(1, _MOST_FILES + 1):
            now = [row for file in files[begun : begun + count] for row in file]
            if begun + count <= len(files) and form.expected(before, now) == batches[number]:
                begun += count
                found[number] = begun
                break
        else:
            return None
    return found

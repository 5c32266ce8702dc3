"""A streaming source like Kafka: partitions, offsets by partition, and retention that purges."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from typing_extensions import override

FLOOR = "floor"
"""Name of the file that holds the first offset which is not purged, of all partitions."""


class Range(InputPartition):
    """Offsets of one partition, the end not included."""

    def __init__(self, partition: str, start: int, end: int) -> None:
        super().__init__(None)
        self.partition = partition
        self.start = start
        self.end = end


def source_in(root: Path) -> type[DataSource]:
    """Return a data source for the log in ``root``: a file of a number a line for each partition.

    Made by a function, so that it travels to Spark's Python processes as a value.
    """

    class Reader(DataSourceStreamReader):
        @override
        def initialOffset(self) -> dict[str, int]:
            return dict.fromkeys(self._ends(), 0)

        @override
        def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
            return self._ends()

        @override
        def partitions(
            self, start: Mapping[str, int], end: Mapping[str, int]
        ) -> Sequence[InputPartition]:
            return [Range(name, start.get(name, 0), end[name]) for name in sorted(end)]

        @override
        def read(self, partition: InputPartition) -> Iterator[tuple[str, int]]:
            assert isinstance(partition, Range)
            floor = int((root / FLOOR).read_text()) if (root / FLOOR).exists() else 0
            if partition.start < floor < partition.end:
                msg = f"offsets are out of range: start={partition.start} earliest={floor}"
                raise ValueError(msg)
            lines = (root / partition.partition).read_text().split()
            for line in lines[partition.start : partition.end]:
                yield f"key-{int(line) % 7}", int(line)

        def _ends(self) -> dict[str, int]:
            logs = sorted(root.glob("[0-9]"))
            return {path.name: len(path.read_text().split()) for path in logs}

    class PartitionedLog(DataSource):
        @classmethod
        @override
        def name(cls) -> str:
            return "partitioned-log"

        @override
        def schema(self) -> str:
            return "key string, v long"

        @override
        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader()

    return PartitionedLog


def append(root: Path, numbers: Sequence[int]) -> None:
    """Append numbers to the log, in turn to its two partitions."""
    root.mkdir(exist_ok=True)
    for partition in (0, 1):
        path = root / str(partition)
        lines = [f"{number}\n" for number in numbers[partition::2]]
        path.write_text((path.read_text() if path.exists() else "") + "".join(lines))


def purge(root: Path, floor: int) -> None:
    """Purge what is below an offset, in each partition."""
    (root / FLOOR).write_text(str(floor))

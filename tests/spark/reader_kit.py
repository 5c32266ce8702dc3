"""A reader who runs what the README and the pages print, in a directory of their own, on Spark."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pages_kit import block
from processors import Totals
from pyspark.sql import DataFrame, SparkSession

import statekeep as sk
from statekeep.cli import app

START = block("README.md", "Use it", "python")
PRINT = block("docs/how-to/read-state.md", "Print it", "python")


class Reader:
    """A reader who runs what the README prints, in a directory of their own."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.delivered: dict[int, dict[int, int]] = {}
        self.expected: dict[int, int] = {}
        self.names: dict[str, Any] = {
            "sk": sk,
            "Totals": Totals,
            "schema": "id long, total long",
            "write": self.write,
            "path": str(directory / "checkpoint"),
        }
        (directory / "in").mkdir()
        reader = spark.readStream.schema("id long, v long")
        self.names["df"] = reader.option("maxFilesPerTrigger", 1).parquet(str(directory / "in"))

    def write(self, frame: DataFrame, batch: int) -> None:
        assert batch not in self.delivered
        self.delivered[batch] = {row.id: row.total for row in frame.collect()}

    def add_batch(self) -> None:
        number = len(list((self.directory / "in").iterdir()))
        rows = {"id": [0, 1, 2, number + 3], "v": [1, 10, 100, number]}
        pq.write_table(pa.table(rows), self.directory / "in" / f"{number:03d}.parquet")
        for key, value in zip(*rows.values(), strict=True):
            self.expected[key] = self.expected.get(key, 0) + value

    def run(self, program: str) -> Any:
        """Run a program of the README with the places of this machine; return its names."""
        for there, here in {
            "/mnt/disk/statekeep": f"{self.directory}/local",
            "file:///mnt/shared/state": f"file://{self.directory}/near",
            "s3://bucket/state": f"file://{self.directory}/far",
            "file:///mnt/checkpoints": f"file://{self.directory}/checkpoints",
        }.items():
            program = program.replace(there, here)
        exec(compile(program, "README.md", "exec"), self.names)  # noqa: S102
        return self.names

    def process(self, program: str) -> None:
        """Run a program that starts the query on one more batch, and stop the query after it."""
        self.add_batch()
        batch = len(self.delivered)
        query = self.run(program)["query"]
        query.processAllAvailable()
        query.stop()
        assert list(self.delivered) == list(range(batch + 1))
        received = {key: total for rows in self.delivered.values() for key, total in rows.items()}
        assert received == self.expected

    def state(self, capsys: pytest.CaptureFixture[str]) -> dict[int, int]:
        """Return what the README's program prints of the state, read back as numbers."""
        self.run(PRINT)
        lines = capsys.readouterr().out.splitlines()
        return {int(key): int(total) for key, total in map(str.split, lines)}

    def write_properties(self) -> None:
        lines = [f"{key}={value}\n" for key, value in self.names["settings"].items()]
        (self.directory / "job.properties").write_text("".join(lines))


def run_command(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    words = shlex.split(line)
    assert words[0] == "statekeep"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as exit_info:
        app.main()
    captured = capsys.readouterr()
    assert exit_info.value.code == 0, (line, captured)
    return captured.out

"""The directories and files of one run of the demo."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The directories of one run; the jobs before and after the crash share them."""

    work: Path
    """New for each run of the demo."""
    flights: Path
    """The input: one Parquet file per micro-batch."""

    @property
    def checkpoint(self) -> Path:
        """The query's checkpoint location."""
        return self.work / "checkpoint"

    @property
    def backup(self) -> Path:
        """Where the state is backed up to; survives the crash."""
        return self.work / "backup"

    @property
    def local(self) -> Path:
        """Where the tasks keep their state; deleted after the crash."""
        return self.work / "local"

    @property
    def sink(self) -> Path:
        """What the user's sink wrote: one directory per batch."""
        return self.work / "sink"

    @property
    def events(self) -> Path:
        """What the jobs say of themselves: JSON lines."""
        return self.work / "events.jsonl"

    def log(self, name: str) -> Path:
        """Output of Spark in one of the processes."""
        return self.work / f"{name}.log"

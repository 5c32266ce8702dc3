"""Where everything of one schedule lies."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of one schedule; all runs of its job share them."""

    root: Path

    @property
    def input(self) -> Path:
        """Files of the source, one a batch."""
        return self.root / "input"

    @property
    def checkpoint(self) -> Path:
        """The query's checkpoint location."""
        return self.root / "checkpoint"

    @property
    def local(self) -> Path:
        """Where the tasks keep their state."""
        return self.root / "local"

    @property
    def sink(self) -> Path:
        """One file a delivery, in the order of their names."""
        return self.root / "sink"

    @property
    def claims(self) -> Path:
        """Which faults have struck."""
        return self.root / "claims"

    @property
    def reached(self) -> Path:
        """One empty file for each fault point that any process reached."""
        return self.root / "reached"

    @property
    def profile(self) -> Path:
        """What calls to places meet now, if they are not as they should be."""
        return self.root / "fault-profiles.json"

    @property
    def log_history(self) -> Path:
        """Every record of the job log that was ever seen, by position, also once it is trimmed."""
        return self.root / "log-history"

    @property
    def backups(self) -> Path:
        """Where backends on files keep everything."""
        return self.root / "backup"

    def backup(self, backend: str) -> Path:
        """Where a backend on files keeps everything."""
        return self.backups / backend

    def prepare(self) -> None:
        """Make the directories that the job expects or the watcher reads."""
        for directory in (self.input, self.sink, self.claims, self.reached, self.log_history):
            directory.mkdir(parents=True, exist_ok=True)

"""Looks at a running job from outside, again and again, and keeps what a later look would miss."""

import os
import re
from pathlib import Path
from typing import Any

from chaos.spark.frames import read_frame
from chaos.spark.places import Places


class Watch:
    """Keeps every record of the job log, and compares the log with the checkpoint location."""

    def __init__(self, places: Places, log: Path, *, is_every_batch: bool) -> None:
        self._places = places
        self._log = log
        self._ahead = 1 if is_every_batch else 0
        self.failures: list[str] = []

    def look(self, *, is_location_whole: bool) -> None:
        """Take one look. Cheap: two directories and the new records.

        Args:
            is_location_whole: Whether the checkpoint location holds all that Spark ever wrote.
        """
        committed = _numbers(self._places.checkpoint / "commits")
        new = self._keep_new_records()
        if not is_location_whole:
            return
        self._check_recorded(committed)
        newest = max(_numbers(self._places.checkpoint / "commits"), default=-1)
        for position, record in new:
            if record["type"] == "commit" and record["batch"] > newest + self._ahead:
                self.failures.append(
                    f"03: commit record of batch {record['batch']} at {position},"
                    f" but commits/ ends at {newest}"
                )

    def _keep_new_records(self) -> list[tuple[int, dict[str, Any]]]:
        known = {path.name for path in self._places.log_history.iterdir()}
        new: list[tuple[int, dict[str, Any]]] = []
        for path in sorted(self._log.glob("*.json")) if self._log.exists() else []:
            if path.name in known:
                continue
            try:
                os.link(path, self._places.log_history / path.name)
            except FileNotFoundError:
                continue  # trimmed at this moment
            new.append((int(path.stem), read_frame(self._places.log_history / path.name)))
        return new

    def _check_recorded(self, committed: set[int]) -> None:
        """What Spark takes for delivered is on record outside the location (04)."""
        newest = max(committed, default=-1)
        if newest < 0:
            return
        records = history(self._places)
        known = {record["batch"] for _, record in records if record["type"] in {"batch", "commit"}}
        if newest not in known:
            self.failures.append(f"04: commits/{newest} is there, but no record of that batch")


def history(places: Places) -> list[tuple[int, dict[str, Any]]]:
    """Return every record that was ever seen, in the order of positions."""
    paths = sorted(places.log_history.glob("*.json"))
    return [(int(path.stem), read_frame(path)) for path in paths]


def _numbers(directory: Path) -> set[int]:
    names = [path.name for path in directory.iterdir()] if directory.exists() else []
    return {int(name) for name in names if re.fullmatch(r"\d+", name)}

"""What the jobs tell the supervisor: JSON lines in one file, which a SIGKILL may cut short."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]
"""``kind``, ``at`` (monotonic seconds: one clock for all processes of the machine), figures."""


class EventLog:
    """Appends events; one write call each, so that they appear whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, kind: str, **figures: object) -> None:
        """Append one event."""
        line = json.dumps({"kind": kind, "at": time.monotonic(), **figures}, default=str)
        with self._path.open("ab", buffering=0) as file:
            file.write(line.encode() + b"\n")


class EventReader:
    """Reads what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Event]:
        """Return the new events that are whole."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

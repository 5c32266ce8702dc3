"""Looks at a running job from outside, repeatedly, and keeps what a later look would miss."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.evidence.logs import LogEvidence
from chaos.evidence.snapshots import Attempt
from chaos.spark.frames import DamagedFrameError, read_frame
from chaos.spark.ledger import Ledger
from chaos.spark.log_story import LogStory
from chaos.spark.places import Places

_LEDGER_PERIOD_S = 0.1


class Watch:
    """Keeps every record of the job log, and compares the log with the checkpoint location."""

    def __init__(
        self,
        places: Places,
        log: LogEvidence,
        ledgers: Sequence[Ledger],
        *,
        is_every_batch: bool,
        period_s: float = 0.0,
    ) -> None:
        """Take where to look.

        Args:
            places: Of the schedule.
            log: The job log.
            ledgers: The accounts of the places that have files.
            is_every_batch: Whether a batch is committed before Spark takes it for done.
            period_s: Looks that follow sooner than this are left out: servers take their time.
        """
        self._places = places
        self._log = log
        self._ledgers = ledgers
        self._ahead = 1 if is_every_batch else 0
        self._period_s = period_s
        self._next_look_s = 0.0
        self._next_ledger_s = 0.0
        self.damaged: set[int] = set()
        """Positions of records that were changed on purpose."""
        self.failures: list[str] = []

    @property
    def deleted(self) -> int:
        """How many blobs were seen to go."""
        return sum(ledger.deleted for ledger in self._ledgers)

    def poll(self, *, is_location_whole: bool, is_last: bool = False) -> None:
        """Take one look if it is due. Cheap: some directories and the new records.

        Args:
            is_location_whole: Whether the checkpoint location holds all that Spark ever wrote.
            is_last: Look whether it is due or not.
        """
        now = time.monotonic()
        if now < self._next_look_s and not is_last:
            return
        self._next_look_s = now + self._period_s
        committed = _numbers(self._places.checkpoint / "commits")
        gone = self._gone()
        new = self._keep_new_records()
        if any(gone):
            story = LogStory().fold(history(self._places))
            for ledger, names in zip(self._ledgers, gone, strict=False):
                self.failures += ledger.check(names, story)
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

    def check_one_winner(self) -> None:
        """Hold every record that counts against what was first seen at its position (02).

        A driver that was fenced long ago may write anew what was trimmed, below the floor.
        """
        records = self._log.records()
        floor = self._log.floor()
        for position, data in records.items():
            if position < floor:
                continue
            path = self._kept(position)
            if path.exists() and position not in self.damaged and path.read_bytes() != data:
                self.failures.append(f"02: another record stands at {position}")

    def check_unbroken(self) -> None:
        """Find out whether a record was trimmed between two looks: then nothing can be judged."""
        known = {position for position, _ in history(self._places)}
        if missed := set(range(max(known, default=-1) + 1)) - known:
            self.failures.append(f"00: records of the log that the watch missed: {sorted(missed)}")

    def _gone(self) -> list[Mapping[str, Attempt]]:
        now = time.monotonic()
        if now < self._next_ledger_s:
            return []
        self._next_ledger_s = now + _LEDGER_PERIOD_S
        return [ledger.gone() for ledger in self._ledgers]

    def _keep_new_records(self) -> list[tuple[int, dict[str, Any]]]:
        known = {int(path.stem) for path in self._places.log_history.iterdir()}
        new: list[tuple[int, dict[str, Any]]] = []
        for position, data in sorted(self._log.records(known).items()):
            path = self._kept(position)
            path.write_bytes(data)
            try:
                new.append((position, read_frame(path)))
            except DamagedFrameError as exc:
                self.failures.append(f"01: {exc}")
        return new

    def _kept(self, position: int) -> Path:
        return self._places.log_history / f"{position:020d}.json"

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

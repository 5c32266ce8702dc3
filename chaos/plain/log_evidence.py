"""What the log of a task says, read by the verifier's own means.

Shares no code with the runtime: the bytes are taken apart as ``docs/reference/formats.md`` describes them,
and what they add up to is found out anew, rule by rule.
"""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.evidence.logs import LogEvidence

_HEADER: Final = re.compile(rb"statekeep 1 ([a-z-]+) ([0-9a-f]{8}) ([0-9]+)\n")

Attempt = tuple[int, int]
"""(epoch, number)."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit record that counts."""

    position: int
    epoch: int
    attempt: Attempt
    checkpoint_id: str
    offset: int
    """Number of the last record that the state has taken in; -1 in the empty commit."""
    version: str
    markers: Mapping[str, Mapping[str, str]]
    """``{backend: {store: marker}}``"""
    stores: tuple[str, ...]
    base: "Commit | None" = field(repr=False)
    """The commit that was the newest when the attempt began."""


@dataclass(slots=True)
class TaskHistory:
    """What one log adds up to.

    Attributes:
        problems: Invariants that the log breaks, by number, and how.
    """

    task: str
    commits: list[Commit] = field(default_factory=list[Commit])
    released: set[int] = field(default_factory=set[int])
    aborted: set[Attempt] = field(default_factory=set[Attempt])
    open: dict[Attempt, "Commit | None"] = field(default_factory=dict)
    sessions: dict[int, "Commit | None"] = field(default_factory=dict)
    """The commit that each epoch started from."""
    bad_markers: set[tuple[str, str, str]] = field(default_factory=set)
    """(backend, store, marker)"""
    problems: list[tuple[int, str]] = field(default_factory=list)
    floor: int = 0
    _epoch: int = 0
    _nonces: set[str] = field(default_factory=set[str])

    @property
    def newest(self) -> Commit | None:
        """The current commit."""
        return self.commits[-1] if self.commits else None

    @property
    def retained(self) -> list[Commit]:
        """The commits that are not released and hold state, oldest first."""
        return [c for c in self.commits if c.position not in self.released and c.version]

    @property
    def ended(self) -> set[Attempt]:
        """The attempts that are aborted or committed."""
        return self.aborted | {commit.attempt for commit in self.commits}

    def fold(self, position: int, record: Mapping[str, Any]) -> None:
        """Take in the next record.

        Raises:
            ValueError: Its kind is unknown.
        """
        kind, epoch = record["type"], record["epoch"]
        if epoch < self._epoch or (kind == "epoch" and epoch == self._epoch):
            self._say(1, f"record of epoch {epoch} at {position} after epoch {self._epoch}")
        self._epoch = max(epoch, self._epoch)
        if record["nonce"] in self._nonces:
            self._say(2, f"the record at {position} stands in the log twice")
        self._nonces.add(record["nonce"])
        match kind:
            case "base":
                self._fold_base(position, record)
            case "attempt":
                self._fold_attempt(position, record)
            case "commit":
                self._fold_commit(position, record)
            case "void":  # the stored name of an abort record
                self._fold_abort(record)
            case "release":
                self._fold_release(position, record)
            case "bad-marker":
                self._fold_bad_marker(record)
            case "epoch" | "batch" | "pin" | "unpin" | "kept" | "moved":
                pass  # nothing that is checked here
            case _:
                raise ValueError(f"no such kind of record: {kind} position={position}")

    def _fold_base(self, position: int, record: Mapping[str, Any]) -> None:
        for attempt in [a for a in self.open if a[0] < record["epoch"]]:
            del self.open[attempt]
            self.aborted.add(attempt)
        self.sessions[record["epoch"]] = self.newest
        if self.newest is not None and record["commit-position"] != self.newest.position:
            self._say(1, f"the base at {position} is not the newest commit")

    def _fold_attempt(self, position: int, record: Mapping[str, Any]) -> None:
        if self.open:
            self._say(12, f"attempt at {position} while {sorted(self.open)} is open")
        self.open[record["epoch"], record["attempt"]] = self.newest

    def _fold_commit(self, position: int, record: Mapping[str, Any]) -> None:
        attempt = (record["attempt-epoch"], record["attempt"])
        is_empty = record["batch"] == -1
        if attempt in self.aborted:
            self._say(12, f"aborted attempt {attempt} is committed at {position}")
            return
        if attempt not in self.open and not is_empty and not self.floor:
            self._say(12, f"commit at {position} of attempt {attempt}, which is not open")
        base = self.open.pop(attempt, None)
        checkpoint = record.get("checkpoints", {}).get(self.task, {})
        offsets = checkpoint.get("input-offsets", {})
        commit = Commit(
            position=position,
            epoch=record["epoch"],
            attempt=attempt,
            checkpoint_id=record["checkpoint-id"],
            offset=int(next(iter(offsets.values()), "-1")),
            version=record.get("versions", {}).get(self.task, ""),
            markers=checkpoint.get("state-checkpoint-markers", {}),
            stores=tuple(record["identity"]["stores"]["main"]),
            base=base,
        )
        if is_empty:
            self.sessions[record["epoch"]] = commit
        self.commits.append(commit)

    def _fold_abort(self, record: Mapping[str, Any]) -> None:
        attempt = (record["attempt-epoch"], record["attempt"])
        if all(commit.attempt != attempt for commit in self.commits):
            self.aborted.add(attempt)
        self.open.pop(attempt, None)

    def _fold_release(self, position: int, record: Mapping[str, Any]) -> None:
        newest = self.newest
        if newest is not None and newest.position in record["positions"]:
            self._say(14, f"the release at {position} releases the newest commit")
        self.released.update(record["positions"])

    def _fold_bad_marker(self, record: Mapping[str, Any]) -> None:
        self.bad_markers.add((record["backend"], record["store"], record["marker"]))

    def _say(self, invariant: int, text: str) -> None:
        self.problems.append((invariant, f"{self.task}: {text}"))


def read_history(log: LogEvidence, task: str) -> TaskHistory:
    """Read the log of a task.

    Raises:
        ValueError: A record is damaged, or of an unknown kind.
    """
    history = TaskHistory(task)
    history.floor = expected = log.floor()
    for position, data in sorted(log.records().items()):
        if position < history.floor:
            continue
        if position != expected:
            history.problems.append((1, f"{task}: no record at {expected}"))
        expected = position + 1
        history.fold(position, read_frame(data, f"{task} {position}"))
    return history


def read_frame(data: bytes, where: str) -> Mapping[str, Any]:
    """Return the payload of a frame, checked."""
    header = _HEADER.match(data)
    if header is None:
        raise ValueError(f"no frame: {where}")
    payload = data[header.end() :]
    crc = zlib.crc32(payload, zlib.crc32(header[1]))
    if len(payload) != int(header[3]) or crc != int(header[2], 16):
        raise ValueError(f"damaged frame: {where}")
    return dict(json.loads(payload))

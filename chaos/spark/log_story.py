"""What the job log tells when it is read from its first record on, by the formats page alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Key = tuple[int, int]
"""Epoch and number of an attempt."""


@dataclass
class LogStory:
    """The log, folded record by record; `failures` says what it should never hold."""

    commits: dict[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    """By position, released ones included."""
    released: set[int] = field(default_factory=set[int])
    batches: dict[int, list[Mapping[str, Any]]] = field(
        default_factory=dict[int, list[Mapping[str, Any]]]
    )
    """Every record of each batch, oldest first."""
    epoch: int = 0
    base_epoch: int = 0
    """Of the newest base record."""
    head: int = -1
    open: set[Key] = field(default_factory=set[Key])
    aborted: set[Key] = field(default_factory=set[Key])
    attempts: dict[Key, Mapping[str, Any]] = field(default_factory=dict[Key, Mapping[str, Any]])
    bad_markers: set[str] = field(default_factory=set[str])
    nonces: set[str] = field(default_factory=set[str])
    failures: list[str] = field(default_factory=list[str])

    def fold(self, records: Sequence[tuple[int, Mapping[str, Any]]]) -> "LogStory":
        """Take in the whole log, in the order of positions."""
        positions = [position for position, _ in records]
        if positions and positions != list(range(positions[0], positions[-1] + 1)):
            self.failures.append(f"01: positions have gaps: {positions}")
        for position, record in records:
            self._take(position, record)
        return self

    @property
    def retained(self) -> dict[int, Mapping[str, Any]]:
        """The commits that are not released, by position, without the empty one."""
        return {
            position: commit
            for position, commit in self.commits.items()
            if position not in self.released and commit["batch"] >= 0
        }

    @property
    def last_commit(self) -> Mapping[str, Any] | None:
        """The newest commit."""
        return self.commits[max(self.commits)] if self.commits else None

    @property
    def checkpoint_ids(self) -> set[str]:
        """The ids of all commits, released ones included."""
        return {commit["checkpoint-id"] for commit in self.commits.values()}

    def is_closed(self, attempt: Key) -> bool:
        """Whether what an attempt made may be deleted: it is aborted, or its commit is released.

        A driver that slept may have written its attempt where the log is trimmed by now. A base record
        of a newer epoch has aborted that one, too.
        """
        committed = {
            position
            for position, commit in self.commits.items()
            if (commit["attempt-epoch"], commit["attempt"]) == attempt
        }
        if not committed:
            return attempt in self.aborted or attempt[0] < self.base_epoch
        return committed <= self.released

    @property
    def newest_closed(self) -> Key:
        """The newest attempt of which `is_closed` is true."""
        return max(filter(self.is_closed, self.attempts), default=(0, 0))

    def markers(self, attempt: Key, place: str) -> set[str]:
        """Return what the commit of an attempt names in a place; empty: there is no such commit."""
        return {
            marker
            for commit in self.commits.values()
            if (commit["attempt-epoch"], commit["attempt"]) == attempt
            for checkpoint in commit.get("checkpoints", {}).values()
            for marker in checkpoint["state-checkpoint-markers"].get(place, {}).values()
        }

    def _take(self, position: int, record: Mapping[str, Any]) -> None:
        # A put that landed and answered an error is won: its writer must not append it again.
        if record["nonce"] in self.nonces:
            self.failures.append(f"02: the record at {position} stands in the log twice")
        self.nonces.add(record["nonce"])
        if record["epoch"] < self.epoch:
            self.failures.append(f"01: epoch goes back at {position}")
        self.epoch = max(self.epoch, record["epoch"])
        match record["type"]:
            case "base":
                self.aborted |= {key for key in self.open if key[0] < record["epoch"]}
                self.open -= self.aborted
                self.base_epoch, self.head = record["epoch"], record["head"]
            case "batch":
                self._take_batch(position, record)
            case "attempt":
                self._take_attempt(position, record)
            case "commit":
                self._take_commit(position, record)
            case "void":  # the stored name of an abort record
                key = (record["attempt-epoch"], record["attempt"])
                self.open.discard(key)
                self.aborted.add(key)
            case "release":
                self.released |= set(record["positions"])
            case "bad-marker":
                self.bad_markers.add(record["marker"])
            case "epoch" | "pin" | "unpin" | "kept" | "moved":
                pass  # nothing that is checked here
            case _:
                raise ValueError(f"no such kind of record: {record['type']} position={position}")

    def _take_batch(self, position: int, record: Mapping[str, Any]) -> None:
        batch = record["batch"]
        if batch > self.head + 1:
            self.failures.append(f"09: batch {batch} at {position} after head {self.head}")
        self.head = max(self.head, batch)
        earlier = self.batches.setdefault(batch, [])
        if earlier:
            self._compare(earlier[-1], record, position)
        earlier.append(record)

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any], position: int) -> None:
        """A batch that runs again has the same boundaries, input, output and changes (07, 11)."""
        if before["offsets"] != now["offsets"]:
            self.failures.append(f"07: batch {now['batch']} at {position} has other boundaries")
        if before.get("tasks", {}).keys() != now.get("tasks", {}).keys():
            return  # of another number of tasks: the output of both is compared by the sink
        for task in before.get("tasks", {}):
            for name in ("rows-in", "input-digest", "output-digest", "changes-digest"):
                was, is_now = (r["tasks"][task].get(name) for r in (before, now))
                if was and is_now and was != is_now:
                    self.failures.append(f"11: {name} differs: batch {now['batch']} {task}")

    def _take_attempt(self, position: int, record: Mapping[str, Any]) -> None:
        key = (record["epoch"], record["attempt"])
        if any(other[0] == key[0] for other in self.open):
            self.failures.append(f"12: attempt {key} at {position} beside {sorted(self.open)}")
        self.open.add(key)
        self.attempts[key] = record

    def _take_commit(self, position: int, record: Mapping[str, Any]) -> None:
        key = (record["attempt-epoch"], record["attempt"])
        if record["batch"] >= 0 and key in self.aborted:
            self.failures.append(f"12: commit of the aborted attempt {key} at {position}")
            return
        newest = self.last_commit
        if newest is not None and record["batch"] < newest["batch"]:
            self.failures.append(f"01: an older batch is committed at {position}")
        self.open.discard(key)
        self.commits[position] = record

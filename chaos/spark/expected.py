"""What state and output must be: a fold over the input, batch by batch."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.spark.tally import KEYS, LIVE_MS, RESIDUES, RING_MS

Output = tuple[str, int, int, int | None]
Entry = tuple[str, str, int]
"""Variable, grouping key, and the map's key or the timer's time; 0 where there is neither."""
Held = dict[Entry, tuple[int, ...]]
"""An operator's state. A value that lives for some time has its end in the last place."""
TIMERS = "timers"
RECENT = "recent"


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a batch, as Spark recorded them before it ran."""

    processing_ms: int
    watermark_ms: int
    late_ms: int
    """The watermark of the batch before: rows that are not newer are dropped in event time."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A row on its way into an operator."""

    key: str
    v: int
    t_ms: int


@dataclass
class Operator:
    """One operator's state after some batches."""

    mode: str
    held: Held = field(default_factory=dict[Entry, tuple[int, ...]])

    def fold(self, rows: Iterable[Taken], times: Times) -> list[tuple[Output, int]]:
        """Take in one batch; return its output, each row with its event time."""
        if self.mode == "EventTime":
            rows = [row for row in rows if row.t_ms > times.late_ms]
        keys: set[str] = set()
        for row in sorted(rows, key=lambda row: (row.v, row.t_ms)):
            keys.add(row.key)
            n, total = self.held.get(("total", row.key, 0), (0, 0))
            self.held["total", row.key, 0] = (n + 1, total + row.v)
            self._take(row, times)
        found: list[tuple[Output, int]] = []
        for key in keys:
            n, total = self.held["total", key, 0]
            found.append(self._row(key, n, total, times))
        return found + self._ring(times)

    def _take(self, row: Taken, times: Times) -> None:
        now_ms, residue = times.processing_ms, row.v % RESIDUES
        (n,) = self.held.get(("residues", row.key, residue), (0,))
        self.held["residues", row.key, residue] = (n + 1,)
        if self.mode == "ProcessingTime":
            n, end_ms = self.held.get((RECENT, row.key, residue), (0, 0))
            self.held[RECENT, row.key, residue] = (
                n + 1 if end_ms > now_ms else 1,
                now_ms + LIVE_MS,
            )
        if self.mode == "None":
            return
        if row.v % 7 == 0:
            for entry in [e for e in self.held if e[:2] == (TIMERS, row.key)]:
                del self.held[entry]
        is_event = self.mode == "EventTime"
        ring_ms = row.t_ms + RING_MS if is_event else now_ms + 400 * (row.v % 4)
        self.held[TIMERS, row.key, ring_ms] = ()

    def _ring(self, times: Times) -> list[tuple[Output, int]]:
        """Fire what is due; what is registered meanwhile waits for the next batch."""
        now_ms = times.watermark_ms if self.mode == "EventTime" else times.processing_ms
        due = [(t, key) for name, key, t in self.held if name == TIMERS and t <= now_ms]
        found: list[tuple[Output, int]] = []
        for ring_ms, key in sorted(due):
            del self.held[TIMERS, key, ring_ms]
            n, _ = self.held.get(("rung", key, 0), (0, 0))
            self.held["rung", key, 0] = (n + 1, ring_ms)
            if ring_ms % 7 == 0:
                self.held[TIMERS, key, ring_ms + 701] = ()
            found.append(self._row(key, -n - 1, ring_ms, times))
        return found

    def _row(self, key: str, n: int, total: int, times: Times) -> tuple[Output, int]:
        recent = None
        if self.mode == "ProcessingTime":
            counts = [self.held.get((RECENT, key, residue), (0, 0)) for residue in range(RESIDUES)]
            recent = sum(count for count, end_ms in counts if end_ms > times.processing_ms)
        return (key, n, total, recent), times.watermark_ms + 1000 * (1 + n % 5)


class Expected:
    """The job's state after some batches."""

    def __init__(self, modes: Sequence[str]) -> None:
        """Begin without any.

        Args:
            modes: The time modes of the operators, in their order.
        """
        self._operators = [Operator(mode) for mode in modes]
        self._now_ms = 0

    def fold(self, rows: Sequence[tuple[str, int]], times: Times) -> list[Output]:
        """Take in one batch; return what the last operator puts out, sorted."""
        self._now_ms = times.processing_ms
        taken = [Taken(key, v, 1000 * (1000 + v - (12 if v % 9 == 0 else 0))) for key, v in rows]
        output: list[tuple[Output, int]] = []
        for operator in self._operators:
            output = operator.fold(taken, times)
            taken = [
                Taken(f"half-{n % 7}", (n * 31 + total) % 1000, at_ms)
                for (_, n, total, _), at_ms in output
            ]
        return sorted((row for row, _ in output), key=str)

    @property
    def state(self) -> list[Held]:
        """The state of each operator as it is now, without what has ended."""
        return [live(operator.held, self._now_ms) for operator in self._operators]

    @property
    def now_ms(self) -> int:
        """The processing time of the newest batch."""
        return self._now_ms


def live(held: Held, now_ms: int) -> Held:
    """Return a state without what has ended: a later batch may or may not have removed that."""
    return {e: value for e, value in held.items() if e[0] != RECENT or value[-1] > now_ms}


def times_of(before: str | None, offsets: str) -> Times:
    """Return the times of a batch, from its ``offsets`` and those of the batch before, if any."""
    now = json.loads(offsets.split("\n")[1])
    late_ms = 0 if before is None else json.loads(before.split("\n")[1])["batchWatermarkMs"]
    return Times(now["batchTimestampMs"], now["batchWatermarkMs"], late_ms)


def rows_between(
    before: str | None, offsets: str, source: str, files: Mapping[int, Sequence[Path]]
) -> list[tuple[str, int]]:
    """Return the rows of a batch, from what the query's ``offsets`` say of it.

    Args:
        before: Text of the offsets of the batch before; None for the first batch.
        offsets: Text of the batch's own.
        source: ``file`` or ``rate``.
        files: ``{log offset: files}`` of the file source.
    """
    if source == "rate":
        first = 0 if before is None else _source_offset(before)["offset"]
        numbers = range(first, _source_offset(offsets)["offset"])
        return [(f"key-{number * 7919 % KEYS}", number) for number in numbers]
    first = 0 if before is None else _source_offset(before)["logOffset"] + 1
    entries = range(first, _source_offset(offsets)["logOffset"] + 1)
    return [row for entry in entries for path in files[entry] for row in rows_of(path)]


def rows_of(path: Path) -> list[tuple[str, int]]:
    """Return the rows of one input file."""
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    return [(document["key"], document["v"]) for document in documents]


def _source_offset(offsets: str) -> dict[str, int]:
    """Return the offset of the first source, which is the input: the third line of Spark's file."""
    found: dict[str, int] = json.loads(offsets.split("\n")[2])
    return found

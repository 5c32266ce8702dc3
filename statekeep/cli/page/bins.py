"""Any number of commits as a bounded number of points in time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.inspection.history import ABORTED, COMMITTED, PHASES, Attempt

MOST_BINS: Final = 120
"""Eight pixels each on a page; a few more than the commits of a short run need."""

_S: Final = 1000
_MIN: Final = 60 * _S
_H: Final = 60 * _MIN
_DAY: Final = 24 * _H
_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, _S, 2 * _S, 5 * _S, 10 * _S, 15 * _S, 30 * _S),
    *(_MIN, 2 * _MIN, 5 * _MIN, 10 * _MIN, 15 * _MIN, 30 * _MIN),
    *(_H, 2 * _H, 3 * _H, 6 * _H, 12 * _H, _DAY, 2 * _DAY, 7 * _DAY),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """Equal steps of time."""

    first_ms: int
    """A multiple of the step."""
    step_ms: int
    count: int

    @classmethod
    def over(cls, times_ms: Iterable[int], most: int = MOST_BINS) -> "Axis":
        """Return the axis with the smallest usual step that covers all times by ``most`` steps."""
        times = list(times_ms)
        first, last = min(times, default=0), max(times, default=0)
        weeks = 7 * _DAY
        longer = (weeks * n for n in range(2, (last - first) // (weeks * (most - 1)) + 3))
        for step in (*_STEPS_MS, *longer):
            count = last // step - first // step + 1
            if count <= most:
                return cls(first // step * step, step, count)
        raise AssertionError

    def bin_of(self, time_ms: int) -> int:
        """Return the number of the step that a time lies in."""
        return (time_ms - self.first_ms) // self.step_ms

    def begin_of(self, number: int) -> int:
        """Return when a step begins."""
        return self.first_ms + number * self.step_ms


@dataclass(frozen=True, slots=True)
class Bin:
    """What happened to commits in one step of time. None: nothing of it is on record."""

    begin_ms: int
    committed: int
    aborted: int
    skipped: int
    phases: dict[str, float]
    """Mean milliseconds of the commits that tell."""
    slowest_ms: float | None
    """Of all commits."""
    blocked_ms: float
    bytes_uploaded: int | None
    changed_bytes: int | None
    state_bytes: int | None
    """At the end."""
    by_backend: dict[str, float]
    """Mean milliseconds of the slowest task of each commit."""
    rows_in: int


def binned(attempts: Sequence[Attempt], axis: Axis) -> list[Bin]:
    """Return a bin for each step of the axis, also where nothing happened."""
    found: list[list[Attempt]] = [[] for _ in range(axis.count)]
    for attempt in attempts:
        if attempt.time_ms is not None:
            found[axis.bin_of(attempt.time_ms)].append(attempt)
    return [_bin(axis.begin_of(number), part) for number, part in enumerate(found)]


def _bin(begin_ms: int, attempts: Sequence[Attempt]) -> Bin:
    commits = [attempt for attempt in attempts if attempt.outcome == COMMITTED]
    backends = dict.fromkeys(name for commit in commits for name in commit.uploads)
    return Bin(
        begin_ms=begin_ms,
        committed=len(commits),
        aborted=sum(attempt.outcome == ABORTED for attempt in attempts),
        skipped=sum(commit.skipped for commit in commits),
        phases={
            phase: value
            for phase in PHASES
            if (value := _mean(c.phases[phase] for c in commits if phase in c.phases)) is not None
        },
        slowest_ms=max((c.elapsed_ms for c in commits if c.elapsed_ms is not None), default=None),
        blocked_ms=sum(commit.blocked_ms for commit in commits),
        bytes_uploaded=_sum(commits, lambda commit: commit.bytes_uploaded),
        changed_bytes=_sum(commits, lambda commit: commit.changed_bytes),
        state_bytes=next((c.state_bytes for c in reversed(commits) if c.state_bytes), None),
        by_backend={
            name: mean
            for name in backends
            if (mean := _mean(c.uploads[name].slowest_ms for c in commits if name in c.uploads))
            is not None
        },
        rows_in=sum(commit.rows_in for commit in commits),
    )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _sum(commits: Sequence[Attempt], fact: Callable[[Attempt], int | None]) -> int | None:
    known = [value for value in map(fact, commits) if value is not None]
    return sum(known) if known else None

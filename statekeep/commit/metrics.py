"""What is counted and timed about the commits of one task in plain Python.

Source: Samza 1.8 ``TaskInstanceMetrics``, for the names. Different on purpose: the two
``last-...`` gauges hold wall-clock nanoseconds, since a monotonic reading tells an operator
nothing; failures of each step are counted too.
"""

from dataclasses import dataclass, field
from typing import Final

COUNTERS: Final = (
    "commit-calls",
    "commits-skipped",
    "commits-timed-out",
    "commit-exceptions",
    "optional-upload-failures",
    "cleanup-failures",
    "flush-calls",
)
"""Counters, in the order of `CommitMetrics.snapshot`."""

TIMERS: Final = (
    "commit-ns",
    "commit-sync-ns",
    "commit-async-ns",
    "snapshot-ns",
    "store-checkpoint-ns",
    "async-upload-ns",
    "async-cleanup-ns",
    "commit-block-ns",
)
"""Timers; each gives count, total, last and max."""

GAUGES: Final = ("last-commit-ns", "last-async-commit-timestamp", "restore-time-ms")
"""Gauges: wall-clock nanoseconds of the end of the last sync stage and of the last full success
(0 before the first), and the duration of the restore (-1 until it is done)."""


@dataclass(slots=True)
class Timer:
    """Durations in nanoseconds."""

    count: int = 0
    total_ns: int = 0
    last_ns: int = 0
    max_ns: int = 0

    def update(self, elapsed_ns: int) -> None:
        """Take in one duration."""
        self.count += 1
        self.total_ns += elapsed_ns
        self.last_ns = elapsed_ns
        self.max_ns = max(self.max_ns, elapsed_ns)

    def as_dict(self) -> dict[str, int]:
        """Return the figures by name."""
        return {
            "count": self.count,
            "total": self.total_ns,
            "last": self.last_ns,
            "max": self.max_ns,
        }


@dataclass(slots=True)
class CommitMetrics:
    """The figures of one task. Written on the event loop, read anywhere by `snapshot`."""

    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    timers: dict[str, Timer] = field(default_factory=lambda: {name: Timer() for name in TIMERS})
    gauges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GAUGES, 0))

    def __post_init__(self) -> None:
        self.gauges["restore-time-ms"] = -1

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter; KeyError for a name that is not in `COUNTERS`."""
        self.counters[name] += amount

    def time(self, name: str, elapsed_ns: int) -> None:
        """Take in a duration; KeyError for a name that is not in `TIMERS`."""
        self.timers[name].update(elapsed_ns)

    def gauge(self, name: str, value: int) -> None:
        """Set a gauge; KeyError for a name that is not in `GAUGES`."""
        if name not in self.gauges:
            raise KeyError(name)
        self.gauges[name] = value

    def snapshot(self) -> dict[str, int | dict[str, int]]:
        """Return every figure by name, as plain data that JSON can hold."""
        figures: dict[str, int | dict[str, int]] = {**self.counters}
        figures.update((name, timer.as_dict()) for name, timer in self.timers.items())
        figures.update(self.gauges)
        return figures

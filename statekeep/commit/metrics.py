"""What is counted and timed about the commits of one task in plain Python.

Source: Samza 1.8 ``TaskInstanceMetrics``, for the names. Different on purpose: the two
``last-...`` gauges hold wall-clock nanoseconds, since a monotonic reading tells an operator
nothing; failures of each step are counted too.
"""

from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from statekeep.events import (
    BackendUploaded,
    CommitBegan,
    CommitBlocked,
    CommitDone,
    CommitFailed,
    CommitSkipped,
    CommitSubmitted,
    Event,
    EventSource,
    Listener,
    SnapshotTaken,
    StoresSealed,
    TaskCleanedUp,
    TaskRestored,
)

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

GAUGES: Final = (
    "last-commit-ns",
    "last-async-commit-timestamp",
    "restore-time-ms",
    "upload-bytes",
)
"""Gauges: wall-clock nanoseconds of the end of the last sync stage and of the last full success
(0 before the first), the duration of the restore (-1 until it is done), and how many bytes the newest
snapshot is to send to all backends, known before its upload begins."""


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
class CommitMetrics(Listener):
    """The figures of one task: a listener of its events. Read anywhere by `snapshot`."""

    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    timers: dict[str, Timer] = field(default_factory=lambda: {name: Timer() for name in TIMERS})
    gauges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GAUGES, 0))

    def __post_init__(self) -> None:
        self.gauges["restore-time-ms"] = -1

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:  # noqa: PLR0912 - one for each kind
        count, timers, gauges = self._count, self.timers, self.gauges
        match event:
            case CommitBegan():
                count("commit-calls")
                count("flush-calls")
            case StoresSealed(elapsed_ns=elapsed_ns):
                timers["store-checkpoint-ns"].update(elapsed_ns)
            case CommitSubmitted(elapsed_ns=elapsed_ns):
                timers["commit-sync-ns"].update(elapsed_ns)
                gauges["last-commit-ns"] = source.time_ns
            case CommitSkipped():
                count("commits-skipped")
            case CommitBlocked(elapsed_ns=elapsed_ns):
                timers["commit-block-ns"].update(elapsed_ns)
            case SnapshotTaken():
                timers["snapshot-ns"].update(event.elapsed_ns)
                gauges["upload-bytes"] = sum(event.bytes_by_backend.values())
            case BackendUploaded(outcome="done"):
                timers["async-upload-ns"].update(event.elapsed_ns)
            case BackendUploaded(outcome="left-out"):
                count("optional-upload-failures")
            case CommitDone():
                timers["commit-ns"].update(event.elapsed_ns)
                timers["commit-async-ns"].update(event.background_ns)
                gauges["last-async-commit-timestamp"] = source.time_ns
            case CommitFailed(step=step):
                count("commits-timed-out" if step == "timeout" else "commit-exceptions")
            case TaskRestored(elapsed_ns=elapsed_ns):
                gauges["restore-time-ms"] = elapsed_ns // 1_000_000
            case TaskCleanedUp():
                timers["async-cleanup-ns"].update(event.elapsed_ns)
                count("cleanup-failures", event.failures)
            case _:
                pass

    @override
    def close(self) -> None:
        """The figures stay."""

    def _count(self, name: str, amount: int = 1) -> None:
        self.counters[name] += amount

    def snapshot(self) -> dict[str, int | dict[str, int]]:
        """Return every figure by name, as plain data that JSON can hold."""
        figures: dict[str, int | dict[str, int]] = {**self.counters}
        figures.update((name, timer.as_dict()) for name, timer in self.timers.items())
        figures.update(self.gauges)
        return figures

"""What people see of a query: its events, its progress reports, how long its phases took."""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.streaming.listener import StateOperatorProgress, StreamingQueryProgress
from typing_extensions import override

from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.events import CommitSummary, Event, EventSource, Listener
from statekeep.spark.driver.processing import BatchResult, LocalSizes, LocalState
from statekeep.spark.driver.ticks import SOURCE_NAME
from statekeep.spark.operator.runner import OperatorSpec, TimedOutcome
from statekeep.spark.stage import Stage
from statekeep.spark.variable_stores import stores_of_query

NOT_MEASURED: Final = -1
"""Of a field of Spark's entry that this runtime does not count."""


KEPT_BATCHES: Final = 100
"""How many batches have entries in ``recentProgress``: as many as Spark keeps by default."""


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What a batch did in an operator, for progress reports."""

    batch: int = -1
    rows_in: int = 0
    rows_out: int = 0
    changed_keys: int = 0
    timed: TimedOutcome = field(default_factory=TimedOutcome)
    pauses_ns: Sequence[int] = ()
    hits: int = 0
    misses: int = 0
    sizes: LocalSizes = field(default_factory=LocalSizes)
    """Of all tasks together, as each has reported them last."""


def statistics_of(batch: int, part: BatchResult, local: LocalState) -> BatchStatistics:
    """Return what an operator has done in a batch.

    Args:
        batch: Its number.
        part: What came of it for the operator.
        local: The batch's hits and misses, and the newest sizes of every task.
    """
    done, sizes = part.tasks.values(), local.sizes.values()
    return BatchStatistics(
        batch=batch,
        rows_in=sum(task.rows_in for task in done),
        rows_out=sum(task.rows_out for task in done),
        changed_keys=part.changed_keys,
        timed=part.timed,
        pauses_ns=part.pauses_ns,
        hits=local.hits,
        misses=local.misses,
        sizes=LocalSizes(
            state_bytes=sum(task.state_bytes for task in sizes),
            versions=sum(task.versions for task in sizes),
            all_bytes=sum(task.all_bytes for task in sizes),
        ),
    )


def operator_progress(
    done: BatchStatistics,
    partitions: int,
    commit: CommitSummary | None,
    declared: Mapping[str, int],
    restarts: Mapping[str, object],
) -> StateOperatorProgress:
    """Return the entry of ``stateOperators`` for a batch.

    Args:
        done: The batch.
        partitions: How many tasks the operator has.
        commit: The newest one that has no later batch.
        declared: What the processor declares, by Spark's names of metrics.
        restarts: Entries beside Spark's.
    """
    timed = done.timed
    pause_ms = round(max(done.pauses_ns, default=0) / 1e6, 3)
    entry: dict[str, object] = {
        "operatorName": "statekeep",
        "numRowsTotal": NOT_MEASURED,
        "numRowsUpdated": done.changed_keys,
        "numRowsRemoved": NOT_MEASURED,
        "allUpdatesTimeMs": NOT_MEASURED,
        "allRemovalsTimeMs": NOT_MEASURED,
        "commitTimeMs": NOT_MEASURED,
        "memoryUsedBytes": NOT_MEASURED,
        "numRowsDroppedByWatermark": timed.late_rows,
        "numShufflePartitions": partitions,
        "numStateStoreInstances": partitions,
        "customMetrics": {
            **declared,
            "numRegisteredTimers": timed.registered_timers,
            "numDeletedTimers": timed.deleted_timers,
            "numExpiredTimers": timed.fired_timers,
            "numValuesRemovedDueToTTLExpiry": timed.expired_values,
            "rowsIn": done.rows_in,
            "rowsOut": done.rows_out,
            "maxSyncPauseMs": pause_ms,
            "localVersionHitCount": done.hits,
            "localVersionMissCount": done.misses,
            "localVersionCount": done.sizes.versions,
            "localVersionsSizeBytes": done.sizes.all_bytes,
            "stateOnCurrentVersionSizeBytes": done.sizes.state_bytes,
            "committedBatch": -1 if commit is None else commit.batch,
            "lastCommitBytes": 0 if commit is None else commit.bytes_uploaded,
            "rocksdbCommitCheckpointLatencyMs": round(sum(done.pauses_ns) / 1e6, 3),
            "rocksdbCommitFileSyncLatencyMs": 0 if commit is None else commit.task_upload_ms,
            "rocksdbBytesCopied": 0 if commit is None else commit.bytes_uploaded,
        },
        **restarts,
    }
    progress = StateOperatorProgress.fromJson(entry)
    progress.update(entry)
    return progress


def add_operators(
    progress: StreamingQueryProgress, entries: Sequence[StateOperatorProgress]
) -> None:
    """Add entries to Spark's progress, in its fields and in its text, and take our source out.

    Args:
        progress: Is changed.
        entries: One for each operator.
    """
    of_others = [source for source in progress["sources"] if source["description"] != SOURCE_NAME]
    shown = json.loads(progress.json)
    shown["sources"] = [s for s in shown["sources"] if s["description"] != SOURCE_NAME]
    shown["stateOperators"] += entries
    progress["sources"] = of_others
    progress["stateOperators"] = [*progress["stateOperators"], *entries]
    # `json`, `prettyJson` and `repr` are else the JVM's, which knows only Spark's operators.
    progress._jprogress, progress._jdict = None, shown  # noqa: SLF001 - there is no other way


_KEPT: Final = 1000


def explanation(stages: Sequence[Stage], config: Config, partitions: int) -> str:
    """Return what the operators are and where their state goes, a line each."""
    lines = [
        f"{type(operator.processor).__name__} by statekeep,"
        f" keys: [{', '.join(operator.key_columns)}], output: [{_columns(operator)}]\n"
        for operator in (stage.operator for stage in stages)
    ]
    backups = "; ".join(
        f"{name} to [{', '.join(config.store(name).backup_factories)}]"
        for name in stores_of_query(config)
    )
    return (
        f"== Stateful operator{'s' if len(lines) > 1 else ''} ==\n"
        f"{''.join(lines)}"
        f"job: {config.job.name}, tasks: {partitions}, stores backed up: {backups}\n"
    )


def _columns(operator: OperatorSpec) -> str:
    return ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in operator.output_schema)


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """One thing that happened."""

    kind: str
    """One of those that ``docs/reference/formats.md`` lists under "Progress events"."""
    time_ms: int
    """Wall clock of the driver; a label."""
    details: dict[str, Any] = field(default_factory=dict[str, Any])


class EventList(Listener):
    """A listener that keeps the newest events of a query, over all its restarts; told by any thread.

    While a driver session writes events down, each one is passed on to it; what happens between two sessions
    waits for the next one.
    """

    def __init__(self) -> None:
        self._events: deque[QueryEvent] = deque(maxlen=_KEPT)
        self._waiting: deque[QueryEvent] = deque(maxlen=_KEPT)
        self._write_down: Callable[[QueryEvent], None] | None = None
        self._adding = threading.Lock()

    @override
    def on_event(self, event: Event, source: EventSource, /) -> None:
        if not event.is_recorded:
            return
        seen = QueryEvent(event.kind, source.time_ns // 1_000_000, event.details())
        with self._adding:
            self._events.append(seen)
            if self._write_down is None:
                self._waiting.append(seen)
            else:
                self._write_down(seen)

    @override
    def close(self) -> None:
        """The events stay."""

    def pass_to(self, write_down: Callable[[QueryEvent], None] | None) -> None:
        """Pass events on from now on, with those that wait; None: let them wait again.

        Args:
            write_down: Called by any thread that adds; must not wait.
        """
        with self._adding:
            self._write_down = write_down
            while self._waiting and write_down is not None:
                write_down(self._waiting.popleft())

    def snapshot(self) -> Sequence[QueryEvent]:
        """Return the events so far, oldest first."""
        with self._adding:
            return list(self._events)


PHASES: Final = ("log", "placement", "takeover", "restore", "replay", "query")
"""Of a start, in their order; restore and replay may take turns. ``reshape`` comes last, of a start that
changes the number of tasks."""
RECOVERY_PHASES: Final = ("find", "restore", "replay", "process")
"""Of a batch in which tasks have lost their state: until that is known, Spark's part included; until they
are recovered; until the batch is processed."""


class Stopwatch:
    """Divides a time among its phases. Used by one thread."""

    def __init__(self, clock: Clock, phases: Sequence[str] = PHASES) -> None:
        self._clock = clock
        self._began_ns = self._last_ns = clock.monotonic_ns()
        self._phases_ns: dict[str, int] = dict.fromkeys(phases, 0)

    def lap(self, phase: str) -> None:
        """Count the time since the last lap, or since the beginning, for ``phase``."""
        now_ns = self._clock.monotonic_ns()
        self._phases_ns[phase] = self._phases_ns.get(phase, 0) + now_ns - self._last_ns
        self._last_ns = now_ns

    @property
    def phases_ms(self) -> dict[str, int]:
        """The milliseconds of each phase."""
        return {phase: ns // 1_000_000 for phase, ns in self._phases_ns.items()}

    def summary(self) -> str:
        """Return the seconds up to the last lap, in all and of each phase."""
        total = f"total_s={(self._last_ns - self._began_ns) / 1e9:.2f}"
        parts = (f"{phase}_s={ns / 1e9:.2f}" for phase, ns in self._phases_ns.items())
        return " ".join([total, *parts])

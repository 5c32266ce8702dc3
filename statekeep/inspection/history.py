"""What a job did over time: what its page and the terminal show of it.

What is not on record is None here, never an estimate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from statekeep.checkpoint.records import JobIdentity

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
OPEN: Final = "open"

PHASES: Final = ("pause", "wait", "upload", "record")
"""Of a commit, in their order."""


@dataclass(slots=True)
class BackendFigures:
    """What one backend took in one attempt."""

    bytes: int = 0
    slowest_ms: int = 0
    """Of its slowest task."""


@dataclass(slots=True)
class Attempt:
    """One try at a commit."""

    key: tuple[int, int] | None
    """(epoch, attempt)."""
    batch: int | None = None
    checkpoint_id: str = ""
    began_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = OPEN
    reason: str = ""
    """Why it was aborted."""
    position: int | None = None
    """Of the commit record."""
    elapsed_ms: float | None = None
    phases: dict[str, float] = field(default_factory=dict[str, float])
    """Milliseconds, by `PHASES`. On Spark the pause is the longest of a task in the batches since the
    commit before; it is no part of the elapsed time there."""
    skipped: int = 0
    blocked_ms: float = 0
    tasks_uploaded: int | None = None
    bytes_uploaded: int | None = None
    changed_bytes: int | None = None
    state_bytes: int | None = None
    """Of all tasks, as far as each has ever told."""
    uploads: dict[str, BackendFigures] = field(default_factory=dict[str, BackendFigures])
    slowest_task: str = ""
    slowest_ms: int = 0
    backends: tuple[str, ...] = ()
    """Of the job at that time, as far as they are known."""
    left_out: tuple[str, ...] | None = None
    """Those of them that lack the state of some task."""
    was_rolled_forward: bool = False
    rows_in: int = 0
    """Of the batches since the commit before."""

    @property
    def time_ms(self) -> int | None:
        """When it ended, or else began."""
        return self.began_ms if self.ended_ms is None else self.ended_ms

    def is_whole_in(self, backend: str) -> bool | None:
        """Return whether a commit has the state of every task there; None: that is not on record."""
        if self.left_out is None or backend not in self.backends:
            return None
        return backend not in self.left_out


@dataclass(slots=True)
class Recovery:
    """State that was brought back, and batches that ran again."""

    time_ms: int
    epoch: int
    reason: str
    """``start``, ``loss``, ``move`` or ``catch-up``; "" of an older release."""
    head: int | None
    restored: int
    """Tasks, in plain Python stores, that were not on their host."""
    sources: tuple[str, ...]
    bytes_fetched: int
    replayed: int
    """Batches."""
    rows_replayed: int
    elapsed_ms: float | None
    phases_ms: Mapping[str, float]
    """``restore`` and ``replay``; empty of an older release."""
    failures: tuple[str, ...]
    """Backends that could not serve a store, before another one did."""


@dataclass(slots=True)
class Session:
    """One driver session: from the takeover to the end, or to the next one."""

    epoch: int
    owner: str = ""
    began_ms: int | None = None
    partitions: int | None = None
    backends: tuple[str, ...] = ()
    log_backend: str = ""
    limits: tuple[str, ...] = ()
    from_commit: int | None = None
    head: int | None = None
    query_id: str = ""
    restart: str = ""
    """Why the session before ended and this one began by itself; "" if it was started."""
    restart_number: int | None = None
    phases_ms: dict[str, float] = field(default_factory=dict[str, float])
    """Of its start."""
    last_event_ms: int | None = None
    ended_ms: int | None = None
    error: str = ""
    """What it ended with."""
    has_stopped: bool = False
    """Its end is on record: otherwise it runs, was killed, or its last events are lost."""


@dataclass(slots=True)
class TaskFigures:
    """The uploads of one task."""

    task: str
    uploads: int = 0
    total_ms: int = 0
    longest_ms: int = 0
    times_slowest: int = 0
    bytes: int = 0
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RetainedCommit:
    """A commit that a restore may use."""

    position: int
    batch: int
    checkpoint_id: str
    time_ms: int
    epoch: int
    query_id: str | None
    pins: Mapping[str, int]
    """When each expires; 0: never."""
    is_current: bool


@dataclass(frozen=True, slots=True)
class Backend:
    """How one backend does."""

    name: str
    is_current: bool
    """The newest driver session has it in its settings, as far as they are known."""
    is_left_out: bool
    """The newest commit lacks the state of some task there."""
    behind_commits: int | None
    """How many commits since the newest whole one there; 0: the newest is whole. None: the records
    do not tell."""
    behind_ms: int | None
    uploads: int
    bytes: int
    median_ms: float | None
    """Of the slowest tasks of the commits on record."""
    longest_ms: float | None
    failures: int
    """Aborted attempts whose reason names it."""
    last_failure: str
    bad_markers: int


@dataclass(frozen=True, slots=True)
class Day:
    """What a day (UTC) has cost."""

    date_ms: int
    """Its beginning."""
    commits: int
    aborted: int
    task_uploads: int
    bytes: Mapping[str, int]
    """By backend; under "" what the records do not divide among the backends."""
    requests: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """By backend and operation; empty where they are not on record."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A commit of which a copy was restored and compared."""

    time_ms: int
    """When it was compared."""
    position: int | None
    batch: int | None
    backends: tuple[str, ...]
    commit_ms: int | None = None
    """When it became durable."""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """All that the page and the terminal show of a job."""

    job: str
    identity: JobIdentity | None
    now_ms: int
    attempts: Sequence[Attempt]
    """Oldest first."""
    sessions: Sequence[Session]
    recoveries: Sequence[Recovery]
    retained: Sequence[RetainedCommit]
    backends: Sequence[Backend]
    tasks: Sequence[TaskFigures]
    """Those that were most often the slowest, first."""
    days: Sequence[Day]
    newest_batch: int | None
    clean_up_error: str
    """Why old backups were not deleted, if that is so."""
    last_verified: Verified | None
    verify_errors: Sequence[str]
    """What the newest proof found, if anything."""
    first_event_ms: int | None
    """None: no event is kept."""
    missing_events: int
    """Numbers that lack among those of the sessions on record: lost, or deleted as those in the middle of
    a long session are."""

    held: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Bytes of the newest commit in each backend, where they were read; None: not known."""

    @property
    def commits(self) -> list[Attempt]:
        """The attempts that are commits."""
        return [attempt for attempt in self.attempts if attempt.outcome == COMMITTED]

    @property
    def session(self) -> Session | None:
        """The newest one."""
        return self.sessions[-1] if self.sessions else None

"""What happens in a job, as typed events, and what listens to them.

Each class below is one kind of event. A `Listener` gets every event of a job, of Spark and of plain
Python alike. Fields that end in ``_ns`` are durations in nanoseconds unless they say otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Protocol

_LIVE: Final[Mapping[str, bool]] = {"live": True}
"""Marks a field that listeners get and that is not written down."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    kind: ClassVar[str] = ""
    """Its name, as `statekeep events --progress` prints it."""
    is_recorded: ClassVar[bool] = False
    """Whether it is written down beside the job log, and is in ``query.events``."""

    def details(self) -> dict[str, Any]:
        """Return what is written down of it, by the names of its fields."""
        found = [f.name for f in fields(self) if not f.metadata.get("live")]
        return {name: getattr(self, name) for name in found}


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where and when an event happened."""

    job: str
    """The name of the job."""
    task: str
    """The task in plain Python; "" on Spark, where events of one task name it."""
    time_ns: int
    """Wall clock, since the epoch of Unix: when the driver, or the program, learned of it."""


class Listener(Protocol):
    """Gets the events of a job.

    Its methods run on a thread of the job's listeners, one call at a time, in the order of the events:
    a slow listener delays no commit and no batch. An object that is given to several jobs is called by
    the threads of all of them, and needs a lock of its own. Where it is more than 10,000 events behind,
    the oldest are dropped, and the log says how many. What a method raises is logged, the first time
    with its stack, and does nothing else.
    """

    def on_event(self, event: Event, source: EventSource, /) -> None:
        """Take in an event; look at its class to see what it is."""
        ...

    def close(self) -> None:
        """End: the job has ended, and no event follows. Called once for each job."""
        ...


Report = Callable[[Event], None]
"""How the parts of a job report an event, without knowing what listens. Never waits, never fails;
called by any thread."""


def report_nothing(event: Event) -> None:
    """Forget an event, where nothing listens."""


# The life of a job


@dataclass(frozen=True, slots=True)
class JobStarted(Event):
    """The driver has taken over the job; in plain Python, the program has taken over the task."""

    kind = "job-initialised"
    is_recorded = True

    partitions: int
    stores: Mapping[str, Sequence[str]]
    """``{operator: its stores}``"""
    backends: Sequence[str]
    log_backend: str
    commit_position: int
    """Of the newest commit in the job log; -1: there is none, as for batches."""
    committed: int
    """The batch of the newest commit."""
    head: int
    """The newest batch that counts."""
    limits: Sequence[str]
    """What the job does without because a source or backend cannot support it."""
    epoch: int = field(default=0, metadata=_LIVE)
    """The number of the driver session, or of that of the task."""
    commit_ns: int = field(default=0, metadata=_LIVE)
    """When the newest commit began, by the wall clock of its driver; 0: there is none."""


@dataclass(frozen=True, slots=True)
class QueryStarted(Event):
    """The query on Spark runs, with its state as it was."""

    kind = "started"
    is_recorded = True

    phases_ms: Mapping[str, int]
    """How long each phase of the start took."""


@dataclass(frozen=True, slots=True)
class JobStopped(Event):
    """The query, or the task of plain Python, has ended."""

    kind = "stopped"
    is_recorded = True

    error: str | None
    """None where it was asked to end; in plain Python what the newest commit failed with."""
    committed: int = -1
    head: int = -1


@dataclass(frozen=True, slots=True)
class JobFenced(Event):
    """Another driver has taken over."""

    kind = "fenced"
    is_recorded = True

    own_epoch: int | None
    newer_epoch: int | None


@dataclass(frozen=True, slots=True)
class QueryRestarted(Event):
    """A failed query on Spark is about to start again."""

    kind = "restart"
    is_recorded = True

    number: int
    delay_ms: int
    reason: str


# Batches, on Spark


@dataclass(frozen=True, slots=True)
class BatchDone(Event):
    """A batch is processed and delivered."""

    kind = "batch"
    is_recorded = True

    batch: int
    rows_in: int
    rows_out: int
    max_pause_ms: float
    """The longest time that a task stood still for a commit."""


@dataclass(frozen=True, slots=True)
class OutputHealed(Event):
    """Output was lost before the sink had it, and its tasks have processed the batch again."""

    kind = "healed-output"
    is_recorded = True

    batch: int
    tasks: int


@dataclass(frozen=True, slots=True)
class TasksMoved(Event):
    """Tasks have moved to other executors, such as ones that have joined."""

    kind = "tasks-moved"
    is_recorded = True

    tasks: int
    slots: int
    """Places for tasks, from now on."""


@dataclass(frozen=True, slots=True)
class CopiesMade(Event):
    """What was done for standby copies since the event before: of each task one for each commit and host."""

    kind = "copies-made"
    is_recorded = True

    tasks: int = 0
    failures: int = 0
    bytes_fetched: int = 0


@dataclass(frozen=True, slots=True)
class StateUndeclared(Event):
    """The state holds variables that the processor does not declare; each is reported once."""

    kind = "undeclared-state"
    is_recorded = True

    variables: str
    """Their names, with commas."""


# Commits


@dataclass(frozen=True, slots=True)
class CommitBegan(Event):
    """A commit begins."""

    kind = "commit-began"

    checkpoint_id: str


@dataclass(frozen=True, slots=True)
class StoresSealed(Event):
    """In plain Python: the stores of the task are sealed for a commit."""

    kind = "stores-sealed"

    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class CommitSubmitted(Event):
    """The uploads of a commit begin, beside the processing."""

    kind = "commit-submitted"

    checkpoint_id: str
    batch: int
    elapsed_ns: int
    """Since the commit began. In plain Python the task has stood still for so long."""


@dataclass(frozen=True, slots=True)
class CommitSkipped(Event):
    """A commit was due while another one was open, and is made later."""

    kind = "commit-skipped"


@dataclass(frozen=True, slots=True)
class CommitPassedOver(Event):
    """Nothing has changed since the newest commit, which stands for the one that was due."""

    kind = "commit-passed-over"


@dataclass(frozen=True, slots=True)
class CommitBlocked(Event):
    """Processing has waited for an open commit, beyond ``task.commit.max.delay.ms``."""

    kind = "commit-blocked"

    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken(Event):
    """A task has found out what it is to upload, to all its backends, or has failed to."""

    kind = "snapshot-taken"

    task: str
    checkpoint_id: str
    elapsed_ns: int
    bytes_by_backend: Mapping[str, int] = field(default_factory=dict[str, int])
    """To be uploaded, before encoding; empty where the snapshot failed."""
    files_by_backend: Mapping[str, int] = field(default_factory=dict[str, int])
    """To be read for it."""


@dataclass(frozen=True, slots=True)
class BackendUploaded(Event):
    """The upload of one task to one backend has ended.

    On Spark it is known, as requests are, once all backends have the task's state, or one that is not
    optional has failed: it comes to the driver with the task's entry.
    """

    kind = "backend-uploaded"

    task: str
    backend: str
    checkpoint_id: str
    outcome: str
    """``done``, ``failed``, ``left-out`` (it failed, and is optional) or ``cancelled``."""
    ended_ns: int
    """Wall clock of the host, since the epoch of Unix."""
    elapsed_ns: int
    files: int = 0
    """To be read, as the snapshot has it."""
    bytes: int = 0
    """Of these files, before encoding."""
    bytes_sent: int = 0
    """As far as the backend counts, of a failed upload too."""
    files_retained: int = 0
    """Of the image, that the backend has already."""
    bytes_retained: int = 0


@dataclass(frozen=True, slots=True)
class TaskUploaded(Event):
    """The state of one task is in all backends of a commit."""

    kind = "task-uploaded"
    is_recorded = True

    task: str
    attempt: int
    batch: int
    bytes: int
    """Sent to all backends, as far as they count."""
    elapsed_ms: int
    uploads: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """``{backend: {"bytes", "elapsed_ms"}}`` of those that took part."""
    changed_bytes: int | None = None
    """What was written to its stores since the commit before; None where that is not known."""
    state_bytes: int = 0
    """Size of its stores on the local disk."""


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """A commit that is durable, for people and for ``lastCommit``."""

    batch: int
    checkpoint_id: str
    position: int
    """Of its record in the job log."""
    elapsed_ms: int
    tasks_uploaded: int
    bytes_uploaded: int = 0
    """By all tasks to all backends, as far as backends count."""
    was_rolled_forward: bool = False
    """A driver before this one had begun it."""
    left_out: Sequence[str] = ()
    """Optional backends that lack the state of some task at this commit."""
    pause_ms: float = 0
    """How long the task stood still for it, in plain Python."""
    wait_ms: int = 0
    """From its begin until its upload began: on Spark until every task had submitted its version."""
    upload_ms: int = 0
    """From then on until every backend had every task."""
    record_ms: int = 0
    """How long the append of its record took."""
    task_upload_ms: int = 0
    """What the tasks took to upload, all together."""
    skipped: int = 0
    """Commits that were due since the one before and were skipped, as another was open."""
    blocked_ms: int = 0
    """How long processing was blocked by open commits since the one before."""


@dataclass(frozen=True, slots=True)
class CommitDone(CommitSummary, Event):
    """A commit is durable."""

    kind = "commit"
    is_recorded = True

    elapsed_ns: int = field(default=0, metadata=_LIVE)
    background_ns: int = field(default=0, metadata=_LIVE)
    """The part of it that passed beside the processing."""


@dataclass(frozen=True, slots=True)
class CommitFailed(Event):
    """A commit has come to nothing; the one before it stays the newest.

    Where the job log does not answer, it is reported once the log does: the commit may be durable.
    """

    kind = "commit-failed"

    checkpoint_id: str
    batch: int
    """-1 where the stores of a task in plain Python could not be sealed."""
    step: str
    """As `CommitFailedError.step`: ``snapshot``, ``upload``, ``checkpoint``, ``record``, ``timeout``, ...;
    ``fenced`` where another owner has taken over."""
    error: str
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class CommitAborted(Event):
    """An attempt at a commit is aborted for good; also one that the base record of a driver ended."""

    kind = "void"
    is_recorded = True

    attempt_epoch: int
    attempt: int
    batch: int
    reason: str


# Proof


@dataclass(frozen=True, slots=True)
class CommitVerified(Event):
    """A task of a commit was restored from each backend that holds it, and every byte compared."""

    kind = "verified"
    is_recorded = True

    position: int
    """Of the commit record in the job log."""
    batch: int
    task: str
    backends: Sequence[str]
    bytes: int
    """Fetched from all of them."""
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class VerifyFailed(Event):
    """A copy of a task could not be restored: an alarm if it is damaged."""

    kind = "verify-failed"
    is_recorded = True

    position: int
    batch: int
    task: str
    backend: str
    """"": no backend holds anything of the task."""
    is_damaged: bool
    """Missing or damaged for good; otherwise the backend did not answer."""
    error: str


# Recovery


@dataclass(frozen=True, slots=True)
class StoreFetched(Event):
    """One store was fetched from a backend, or could not be: then the next source is tried."""

    kind = "store-fetched"

    task: str
    store: str
    backend: str
    outcome: str
    """``done``, ``damaged`` (missing or damaged for good) or ``failed``."""
    ended_ns: int
    """Wall clock of the host, since the epoch of Unix."""
    elapsed_ns: int
    bytes: int = 0
    """Fetched, of a failed try too; parts that were fetched again count again."""


@dataclass(frozen=True, slots=True)
class TaskRestored(Event):
    """A task has the state of a commit, or the version of it that its host had."""

    kind = "task-restored"

    task: str
    sources: Mapping[str, str]
    """``{store: backend, or "local"}``"""
    bytes_fetched: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class BatchReplayed(Event):
    """On Spark: some tasks have processed a batch again, without output."""

    kind = "batch-replayed"

    batch: int
    tasks: int
    rows: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Recovered(Event):
    """Every task has its state again, at a start or after a loss."""

    kind = "recovery"
    is_recorded = True

    head: int
    """The batch that the state is of; -1: before the first."""
    tasks: int
    restored: Mapping[Any, str]
    """``{partition: backends}`` on Spark, ``{store: backend}`` in plain Python."""
    bytes_fetched: int
    replayed: Sequence[int]
    """Batches that ran again."""
    rows_replayed: int
    failures: Sequence[str]
    """Sources that could not serve a store, before another one did."""
    elapsed_ms: int
    reason: str = ""
    """``start``, ``loss`` (of a host, a process or files), ``move`` (to other executors) or ``catch-up``
    (with a batch of an older driver)."""
    phases_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """Its parts: ``restore``, until each task had the state of some commit, and ``replay``."""
    diverged: int = 0
    """Replays that gave another output or state than recorded."""
    first_diverged: str = ""


# Clean-up


@dataclass(frozen=True, slots=True)
class TaskCleanedUp(Event):
    """The backends of a task have deleted what no commit needs any more, or have failed to."""

    kind = "task-cleaned-up"

    task: str
    elapsed_ns: int
    failures: int
    """Backends that failed; the next clean-up makes up for it."""


@dataclass(frozen=True, slots=True)
class CleanUpDone(Event):
    """A clean-up of the whole job has ended, and has found no damage."""

    kind = "clean-up"
    is_recorded = True

    attempts: int
    """Closed, whose backups may go."""
    released: int
    """Commits that are not kept any more."""


@dataclass(frozen=True, slots=True)
class CleanUpFailing(Event):
    """Old backups have not been deleted for an hour or longer."""

    kind = "clean-up-failing"
    is_recorded = True

    minutes: int
    error: str


# Requests


@dataclass(frozen=True, slots=True)
class RequestDone(Event):
    """A backend's service has answered, or has not; each try of a request is one event.

    Of Kafka a request is a call to its client.
    """

    kind = "request"

    backend: str
    operation: str
    """Such as ``put``, ``get``, ``list``, ``delete``."""
    outcome: str
    """``done``, ``not_found``, ``exists``, ``throttled``, ``unavailable``, ``cancelled`` or ``failed``."""
    ended_ns: int
    """Wall clock of the host, since the epoch of Unix."""
    elapsed_ns: int
    purpose: str = ""
    """``upload``, ``restore``, ``clean-up``, ``verify``; "" for the job log, checkpoints and the checks of a
    start."""
    task: str = ""
    """Whose upload, restore or clean-up it belongs to."""
    count: int = 1
    """More than one where a task of Spark made so many that they come as one event: ``elapsed_ns`` is
    then their sum."""


@dataclass(frozen=True, slots=True)
class RequestsCounted(Event):
    """On Spark: the requests since the event before of this kind, each try of one."""

    kind = "requests"
    is_recorded = True

    requests: Mapping[str, Mapping[str, int]]
    """``{backend: {operation: count}}``"""

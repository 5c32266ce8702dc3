"""The metrics, and how events become their figures.

One table serves OpenTelemetry and Prometheus; `statekeep.metrics.document` writes
``docs/reference/metrics.md`` from it. Units are seconds, bytes and counts. Attributes have few values:
jobs, backends, operations and outcomes, never tasks, checkpoints or the texts of errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal, NamedTuple

from statekeep.events import (
    BackendUploaded,
    BatchDone,
    BatchReplayed,
    CleanUpDone,
    CleanUpFailing,
    CommitAborted,
    CommitBegan,
    CommitBlocked,
    CommitDone,
    CommitFailed,
    CommitPassedOver,
    CommitSkipped,
    CommitSubmitted,
    CommitVerified,
    CopiesMade,
    Event,
    EventSource,
    JobFenced,
    JobStarted,
    JobStopped,
    QueryRestarted,
    Recovered,
    RequestDone,
    SnapshotTaken,
    StoreFetched,
    TaskCleanedUp,
    TaskRestored,
    TaskUploaded,
    VerifyFailed,
)

_PER_NS: Final = 1e-9
_UPLOAD_OUTCOMES: Final = ("done", "failed", "left-out", "cancelled")
_FETCH_OUTCOMES: Final = ("done", "damaged", "failed")
_UNITS: Final = {"s": "_seconds", "By": "_bytes"}

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """As OpenTelemetry has it, without ``statekeep.``."""
    kind: Kind
    unit: str
    """In UCUM: ``s``, ``By``, or what is counted, such as ``{commit}``."""
    description: str
    attributes: tuple[str, ...] = ()
    """Beside ``job_name``."""
    outcomes: tuple[str, ...] = ()
    """The values of the attribute ``outcome``."""

    def series(self, backends: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield the attributes of the time series that can be foreseen for a job."""
        known = {"backend": backends, "outcome": self.outcomes}
        for values in product(*(known.get(name, ()) for name in self.attributes)):
            yield dict(zip(self.attributes, values, strict=True))

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry."""
        return f"statekeep.{self.name}"

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus: the base unit in it, and ``_total`` where it only grows."""
        unit, total = _UNITS.get(self.unit, ""), "_total" if self.kind == "counter" else ""
        return f"statekeep_{self.name.replace('.', '_')}{unit}{total}"


BUCKETS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
"""Upper bounds of histograms: from a request to a store nearby to an upload of a whole state."""

# Commits
COMMITS = Metric(
    "commit.duration",
    "histogram",
    "s",
    "From the beginning of a commit until it is durable, or has failed",
    ("outcome",),
    ("done", "failed"),
)
COMMIT_PAUSES = Metric(
    "commit.pause", "histogram", "s", "How long processing stood still for a commit"
)
SKIPPED = Metric(
    "commit.skipped", "counter", "{commit}", "Commits put off, as another one was open"
)
BLOCKED = Metric(
    "commit.blocked", "histogram", "s", "How long processing waited for an open commit"
)
FAILURES = Metric(
    "commit.failures",
    "counter",
    "{commit}",
    "Commits that came to nothing, by the step that failed",
    ("step",),
)
ABORTED = Metric("commit.aborted", "counter", "{attempt}", "Attempts at a commit that were aborted")
LAST_COMMIT = Metric(
    "commit.last.timestamp",
    "gauge",
    "s",
    "Unix time of the newest commit, or of the start where there is none; after a start it is when that"
    " commit began. In plain Python of the task that is furthest behind",
)
PENDING = Metric(
    "commit.pending.timestamp",
    "gauge",
    "s",
    "Unix time since when a batch, in plain Python the commit of a task, waits to be durable; 0 where"
    " nothing waits",
)
LAST_BATCH = Metric("commit.last.batch", "gauge", "{batch}", "Batch of the newest commit, on Spark")
HEAD = Metric("batch.last", "gauge", "{batch}", "The newest batch that was delivered, on Spark")
# Uploads
SNAPSHOTS = Metric(
    "snapshot.duration", "histogram", "s", "How long a task took to find out what it is to upload"
)
UPLOADS = Metric(
    "upload.duration",
    "histogram",
    "s",
    "The upload of one task to one backend",
    ("backend", "outcome"),
    _UPLOAD_OUTCOMES,
)
TO_UPLOAD = Metric(
    "upload.planned",
    "counter",
    "By",
    "Bytes that snapshots found to upload, before encoding, known before the upload begins",
    ("backend",),
)
FILES_TO_UPLOAD = Metric(
    "upload.planned.files",
    "counter",
    "{file}",
    "Files that snapshots found to upload",
    ("backend",),
)
UPLOADED = Metric(
    "upload.sent",
    "counter",
    "By",
    "Bytes that were sent, as far as backends count; those of failed uploads apart",
    ("backend", "outcome"),
    _UPLOAD_OUTCOMES,
)
FILES = Metric(
    "upload.files",
    "counter",
    "{file}",
    "Files of uploads that have ended",
    ("backend", "outcome"),
    _UPLOAD_OUTCOMES,
)
RETAINED = Metric(
    "upload.retained",
    "counter",
    "By",
    "Bytes of state that were not uploaded, as the backend has them",
    ("backend",),
)
FILES_RETAINED = Metric(
    "upload.retained.files",
    "counter",
    "{file}",
    "Files of state that were not uploaded, as the backend has them",
    ("backend",),
)
CHANGED = Metric(
    "state.changed", "counter", "By", "Bytes that were written to stores, as commits found them"
)
STATE = Metric("state.size", "gauge", "By", "Size of the state of all tasks on their local disks")
REMAINING = Metric(
    "upload.remaining",
    "gauge",
    "By",
    "Bytes of uploads that have begun and not ended; on Spark always 0, as the driver learns of an upload"
    " at its end",
    ("backend",),
)
FILES_REMAINING = Metric(
    "upload.remaining.files",
    "gauge",
    "{file}",
    "Files of uploads that have begun and not ended; on Spark always 0, as above",
    ("backend",),
)
# Recovery
RECOVERIES = Metric(
    "recovery.duration", "histogram", "s", "From the loss, or the start, until state is whole again"
)
RESTORES = Metric(
    "restore.duration", "histogram", "s", "The restore of one task, all stores and tries"
)
FETCHES = Metric(
    "fetch.duration",
    "histogram",
    "s",
    "The fetch of one store from one backend",
    ("backend", "outcome"),
    _FETCH_OUTCOMES,
)
FETCHED = Metric(
    "fetch.received",
    "counter",
    "By",
    "Bytes that were fetched; those of failed fetches apart",
    ("backend", "outcome"),
    _FETCH_OUTCOMES,
)
COPIES = Metric(
    "standby.copies",
    "counter",
    "{task}",
    "Commits of tasks that were to be copied to another host",
    ("outcome",),
    ("done", "failed"),
)
REPLAYS = Metric("replay.duration", "histogram", "s", "One batch that ran again, without output")
REPLAYED_ROWS = Metric("replay.rows", "counter", "{row}", "Rows that ran again, without output")
DIVERGED = Metric(
    "replay.diverged", "counter", "{replay}", "Replays that gave another result than recorded"
)
# Clean-up
CLEAN_UPS = Metric(
    "clean_up.duration",
    "histogram",
    "s",
    "The deletion of old backups of one task",
    ("outcome",),
    ("done", "failed"),
)
RELEASED = Metric("clean_up.released", "counter", "{commit}", "Commits that are not kept any more")
CLEAN_UP_FAILING = Metric(
    "clean_up.failing",
    "gauge",
    "s",
    "For how long old backups have not been deleted, 0 where they are; in plain Python of the task that"
    " fails longest",
)
# Proof
LAST_VERIFIED = Metric(
    "verify.last.timestamp",
    "gauge",
    "s",
    "Unix time of the newest proof that found no fault, of any task; not there before the first",
)
VERIFIED_BATCH = Metric(
    "verify.last.batch",
    "gauge",
    "{batch}",
    "Batch of the newest commit that a proof found whole, on Spark; not there before the first",
)
VERIFY_FAILURES = Metric(
    "verify.failures",
    "counter",
    "{copy}",
    "Copies that a proof found damaged",
    ("backend",),
)
# Requests
REQUESTS = Metric(
    "requests",
    "counter",
    "{request}",
    "Requests to services of backends, each try of one",
    ("backend", "operation", "outcome", "purpose"),
)
REQUEST_TIMES = Metric(
    "request.duration", "histogram", "s", "One try of a request", ("backend", "operation")
)
# Batches and the job
ROWS_IN = Metric("batch.rows.in", "counter", "{row}", "Rows that tasks took in, on Spark")
ROWS_OUT = Metric("batch.rows.out", "counter", "{row}", "Rows that tasks gave out, on Spark")
RUNNING = Metric(
    "job.running", "gauge", "{owner}", "1 while the driver has the job; tasks of plain Python"
)
START = Metric(
    "job.start.timestamp",
    "gauge",
    "s",
    "Unix time of the first start in this process, when the counters of the job began at 0",
)
EPOCH = Metric(
    "job.epoch",
    "gauge",
    "{session}",
    "Number of the driver session, on Spark: each start of a driver adds one",
)
RESTARTS = Metric("job.restarts", "counter", "{restart}", "Restarts of a failed query, on Spark")
FENCED = Metric(
    "job.fenced",
    "counter",
    "{driver}",
    "How often another driver, or program, has taken over from this one",
)

METRICS: Final = tuple(value for value in globals().values() if isinstance(value, Metric))
"""All, in the order of the documentation."""


class Figure(NamedTuple):
    """One figure for a metric: added to a counter, taken in by a histogram, or set."""

    metric: Metric
    value: float
    attributes: Mapping[str, str] = {}
    """Those of `Metric.attributes`."""


class _Totals:
    """Sums over the tasks of a job: there may be thousands, and each reports in each commit."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, int]] = {}
        """By what is summed up, and task."""
        self._sums: dict[str, int] = {}

    def put(self, what: str, task: str, size: int) -> int:
        """Set the part of a task, and return the sum of all."""
        parts = self._parts.setdefault(what, {})
        self._sums[what] = self._sums.get(what, 0) + size - parts.get(task, 0)
        parts[task] = size
        return self._sums[what]

    def drop(self, task: str) -> Iterator[tuple[str, int]]:
        """Forget a task; yield each sum that it was part of."""
        for what, parts in self._parts.items():
            if task in parts:
                self._sums[what] -= parts.pop(task)
                yield what, self._sums[what]


@dataclass
class _Job:
    """What is under way in one job; by task of plain Python, or "" for the query on Spark."""

    open: _Totals = field(default_factory=_Totals)
    """Bytes of uploads that have not ended, by backend."""
    open_files: _Totals = field(default_factory=_Totals)
    """Their files."""
    sizes: _Totals = field(default_factory=_Totals)
    """Of the state."""
    last_commits: dict[str, int] = field(default_factory=dict[str, int])
    """When they were, of the tasks that run."""
    pending: dict[str, int] = field(default_factory=dict[str, int])
    """Since when something waits for a commit."""
    failing_s: dict[str, int] = field(default_factory=dict[str, int])
    """For how long clean-up fails."""
    head: int = -1
    """On Spark: the newest batch."""
    has_started: bool = False


@dataclass
class Figures:
    """Makes figures of events; keeps what is under way. Used by one thread at a time."""

    _jobs: dict[str, _Job] = field(default_factory=dict[str, _Job])

    def forget(self, job: str) -> None:
        """Keep nothing of a job that has gone."""
        self._jobs.pop(job, None)

    def of(self, event: Event, source: EventSource) -> Iterator[Figure]:
        """Yield the figures of an event."""
        job = self._jobs.setdefault(source.job, _Job())
        match event:
            case SnapshotTaken() | BackendUploaded() | TaskUploaded():
                yield from _of_upload(job, event)
            case StoreFetched() | TaskRestored() | BatchReplayed() | Recovered():
                yield from _of_recovery(event)
            case RequestDone():
                yield from _of_request(event)
            case CopiesMade():
                yield Figure(COPIES, event.tasks, {"outcome": "done"})
                yield Figure(COPIES, event.failures, {"outcome": "failed"})
            case TaskCleanedUp():
                outcome = {"outcome": "failed" if event.failures else "done"}
                yield Figure(CLEAN_UPS, event.elapsed_ns * _PER_NS, outcome)
            case CommitVerified() | VerifyFailed():
                yield from _of_proof(event, source)
            case JobStarted() | JobFenced() | QueryRestarted() | BatchDone():
                yield from _of_job(event, source)
            case _:
                yield from _of_commit(event, source)
        if isinstance(event, JobStarted | JobStopped | CommitDone):
            yield from _of_owners(job, event, source)
        if isinstance(event, CleanUpDone | CleanUpFailing | JobStopped):
            yield from _of_clean_up(job, event, source)
        if isinstance(event, _MOVES_PENDING):
            _move_pending(job, event, source)
            yield Figure(PENDING, min(job.pending.values(), default=0) * _PER_NS)


def _of_upload(
    job: _Job, event: SnapshotTaken | BackendUploaded | TaskUploaded
) -> Iterator[Figure]:
    if isinstance(event, TaskUploaded):
        yield Figure(CHANGED, event.changed_bytes or 0)
        yield Figure(STATE, job.sizes.put("", event.task, event.state_bytes))
        return
    if isinstance(event, SnapshotTaken):
        yield Figure(SNAPSHOTS, event.elapsed_ns * _PER_NS)
        for backend, size in event.bytes_by_backend.items():
            files = event.files_by_backend.get(backend, 0)
            yield Figure(TO_UPLOAD, size, {"backend": backend})
            yield Figure(FILES_TO_UPLOAD, files, {"backend": backend})
            yield from _remaining(job, backend, event.task, size, files)
        return
    of_backend, ended = _backend(event), {**_backend(event), "outcome": event.outcome}
    yield Figure(UPLOADS, event.elapsed_ns * _PER_NS, ended)
    yield Figure(UPLOADED, event.bytes_sent, ended)
    yield Figure(FILES, event.files, ended)
    if event.outcome == "done":
        yield Figure(RETAINED, event.bytes_retained, of_backend)
        yield Figure(FILES_RETAINED, event.files_retained, of_backend)
    yield from _remaining(job, event.backend, event.task, 0, 0)


def _remaining(job: _Job, backend: str, task: str, size: int, files: int) -> Iterator[Figure]:
    """Yield what all uploads to a backend have still to do, after that of a task has changed."""
    yield Figure(REMAINING, job.open.put(backend, task, size), {"backend": backend})
    yield Figure(FILES_REMAINING, job.open_files.put(backend, task, files), {"backend": backend})


def _of_owners(
    job: _Job, event: JobStarted | JobStopped | CommitDone, source: EventSource
) -> Iterator[Figure]:
    """Yield what the tasks of plain Python have in common with those of their job."""
    if isinstance(event, JobStopped):
        job.last_commits.pop(source.task, None)
        for metric, sums in ((REMAINING, job.open), (FILES_REMAINING, job.open_files)):
            for backend, total in sums.drop(source.task):
                yield Figure(metric, total, {"backend": backend})
        yield from (Figure(STATE, total) for _, total in job.sizes.drop(source.task))
    elif isinstance(event, JobStarted):
        job.last_commits[source.task] = event.commit_ns or source.time_ns
    elif source.task in job.last_commits:  # else a start makes up for it, and may yet fail
        job.last_commits[source.task] = source.time_ns
    if isinstance(event, JobStarted) and not job.has_started:
        job.has_started = True
        yield Figure(START, source.time_ns * _PER_NS)
    yield Figure(RUNNING, len(job.last_commits))
    if job.last_commits:
        yield Figure(LAST_COMMIT, min(job.last_commits.values()) * _PER_NS)


_MOVES_PENDING: Final = (
    JobStarted,
    JobStopped,
    BatchDone,
    CommitBegan,
    CommitPassedOver,
    CommitDone,
)


def _move_pending(job: _Job, event: Event, source: EventSource) -> None:
    """Take in since when something waits for a commit."""
    match event:
        case JobStarted() if event.head > event.committed:
            job.head = event.head
            job.pending[source.task] = event.commit_ns or source.time_ns
        case JobStarted():
            job.head = event.head
        case BatchDone():
            job.head = event.batch
            job.pending.setdefault(source.task, source.time_ns)
        case CommitBegan() if source.task:  # on Spark it is the batch that waits
            job.pending.setdefault(source.task, source.time_ns)
        case CommitDone() if not source.task and job.head > event.batch:
            job.pending[source.task] = source.time_ns - event.elapsed_ns
        case JobStopped() | CommitDone() | CommitPassedOver():
            job.pending.pop(source.task, None)
        case _:
            pass


def _of_clean_up(
    job: _Job, event: CleanUpDone | CleanUpFailing | JobStopped, source: EventSource
) -> Iterator[Figure]:
    if isinstance(event, CleanUpDone):
        yield Figure(RELEASED, event.released)
    if isinstance(event, CleanUpFailing):
        job.failing_s[source.task] = event.minutes * 60
    else:
        job.failing_s.pop(source.task, None)
    yield Figure(CLEAN_UP_FAILING, max(job.failing_s.values(), default=0))


def _backend(event: BackendUploaded | StoreFetched) -> dict[str, str]:
    return {"backend": event.backend}


def _of_commit(event: Event, source: EventSource) -> Iterator[Figure]:
    match event:
        case CommitSubmitted() if source.task:  # on Spark nothing stands still for it
            yield Figure(COMMIT_PAUSES, event.elapsed_ns * _PER_NS)
        case CommitSkipped():
            yield Figure(SKIPPED, 1)
        case CommitBlocked(elapsed_ns=elapsed_ns):
            yield Figure(BLOCKED, elapsed_ns * _PER_NS)
        case CommitAborted():
            yield Figure(ABORTED, 1)
        case CommitFailed():
            yield Figure(COMMITS, event.elapsed_ns * _PER_NS, {"outcome": "failed"})
            yield Figure(FAILURES, 1, {"step": event.step})
        case CommitDone():
            if not event.was_rolled_forward:
                yield Figure(COMMITS, event.elapsed_ns * _PER_NS, {"outcome": "done"})
            if not source.task:
                yield Figure(LAST_BATCH, event.batch)
        case _:
            pass


def _of_recovery(
    event: StoreFetched | TaskRestored | BatchReplayed | Recovered,
) -> Iterator[Figure]:
    match event:
        case StoreFetched():
            ended = {**_backend(event), "outcome": event.outcome}
            yield Figure(FETCHES, event.elapsed_ns * _PER_NS, ended)
            yield Figure(FETCHED, event.bytes, ended)
        case TaskRestored():
            yield Figure(RESTORES, event.elapsed_ns * _PER_NS)
        case BatchReplayed():
            yield Figure(REPLAYS, event.elapsed_ns * _PER_NS)
            yield Figure(REPLAYED_ROWS, event.rows)
        case Recovered():
            yield Figure(RECOVERIES, event.elapsed_ms / 1000)
            yield Figure(DIVERGED, event.diverged)


def _of_proof(event: CommitVerified | VerifyFailed, source: EventSource) -> Iterator[Figure]:
    if isinstance(event, VerifyFailed):
        yield Figure(VERIFY_FAILURES, event.is_damaged, {"backend": event.backend})
        return
    yield Figure(LAST_VERIFIED, source.time_ns * _PER_NS)
    if not source.task:
        yield Figure(VERIFIED_BATCH, event.batch)


def _of_request(event: RequestDone) -> Iterator[Figure]:
    asked = {"backend": event.backend, "operation": event.operation}
    ended = {**asked, "outcome": event.outcome, "purpose": event.purpose or "other"}
    yield Figure(REQUESTS, event.count, ended)
    if event.count == 1:
        yield Figure(REQUEST_TIMES, event.elapsed_ns * _PER_NS, asked)


def _of_job(
    event: JobStarted | JobFenced | QueryRestarted | BatchDone, source: EventSource
) -> Iterator[Figure]:
    match event:
        case JobStarted() if not source.task:
            yield Figure(EPOCH, event.epoch)
            yield Figure(HEAD, event.head)
            yield Figure(LAST_BATCH, event.committed)
        case JobFenced():
            yield Figure(FENCED, 1)
        case QueryRestarted():
            yield Figure(RESTARTS, 1)
        case BatchDone():
            yield Figure(HEAD, event.batch)
            yield Figure(ROWS_IN, event.rows_in)
            yield Figure(ROWS_OUT, event.rows_out)
            if event.max_pause_ms > 0:
                yield Figure(COMMIT_PAUSES, event.max_pause_ms / 1000)
        case _:
            pass

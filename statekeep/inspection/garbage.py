"""Mark and sweep: what a job's backends hold that no retained commit reaches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statekeep.backends.base import GarbageCollector, GarbageScope
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import BackendName, Marker, TaskName
from statekeep.checkpoint.records import AttemptRecord
from statekeep.commit.retention import closed_attempts
from statekeep.inspection.job import InspectedJob

DEFAULT_GRACE_MS: Final = 24 * 3_600_000
"""A day: a margin against a wrong clock or a mistake of ours; the log is the proof."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """What was found, and deleted unless it was a dry run."""

    found: Mapping[BackendName, Sequence[str]]
    """Names of blobs or files, of every backend that has a collector."""
    uncollected: Sequence[BackendName]
    """Backends that have none: what their own clean-up leaves, nobody can find by name."""
    newest_closed: tuple[int, int] | None
    """(epoch, attempt) up to which everything was looked at; None: nothing is old enough."""
    is_dry_run: bool


async def collect_garbage(
    job: InspectedJob, *, grace_ms: int = DEFAULT_GRACE_MS, is_dry_run: bool = True
) -> Garbage:
    """Find, and unless told otherwise only find, what no retained commit of a job reaches.

    Also of tasks, operators and stores that the job no longer has; a backend that the configuration
    has dropped has to be put back into it for this. Safe while the job runs, and however long it
    takes: only what attempts made that were closed when the job was opened is looked at. In plain
    Python, where each task has its own log, this is one task's.

    Args:
        job: Opened with the configuration of the job.
        grace_ms: Attempts that were begun less than so long ago are left alone.
        is_dry_run: Delete nothing.

    Raises:
        BlobNotFoundError: What a retained commit names is gone: nothing was deleted in that backend
            (CheckpointCorruptError: damaged; KeyUnavailableError: its key is missing).
        RetriableError: A service may answer later; some may be deleted.
    """
    collectors = {
        name: factory.garbage_collector(job.executor, job.clock)
        for name, factory in job.place.factories.items()
    }
    try:
        newest = _newest_closed(job, grace_ms)
        found: dict[BackendName, Sequence[str]] = {}
        for name, collector in collectors.items():
            if collector is not None:
                found[name] = await _collect(job, name, collector, newest, is_dry_run=is_dry_run)
    finally:
        for collector in collectors.values():
            if collector is not None:
                await collector.close()
    uncollected = [name for name, collector in collectors.items() if collector is None]
    return Garbage(found, uncollected, newest, is_dry_run)


async def _collect(
    job: InspectedJob,
    backend: BackendName,
    collector: GarbageCollector,
    newest: tuple[int, int] | None,
    *,
    is_dry_run: bool,
) -> Sequence[str]:
    commit = job.view.last_commit
    if newest is None or commit is None:
        return []
    identity = commit.identity
    scope = GarbageScope(
        identity.job_name, identity.job_uid, _retained_markers(job, backend), newest
    )
    names = await collector.find(scope)
    if not is_dry_run:
        await collector.delete(names)
    return names


def _retained_markers(job: InspectedJob, backend: BackendName) -> frozenset[Marker]:
    """Return every good marker of a backend in every commit that is not released."""
    checkpoints = [
        job.view.usable_checkpoint(commit, TaskName(task))
        for commit in job.view.commits.values()
        for task in commit.checkpoints
    ]
    return frozenset(
        marker
        for checkpoint in checkpoints
        if checkpoint is not None
        for marker in checkpoint.markers_of(backend).values()
    )


def _newest_closed(job: InspectedJob, grace_ms: int) -> tuple[int, int] | None:
    """Return the newest attempt that is closed and was begun long enough ago."""
    limit_ms = job.clock.time_ns() // 1_000_000 - grace_ms
    begun_ms = {
        (record.epoch, record.attempt): CheckpointId.parse(record.checkpoint_id).millis
        for _, record in job.records
        if isinstance(record, AttemptRecord)
    }
    # One whose record is below the floor of the log is older than all that are above it.
    old_enough = [
        attempt
        for attempt in closed_attempts(job.view)
        if begun_ms.get(attempt, limit_ms) <= limit_ms
    ]
    return max(old_enough, default=None)

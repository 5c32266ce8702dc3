"""Whether the copies of a commit can be restored: each task, from each backend, every byte compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from statekeep.checkpoint.checkpoints import BackendName, StoreName, TaskName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.records import CommitRecord
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import RestoreFailedError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.task_restore import Progress, stores_of, task_identity
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion


@dataclass(frozen=True, slots=True)
class VerifiedCopy:
    """What was found of one task in one backend."""

    task: TaskName
    backend: BackendName | None
    """None: no backend has anything of it."""
    bytes: int = 0
    """That were fetched."""
    entries: int | None = None
    """In all stores of the task; None: not counted."""
    error: str | None = None
    """None: it is fine."""
    is_damaged: bool = False
    """Missing or damaged for good; otherwise an error may pass."""
    failure: RestoreFailedError | None = None
    """What the restore ended with."""


def holders_of(job: InspectedJob, commit: CommitRecord, task: TaskName) -> list[BackendName]:
    """Return the backends of which a commit has markers of a task."""
    checkpoint = job.checkpoint(commit, task)
    return [] if checkpoint is None else sorted(checkpoint.state_markers)


def unheld(commit: CommitRecord, task: TaskName) -> VerifiedCopy:
    """Return what there is to say of a task of which no backend holds anything."""
    error = f"no backend holds anything of the version: version={commit.versions[task]}"
    return VerifiedCopy(task, None, error=error, is_damaged=True)


def missing_from(
    job: InspectedJob, commit: CommitRecord, tasks: Sequence[TaskName], backend: BackendName
) -> list[VerifiedCopy]:
    """Say of which stores a backend should have a marker by the settings, and has none."""
    found: list[VerifiedCopy] = []
    for task in tasks:
        checkpoint = job.checkpoint(commit, task)
        if checkpoint is None:  # then no backend has anything, which is told of another way
            continue
        wanted = _stores_for(job, commit, lambda settings: backend in settings.backup_factories)
        missing = sorted(wanted - set(checkpoint.markers_of(backend)))
        if missing:
            error = f"the commit has no marker of the backend: stores={','.join(missing)}"
            found.append(VerifiedCopy(task, backend, error=error, is_damaged=True))
    return found


async def verify_copy(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    backend: BackendName,
    directory: Path,
    *,
    is_counted: bool = False,
    on_progress: Progress = lambda _: None,
) -> VerifiedCopy:
    """Restore one task from one backend into an empty directory, and compare every checksum.

    Args:
        job: Whose commit it is.
        commit: To be verified.
        task: Of the commit.
        backend: To restore from.
        directory: Gets the files.
        is_counted: Read all entries too, and count them.
        on_progress: Called as bytes arrive.

    Raises:
        ConfigError: The settings lack the backend, or the directory cannot be used.
    """
    try:
        outcome = await job.restore(
            commit, task, directory, backend=backend, on_progress=on_progress
        )
    except RestoreFailedError as exc:
        notes: list[str] = getattr(exc, "__notes__", [])
        # The hints are for a job that cannot start.
        text = "; ".join([exc.message, *notes])
        # A backup that was never made: a job stops there, but asking again does not help.
        is_lost = exc.is_for_good or bool(_lost_stores(job, commit, task))
        return VerifiedCopy(task, backend, error=text, is_damaged=is_lost, failure=exc)
    # Where settings list no backend for it, the restore has begun it empty.
    if lost := _lost_stores(job, commit, task):
        error = f"no backend holds a store that the commit lists: stores={','.join(sorted(lost))}"
        return VerifiedCopy(task, backend, outcome.bytes_fetched, error=error, is_damaged=True)
    entries: int | None = None
    if is_counted:
        count = partial(_count_entries, job, commit, task, directory, outcome.version)
        entries = await job.executor.run(count)
    return VerifiedCopy(task, backend, outcome.bytes_fetched, entries)


def _count_entries(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    directory: Path,
    version: SealedVersion | None,
) -> int:
    """Open what was restored, and count what all stores hold. Blocks."""
    identity = task_identity(commit, task)
    stores = stores_of(commit)[identity.operator]
    with TaskDirectory.of(directory, identity).begin(random_nonce(), version, stores) as work:
        opened = [work.open_store(store, job.config.store(store).factory) for store in stores]
        return sum(1 for store in opened for _ in store.scan())


def _lost_stores(job: InspectedJob, commit: CommitRecord, task: TaskName) -> set[StoreName]:
    """Return the stores that should be backed up, and of which no backend has a marker.

    A commit on Spark lists no others; one of plain Python lists those without a backup too.
    """
    checkpoint = job.checkpoint(commit, task)
    held: set[StoreName] = set()
    if checkpoint is not None:
        held.update(*checkpoint.state_markers.values())
    is_on_spark = bool(commit.identity.router)
    return _stores_for(job, commit, lambda settings: is_on_spark or settings.is_durable) - held


def _stores_for(
    job: InspectedJob, commit: CommitRecord, is_wanted: Callable[[StoreSettings], bool]
) -> set[StoreName]:
    named = {store for stores in job.stores(commit).values() for store in stores}
    return {store for store in named if is_wanted(job.config.store(store))}

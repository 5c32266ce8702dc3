"""The restore of one task at a commit, for a reader who need not have the job's log at hand."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from statekeep.backends.base import BlockingExecutor, StateBackendFactory, TaskIdentity
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.records import CommitRecord
from statekeep.checkpoint.serde import decode_checkpoint_v2
from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import ConfigError
from statekeep.inspection.nearest import nearest_hint
from statekeep.inspection.restore_sources import only_from, require_every_store, require_sources
from statekeep.restore.manager import RestoreCandidate, RestoreOutcome, TaskRestorer
from statekeep.restore.plan import BadMarkers
from statekeep.restore.progress import RestoreProgress
from statekeep.stores.task_directory import TaskDirectory

COPIES_OF_A_LOCATION: Final = MappingProxyType({"kind": "copies-of-a-location"})
"""`JobIdentity.settings` of a job whose stores are files of Spark's, which no engine opens."""

Progress = Callable[[RestoreProgress], None]
"""Called on the event loop with every step of a restore; must not raise."""


def checkpoint_in(commit: CommitRecord, task: TaskName) -> CheckpointV2 | None:
    """Return a task's checkpoint in a commit; None for a task whose state is still empty.

    Raises:
        ConfigError: The commit has no such task.
        CheckpointCorruptError: It cannot be read.
    """
    if task in commit.checkpoints:
        return decode_checkpoint_v2(bytes(commit.checkpoints[task]), where=f"task={task}")
    if task in commit.versions:
        return None
    tasks = ",".join(sorted({*commit.versions, *commit.checkpoints}))
    raise ConfigError(f"no such task in the commit: task={task} tasks={tasks}")


def stores_of(commit: CommitRecord) -> Mapping[str, Sequence[StoreName]]:
    """Return ``{operator: stores}`` as the commit lists them."""
    return {
        operator: [StoreName(store) for store in stores]
        for operator, stores in commit.identity.stores.items()
    }


def task_identity(commit: CommitRecord, task: TaskName) -> TaskIdentity:
    """Return the identity of a task in a commit."""
    job = commit.identity
    (operator, *_) = job.stores
    return TaskIdentity(job.job_name, operator, task, job_uid=job.job_uid)


async def restore_task(
    config: Config,
    factories: Mapping[BackendName, StateBackendFactory],
    commit: CommitRecord,
    task: TaskName,
    directory: Path,
    *,
    executor: BlockingExecutor,
    clock: Clock,
    bad_markers: BadMarkers,
    backend: BackendName | None = None,
    only: Collection[StoreName] | None = None,
    on_progress: Progress = lambda _: None,
) -> RestoreOutcome:
    """Restore one task's state at a commit into a directory, every byte verified.

    The job's log is neither read nor written.

    Args:
        config: The settings of the job.
        factories: Every backend that a store may be restored from, by name.
        commit: What to restore; it may have this task alone.
        task: Whose state.
        directory: Gets ``<job>/<operator>/<task>/<version>``; nothing else there is touched.
        executor: For blocking calls.
        clock: For durations and retries.
        bad_markers: Never used as a source, unless ``backend`` is given.
        backend: The only one to restore from: stores that only others hold are left out. None:
            those of the settings, in their order.
        only: The stores that are wanted, of those that the commit lists; None: all of them.
        on_progress: For a progress bar.

    Raises:
        ConfigError: The commit is a copy of a location; it has no such task; the settings name no backend that has the
            state of one of its stores, which would begin empty; ``backend`` has nothing of the
            task; or the directory has the version already, without some of these stores.
        RestoreFailedError: The state is out of reach; each reason is a note of the error.
    """
    if commit.identity.settings == COPIES_OF_A_LOCATION:
        raise ConfigError(
            f"the job holds copies of a checkpoint location: job={commit.identity.job_name}",
            hint="`statekeep guard verify` verifies a copy, `statekeep guard restore` makes a location of it",
        )
    checkpoint = checkpoint_in(commit, task)
    identity = task_identity(commit, task)
    stores = [s for s in stores_of(commit)[identity.operator] if only is None or s in only]
    settings: Mapping[StoreName, StoreSettings] = {store: config.store(store) for store in stores}
    if checkpoint is not None and backend is not None:
        _require_holder(checkpoint, task, backend, factories)
        settings = only_from(backend, checkpoint, settings)
    elif checkpoint is not None:
        require_sources(checkpoint, settings)
    versions = TaskDirectory.of(directory, identity)
    restorer = TaskRestorer(
        identity,
        versions,
        settings,
        factories,
        executor=executor,
        clock=clock,
        on_progress=on_progress,
        bad_markers=() if backend else bad_markers,
    )
    name = commit.versions.get(task)
    version = VersionId.parse(name) if name else None
    if checkpoint is not None and version is not None:
        there = await executor.run(versions.find_whole, version)
        if there is not None:
            require_every_store(there, checkpoint, settings)
    return await restorer.restore([RestoreCandidate(checkpoint, version, frozenset(stores))])


def _require_holder(
    checkpoint: CheckpointV2,
    task: TaskName,
    backend: BackendName,
    factories: Mapping[BackendName, StateBackendFactory],
) -> None:
    if not checkpoint.markers_of(backend):
        raise ConfigError(
            f"the commit has no marker of the backend: task={task} backend={backend} "
            f"backends={','.join(sorted(checkpoint.state_markers))}",
            hint=nearest_hint(
                backend,
                checkpoint.state_markers,
                "leave the backend out: any that has the state serves",
            ),
        )
    if backend not in factories:
        raise ConfigError(
            f"the settings do not name the backend: backend={backend}",
            key="stores.backup.factories",
            hint="give the settings of the job with --config or --set",
        )

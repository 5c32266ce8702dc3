"""What no retained commit of a job reaches: found, and deleted if asked to (R8)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from statekeep.backends.base import (
    BackupContext,
    CommitContext,
    GarbageCollector,
    GarbageScope,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
)
from statekeep.backends.optional_powers import PreviewsCleanUp
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    TaskName,
)
from statekeep.checkpoint.log_reset import LogRemains
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import AttemptRecord, JobIdentity, Record
from statekeep.commit.retention import ReadCommits, closed_attempts, commits_in_reach
from statekeep.config.model import Config
from statekeep.inspection.job import LogStorage


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What one backend holds that nothing reaches."""

    task: TaskName | None
    """Whose it is, where the backend cleans up by task; None: of all of them."""
    backend: BackendName
    names: Sequence[str] | None
    """None where the backend cannot say beforehand."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is retained and what is closed, by one view of the log, and whose it is."""

    identity: JobIdentity
    retained: Mapping[TaskName, Sequence[CheckpointV2]]
    """For every task of the job: what reaches something that is closed."""
    closed: Sequence[tuple[int, int]]

    @classmethod
    async def of(cls, view: LogView, identity: JobIdentity, read_commits: ReadCommits) -> "Sweep":
        """Return the sweep that a view of the log allows: safe at any time, also beside the job."""
        closed, tasks = closed_attempts(view), sorted(view.tasks)
        reaching = await commits_in_reach(view, closed, read_commits) if closed else None
        retained = {
            TaskName(task): () if reaching is None else reaching.checkpoints(task) for task in tasks
        }
        return cls(identity, retained, closed)

    @classmethod
    def of_everything(cls, identity: JobIdentity, tasks: Iterable[str], epoch: int) -> "Sweep":
        """Return the sweep of all that was made before an epoch, which has ended the job."""
        return cls(identity, {TaskName(task): () for task in sorted(tasks)}, [(epoch, 0)])

    @classmethod
    def of_remains(cls, remains: LogRemains, epoch: int) -> "list[Sweep]":
        """Return the sweeps of every job that a log names, all of which an epoch has ended."""
        return [
            cls.of_everything(identity, remains.tasks[uid], epoch)
            for uid, identity in remains.identities.items()
        ]

    def begun_before(self, records: Iterable[tuple[int, Record]], time_ms: int) -> "Sweep":
        """Return the sweep of attempts up to the newest that is closed and was begun before a time.

        A margin against a mistake: what may go is proven by the log alone, whatever the clocks say.

        Args:
            records: Of the log; one whose record is below its floor was begun before all others.
            time_ms: Wall-clock milliseconds.
        """
        begun_ms = {
            (record.epoch, record.attempt): CheckpointId.parse(record.checkpoint_id).millis
            for _, record in records
            if isinstance(record, AttemptRecord)
        }
        closed = [attempt for attempt in self.closed if begun_ms.get(attempt, time_ms) <= time_ms]
        return Sweep(self.identity, self.retained, closed)

    def scope_of(self, backend: BackendName) -> GarbageScope:
        """Return what a backend's garbage collector takes; only where something is closed."""
        markers = (
            checkpoint.markers_of(backend).values()
            for checkpoints in self.retained.values()
            for checkpoint in checkpoints
        )
        return GarbageScope(
            self.identity.job_name,
            self.identity.job_uid,
            frozenset(marker for found in markers for marker in found),
            max(self.closed),
        )


async def find_leftovers(storage: LogStorage, config: Config, sweep: Sweep) -> list[Leftovers]:
    """Return what `delete_leftovers` would delete, backend by backend.

    Raises:
        BlobNotFoundError: What a retained commit names is missing, so what may be deleted cannot be determined.
        RetriableError: A service may answer later.
    """
    return await _sweep(storage, config, sweep, is_deleting=False)


async def delete_leftovers(storage: LogStorage, config: Config, sweep: Sweep) -> list[Leftovers]:
    """Delete what nothing reaches, in every backend, and the checkpoints of closed attempts.

    Raises:
        BlobNotFoundError: What a retained commit names is gone: nothing was deleted there.
        RetriableError: A service may answer later; the call may be repeated.
    """
    found = await _sweep(storage, config, sweep, is_deleting=True)
    await _delete_checkpoints(storage, sweep)
    return found


async def _sweep(
    storage: LogStorage, config: Config, sweep: Sweep, *, is_deleting: bool
) -> list[Leftovers]:
    found: list[Leftovers] = []
    if not sweep.closed:
        return found
    for factory in storage.factories.values():
        collector = factory.garbage_collector(storage.executor, storage.clock)
        if collector is not None:
            found.append(await _collect(collector, factory.name, sweep, is_deleting=is_deleting))
            continue
        for task in sweep.retained:
            manager = _manager(storage, config, sweep, task, factory)
            found.append(
                await _clean_up(manager, factory.name, sweep, task, is_deleting=is_deleting)
            )
    return found


async def _collect(
    collector: GarbageCollector, backend: BackendName, sweep: Sweep, *, is_deleting: bool
) -> Leftovers:
    """Sweep a backend that finds garbage across tasks."""
    try:
        names = await collector.find(sweep.scope_of(backend))
        if is_deleting:
            await collector.delete(names)
    finally:
        await collector.close()
    return Leftovers(None, backend, names)


async def _clean_up(
    manager: TaskBackupManager,
    backend: BackendName,
    sweep: Sweep,
    task: TaskName,
    *,
    is_deleting: bool,
) -> Leftovers:
    """Sweep one task in a backend that cleans up task by task."""
    markers = [checkpoint.markers_of(backend) for checkpoint in sweep.retained[task]]
    try:
        names = None
        # Preparing may create what is missing, and a preview that finds nothing does not need it.
        if is_deleting or isinstance(manager, PreviewsCleanUp):
            await manager.init()
        if isinstance(manager, PreviewsCleanUp):
            names = await manager.unreached(markers, sweep.closed)
        if is_deleting:
            await manager.clean_up(markers, sweep.closed)
    finally:
        await manager.close()
    return Leftovers(task, backend, names)


async def _delete_checkpoints(storage: LogStorage, sweep: Sweep) -> None:
    """Delete what sidecars wrote for the driver to gather, of attempts that are closed."""
    if not sweep.closed:
        return
    store = storage.checkpoint_store()
    try:
        newest = max(sweep.closed)
        await store.delete_all({a for a in await store.attempts() if a <= newest})
    finally:
        await store.close()


def _manager(
    storage: LogStorage,
    config: Config,
    sweep: Sweep,
    task: TaskName,
    factory: StateBackendFactory,
) -> TaskBackupManager:
    identity = sweep.identity
    return factory.backup_manager(
        BackupContext(
            task=TaskIdentity(identity.job_name, MAIN_OPERATOR, task, job_uid=identity.job_uid),
            stores=tuple(
                StoreName(store)
                for stores in identity.stores.values()
                for store in stores
                if factory.name in config.store(store).backup_factories
            ),
            commit=_no_commit,
            executor=storage.executor,
            clock=storage.clock,
        )
    )


def _no_commit(checkpoint_id: CheckpointId) -> CommitContext:
    raise KeyError(checkpoint_id)

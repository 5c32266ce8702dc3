"""The contracts of a state backend: what a plug-in provides, and who calls it where.

Source: Samza 1.8 SEP-28 (``StateBackendFactory``, ``TaskBackupManager``, ``TaskRestoreManager``,
``StateBackendAdmin``). Different from Samza on purpose: a commit's
base comes with the commit instead of being remembered by the manager (so that a failed upload
cannot poison the next one), and clean-up is given what is retained (so that it is safe at any
time, also for a process that was paused): `docs/decisions`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, ParamSpec, Protocol, TypeVar

from typing_extensions import TypeVar as DefaultTypeVar

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.clock import Clock
from statekeep.events import Report
from statekeep.stores.base import KeyValueStore
from statekeep.stores.version import SealedVersion

P = ParamSpec("P")
T = TypeVar("T")


class BlockingExecutor(Protocol):
    """The container's one bounded pool for calls that block (`statekeep.commit.executor`)."""

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one blocking call on a pool thread and return its result.

        Waiting for a free thread happens here, in the coroutine, and holds no thread. ``call`` must
        end by itself: it never waits for another call of the executor. A cancelled caller leaves
        the call running; its result is dropped.
        """
        ...


@dataclass(frozen=True, slots=True)
class BackendProperties:
    """Facts about a backend, as data: nothing asks for a backend's type."""

    needs_files: bool = False
    """Uploads the files of a sealed version."""
    needs_changes: bool = False
    """Uploads the changes between versions, so that stores must capture them."""
    can_hold_job_log: bool = False
    """Implements `StateBackendFactory.job_log` and `checkpoint_store` with atomic create."""
    is_durable: bool = True
    """What it holds outlives the process.

    A job in plain Python whose backends all lack this, or whose log does, runs with a warning: its
    state survives a restart of the container, not of the program. On Spark it is refused.
    """
    keeps_every_commit: bool = True
    """A commit that is retained can be restored for as long as that; not so where old records give
    way to new ones of the same key."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Whose state it is; the parts of every remote name."""

    job_name: str
    operator: str
    """The stateful operator of the job; ``main`` in plain Python."""
    task_name: TaskName
    job_uid: str = ""
    """Drawn when the job log was created: keeps apart the blobs of two logs of one name."""


@dataclass(frozen=True, slots=True)
class JobTasks:
    """The tasks that a job starts with: an admin may make room for all of them at once."""

    job_name: str
    operator: str
    stores: tuple[StoreName, ...]
    """The stores that list the backend in ``stores.<name>.backup.factories``."""
    count: int
    """The tasks are ``Partition 0`` to ``Partition <count - 1>``."""


def _uncounted(_size: int) -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """One commit of one task, as a backup manager sees it."""

    checkpoint_id: CheckpointId
    epoch: int
    attempt: int
    """With ``epoch``, part of every remote name that the commit makes: names are never reused."""
    version: SealedVersion
    """The sealed version to back up: its files, its changes, its lineage. Immutable."""
    base: CheckpointV2 | None
    """The newest *committed* checkpoint of the task, None if there is none (R9).

    An increment may build on nothing else, and only if ``base_version`` is in the lineage of
    ``version`` and no marker used is a bad one; otherwise the upload is full.
    """
    base_version: VersionId | None
    """The version that ``base`` holds."""
    count_bytes: Callable[[int], None] = _uncounted
    """`TaskBackupManager.upload` calls it with the bytes it has sent; for progress, on the event loop."""


@dataclass(frozen=True, slots=True)
class BackupContext:
    """What a `TaskBackupManager` is built with."""

    task: TaskIdentity
    stores: tuple[StoreName, ...]
    """The stores that list this backend in ``stores.<name>.backup.factories``."""
    commit: Callable[[CheckpointId], CommitContext]
    """Gives the commit in flight by its id; KeyError for any other."""
    executor: BlockingExecutor
    clock: Clock


@dataclass(frozen=True, slots=True)
class RestoreContext:
    """What a `TaskRestoreManager` is built with."""

    task: TaskIdentity
    directories: Mapping[StoreName, Path]
    """Where each store's image goes: a path in a work directory that does not exist yet.

    What is left there after a failure or a cancel is thrown away by the caller.
    """
    reusable: Sequence[SealedVersion]
    """Local versions whose files may be hard-linked once they are proven equal."""
    open_store: Callable[[StoreName, Path], KeyValueStore]
    """Makes an empty store to be loaded, for backends that restore by replaying changes: many calls
    of `KeyValueStore.load`, then `close`. Before a scan it is flushed."""
    open_image: Callable[[StoreName, Path], KeyValueStore]
    """Opens a store to be loaded as well, on an image that was restored; VersionDamagedError where
    there is none, or it is damaged."""
    on_bytes: Callable[[int], None]
    """To be called on the loop with the number of bytes restored since the last call."""
    on_total: Callable[[int], None]
    """To be called once the number of bytes to fetch is known."""
    executor: BlockingExecutor
    clock: Clock
    version: VersionId | None = None
    """What the commit says that the checkpoint is of; None where it does not say."""


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """What one store sends in a commit, as far as the task's own disk shows."""

    changes: Sequence[Path] | None
    """The deltas that lead from the base to the version, in order; None: there is no base, or not
    all of them are at hand, so that the upload is full."""
    files: int
    """To be read: deltas, or files of the store's image."""
    bytes: int
    """Of these files; what is sent is as large, but for encoding."""


StoreSnapshotT = DefaultTypeVar("StoreSnapshotT", bound=StoreSnapshot, default=StoreSnapshot)


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[StoreSnapshotT]):
    """What one commit of a task sends to one backend; made by `TaskBackupManager.snapshot`."""

    stores: Mapping[StoreName, StoreSnapshotT]

    @property
    def bytes(self) -> int:
        """Return what is to be sent, before it is encoded."""
        return sum(store.bytes for store in self.stores.values())

    @property
    def files(self) -> int:
        """Return how many files are to be read for it."""
        return sum(store.files for store in self.stores.values())


def take_snapshot(
    commit: CommitContext, backend: BackendName, stores: Sequence[StoreName]
) -> Snapshot:
    """Return what stores send: the deltas since the base where they are at hand, else all files.

    Reads no file, only the version's seal manifest.
    """
    version = commit.version
    sizes = {version.directory / entry.path: entry.size for entry in version.manifest.files}
    taken: dict[StoreName, StoreSnapshot] = {}
    for store in stores:
        is_new = commit.base is None or store not in commit.base.markers_of(backend)
        base = None if is_new else commit.base_version
        changes = None if base is None else version.changes_since(store, base)
        found = version.store_sizes(store) if changes is None else [sizes[p] for p in changes]
        taken[store] = StoreSnapshot(changes, len(found), sum(found))
    return Snapshot(taken)


class TaskBackupManager(ABC, Generic[StoreSnapshotT]):
    """Backs up the stores of one task. Order of calls: init, then per commit snapshot, upload.

    Coroutines run on the container's event loop and never block it: blocking calls go through
    ``context.executor``.
    """

    @abstractmethod
    async def init(self) -> None:
        """Get ready, once.

        Raises:
            ConfigError: The storage is unreachable or refuses us.
            RetriableError: The service may answer later.
        """

    @abstractmethod
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot[StoreSnapshotT]:
        """Decide what goes up: files and bytes, against the base; blocking, no network.

        Called on an executor thread before each `upload`, so that metrics and progress bars know the
        total before it begins; mostly `take_snapshot`. What only the service knows, such as a missing
        base, may change it: then the upload is full.
        """

    @abstractmethod
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot[StoreSnapshotT]
    ) -> Mapping[StoreName, Marker]:
        """Make a snapshot durable while the task goes on processing.

        Awaited once per commit. Uploading the same snapshot again gives markers that restore the
        same state. Nothing refers to what a failed or cancelled upload left behind; clean-up
        collects it.

        Args:
            checkpoint_id: The commit.
            snapshot: What `snapshot` returned for it.

        Returns:
            A marker for every store of the context, after every byte is durable.

        Raises:
            RetriableError: The service may answer later; the wrapper repeats the call.
        """

    @abstractmethod
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        """Delete what no retained checkpoint reaches. Idempotent, off the commit's path.

        Safe at any time and by anyone, also by a process that slept while others went on: only
        what belongs to ``closed_attempts`` is deleted, and never what a retained marker reaches.

        Args:
            retained: The markers of each retained checkpoint of the task that may reach what attempts
                up to the newest of ``closed_attempts`` made. What a later checkpoint reaches of them
                it took over from its base, `CommitContext.base`, so that one of these reaches it too.
            closed_attempts: (epoch, attempt) of released commits and aborted attempts: the job log
                says that they are never restored and never complete. Attempts are begun one after
                the other, so those before the newest of these are closed or retained too; a trimmed
                log no longer names them all.

        Raises:
            RetriableError: The service may answer later; some of it may be deleted.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent; a running upload is cancelled by its caller first."""


class TaskRestoreManager(ABC):
    """Restores stores of one task. Order of calls: init, restore, close; each once."""

    @abstractmethod
    async def init(self, checkpoint: CheckpointV2) -> None:
        """Find what the checkpoint's markers name.

        Raises:
            BlobNotFoundError: A marker names nothing (or CheckpointCorruptError: it is damaged).
            RetriableError: The service may answer later.
        """

    @abstractmethod
    async def restore(self) -> None:
        """Fill ``context.directories`` with the stores' content, verified.

        Returns only when every byte has been compared with its recorded digest. A cancel stops
        promptly; what it leaves in the directories is thrown away.

        Raises:
            CheckpointCorruptError: Bytes differ from their digest: the next backend is tried.
            BlobNotFoundError: A blob is gone: the next backend is tried.
            RetriableError: The service may answer later.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""


class StateBackendAdmin(ABC):
    """Sets up and checks the remote side, once per start of a job, in this order.

    Both are also done, by an instance of its own, before an optional backend takes part in the first
    commit of a process, or in one after it has failed: they give up sooner than an upload does.
    """

    @abstractmethod
    async def create_resources(self) -> None:
        """Create what is missing (bucket prefix, topic, directory). Idempotent.

        Raises:
            ConfigError: The storage refuses us.
            RetriableError: It does not answer: a start goes on without one that is optional.
        """

    @abstractmethod
    async def validate_resources(self) -> None:
        """Check that the storage can do what the backend needs.

        Raises:
            ConfigError: It cannot; the message says what it lacks.
            RetriableError: It does not answer: a start goes on without one that is optional.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""


@dataclass(frozen=True, slots=True)
class GarbageScope:
    """What a job's log says, at one moment, of what may go."""

    job_name: str
    job_uid: str
    retained: frozenset[Marker]
    """Every marker of this backend in a commit that is not released, of all tasks and stores."""
    newest_closed: tuple[int, int]
    """(epoch, attempt): it and those before are closed, or completed by a retained commit."""


class GarbageCollector(ABC):
    """Finds and deletes what no retained commit reaches, whichever task or store made it.

    For people and tools: the job's own clean-up is by task, after commits. Safe at any time and
    by anyone, as `TaskBackupManager.clean_up` is. Runs on an event loop, never blocks it.
    """

    @abstractmethod
    async def find(self, scope: GarbageScope) -> Sequence[str]:
        """Return what may be deleted, sorted: names of blobs or files.

        Raises:
            BlobNotFoundError: What a retained marker names is gone (or CheckpointCorruptError: it
                is damaged): what may be deleted cannot be determined.
            RetriableError: The service may answer later.
        """

    @abstractmethod
    async def delete(self, names: Sequence[str]) -> None:
        """Delete what `find` returned, at any time after it. Idempotent.

        Unfinished puts in the scope of the last `find` are deleted too. They are not visible, so
        `find` does not list them.

        Raises:
            RetriableError: The service may answer later; some of it may be deleted.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release clients. Idempotent."""


class StateBackendFactory(ABC):
    """What a plug-in provides: builds the parts of one backend; building does no I/O.

    Found by `statekeep.backends.registry`. One instance per process and backend name.
    """

    properties: BackendProperties
    """Facts about the backend; a class attribute."""
    defaults_prefix: ClassVar[str] = ""
    """What stands before the settings of all backends of the kind, such as ``blob.store``."""

    def __init__(self, name: BackendName, settings: Mapping[str, str]) -> None:
        """Take the backend's own section of the configuration and check it.

        Args:
            name: The name that the configuration and markers use.
            settings: ``backends.<name>.*`` without the prefix, over the defaults that the
                configuration has for backends of this kind (such as ``blob.store.*``).

        Raises:
            ConfigError: A setting is unknown, missing or of the wrong type.
        """
        self.name = name
        self.settings = settings

    def report_requests(self, report: Report) -> None:
        """Report each try of a request as a `RequestDone` from now on; this one reports none.

        Args:
            report: Called by any thread; never waits.
        """
        del report

    @abstractmethod
    def backup_manager(self, context: BackupContext) -> TaskBackupManager[Any]:
        """Build the backup manager of one task."""

    @abstractmethod
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        """Build the restore manager of one task."""

    @abstractmethod
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        """Build the admin; ``tasks`` is None where they are not known yet, as in plain Python."""

    def garbage_collector(
        self, executor: BlockingExecutor, clock: Clock
    ) -> GarbageCollector | None:
        """Build what collects garbage across tasks; None: there is none to be found by name."""
        del executor, clock
        return None

    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        """Build the log of ``scope`` (a job, or ``<job>/<task>``), if `properties` say so."""
        msg = f"this backend cannot hold the job log: backend={self.name} scope={scope}"
        raise NotImplementedError(msg)

    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        """Build the checkpoint store of ``scope``, if `properties` say so."""
        msg = f"this backend cannot hold checkpoints: backend={self.name} scope={scope}"
        raise NotImplementedError(msg)

"""What a backend may offer beyond its contract: for people, or for a job that comes from elsewhere."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol, runtime_checkable

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.encryption_keys import KeyProvider
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.clock import Clock


@runtime_checkable
class PreviewsCleanUp(Protocol):
    """A `TaskBackupManager` that can say beforehand what its `clean_up` would delete."""

    async def unreached(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> Sequence[str]:
        """Return the names of what `clean_up` with the same arguments would delete; delete nothing.

        Raises:
            RetriableError: The service may answer later.
        """
        ...


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """One part of a snapshot, for people: a file, a delta, an offset, or a group of such."""

    name: str
    size: int | None = None
    """Bytes; None where it is not known, or where the parts have sizes of their own."""
    facts: Mapping[str, str | int | Sequence[str]] = field(
        default_factory=dict[str, str | int | Sequence[str]]
    )
    """By name: where it lies, which versions it leads from and to, how many keys it has."""
    parts: tuple["SnapshotNode", ...] = ()


@runtime_checkable
class DescribesSnapshots(Protocol):
    """A `StateBackendFactory` that can say what a marker stands for."""

    async def describe(
        self,
        task: TaskIdentity,
        store: StoreName,
        marker: Marker,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> Sequence[SnapshotNode]:
        """Return the parts that a restore from the marker reads, in the order of their use.

        Reads what describes them, never the state itself.

        Raises:
            BlobNotFoundError: A part that describes the others is gone.
            CheckpointCorruptError: The marker, or what it names, cannot be read.
            RetriableError: The service may answer later.
        """
        ...


@runtime_checkable
class FindsLosses(Protocol):
    """A `StateBackendFactory` that can tell what of a backup is gone, without reading it."""

    async def lost(
        self, task: TaskIdentity, marker: Marker, executor: BlockingExecutor, clock: Clock
    ) -> Collection[str]:
        """Return the names of what a restore from a marker needs, and which is not there.

        Raises:
            BlobNotFoundError: A part that describes the others is gone.
            CheckpointCorruptError: The marker, or what it names, cannot be read.
            RetriableError: The service may answer later.
        """
        ...


@runtime_checkable
class WritesInPlace(Protocol):
    """A `StateBackendFactory` whose backups go to storage that settings may give to two jobs."""

    def writes_over(self, task: TaskIdentity, store: StoreName, marker: Marker) -> bool:
        """Return whether a task's backup of a store would change what a marker of another's names.

        Raises:
            CheckpointCorruptError: The marker cannot be read.
        """
        ...


@runtime_checkable
class SharesBackups(Protocol):
    """A `StateBackendFactory` whose backups commits of other jobs may name.

    A marker names a backup in full, so that any job can restore it. No increment builds on a backup of another job,
    and no clean-up deletes one.
    """

    def is_own(self, task: TaskIdentity, store: StoreName, marker: Marker) -> bool:
        """Return whether a marker is of a backup that this task made, by its name and the uid of its job."""
        ...


@runtime_checkable
class FindsState(Protocol):
    """A `StateBackendFactory` that can tell whether a task has backups, without its log."""

    async def find_state(
        self, task: TaskIdentity, executor: BlockingExecutor, clock: Clock
    ) -> str | None:
        """Return where backups of a task are, under whichever ``job_uid``; None: there are none.

        For people: a name. Asked once, before the first record of the task's log is written.

        Raises:
            ConfigError: The storage refuses us.
            RetriableError: The service may answer later.
        """
        ...


@runtime_checkable
class ListsTaskLogs(Protocol):
    """A `StateBackendFactory` that can tell which tasks of a job have a log in it."""

    async def task_logs(
        self, job_name: str, operator: str, executor: BlockingExecutor, clock: Clock
    ) -> Sequence[str]:
        """Return the tasks for which there is a log, sorted; it may be empty.

        Raises:
            ConfigError: The storage refuses us.
            RetriableError: The service may answer later.
        """
        ...


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a backend encrypts."""

    keys: KeyProvider
    is_on: bool
    """Whether anything is to be encrypted; False: something was, and may still be read."""
    plain_until: date | None
    """The last day (UTC) on which what is not authenticated is read where it should be."""


@runtime_checkable
class Encrypts(Protocol):
    """A `StateBackendFactory` that can encrypt what it stores, and authenticates it by that.

    As soon as one backend of a job does, the job's log and the tasks' checkpoints are authenticated
    by its keys, wherever they lie (`statekeep.backends.seals`).
    """

    def encryption(self) -> Encryption | None:
        """Return how it encrypts; None where its settings name no keys."""
        ...

    async def outdated(
        self, markers: Mapping[StoreName, Collection[Marker]], executor: BlockingExecutor
    ) -> Collection[Marker]:
        """Return the markers of what is not encrypted with the current key, though it should be.

        Nothing is fetched: the next commit uploads these stores, though they have not changed.

        Raises:
            KeyUnavailableError: There is no current key.
            RetriableError: The provider of keys may answer later.
        """
        ...

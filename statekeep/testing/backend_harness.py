"""Plays the part of the container: runs one task's commits, clean-ups and restores on a backend."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    RestoreContext,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
)
from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
    VersionId,
)
from statekeep.clock import Clock
from statekeep.stores.base import KeyValueStore
from statekeep.stores.version import SealedVersion
from statekeep.testing.sealed_files import StoreContent, read_tree, seal_files

STORE: Final = StoreName("s1")

Markers = Mapping[StoreName, Marker]


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that the harness has recorded."""

    context: CommitContext
    checkpoint: CheckpointV2
    markers: Markers

    @property
    def attempt(self) -> tuple[int, int]:
        """(epoch, attempt)."""
        return (self.context.epoch, self.context.attempt)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore gave."""

    content: Mapping[StoreName, StoreContent]
    total_bytes: int
    """As announced by ``on_total``."""
    fetched_bytes: int
    """As reported by ``on_bytes``."""
    directories: Mapping[StoreName, Path]


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """What a process knows of the job log at one moment."""

    retained: Sequence[Markers]
    closed_attempts: Sequence[tuple[int, int]]


class BackendHarness:
    """One task and its job log, in miniature; keeps to the rules that the contracts rest on.

    One attempt is open at a time, its base is the newest commit, the newest commit is never
    released.

    Attributes:
        commits: Commits that are not released, oldest first.
        closed_attempts: (epoch, attempt) of released commits and aborted attempts.
        sent_bytes: What the backend reported as the bytes of its uploads.
        versions: Where sealed versions lie.
    """

    def __init__(
        self,
        factory: StateBackendFactory,
        executor: BlockingExecutor,
        clock: Clock,
        root: Path,
        *,
        task_name: str = "Partition 0",
        job_uid: str = "77aa",
        stores: Sequence[StoreName] = (STORE,),
    ) -> None:
        self.task = TaskIdentity("kit-job", "kit-operator", TaskName(task_name), job_uid)
        self.stores = tuple(stores)
        self.commits: list[Commit] = []
        self.closed_attempts: list[tuple[int, int]] = []
        self.sent_bytes: list[int] = []
        self._factory = factory
        self._executor = executor
        self._clock = clock
        self._root = root / task_name
        self.versions = self._root / "versions"
        self._numbers = itertools.count(1)
        self._contexts: dict[CheckpointId, CommitContext] = {}
        self._head: SealedVersion | None = None
        self._manager: TaskBackupManager | None = None

    @property
    def manager(self) -> TaskBackupManager:
        """The task's backup manager; there after `start`."""
        assert self._manager is not None, "start comes first"
        return self._manager

    async def start(self) -> None:
        """Build and initialise the backup manager, as a container does at its start."""
        context = BackupContext(
            self.task, self.stores, self._contexts.__getitem__, self._executor, self._clock
        )
        self._manager = self._factory.backup_manager(context)
        await self._manager.init()

    async def close(self) -> None:
        """Close the backup manager."""
        if self._manager is not None:
            await self._manager.close()

    def seal(
        self,
        content: StoreContent | Mapping[StoreName, StoreContent],
        *,
        parent: SealedVersion | None = None,
    ) -> SealedVersion:
        """Seal a version made from ``parent`` (default: the version sealed before).

        Args:
            content: Of the only store, or of each.
            parent: What it was made from.
        """
        number = next(self._numbers)
        per_store = {StoreName(k): v for k, v in content.items() if isinstance(v, Mapping)}
        flat = {path: data for path, data in content.items() if isinstance(data, bytes)}
        content_of = per_store or dict.fromkeys(self.stores, flat)
        self._head = self._seal(number, content_of, parent or self._head)
        return self._head

    def open_store(self, name: StoreName, directory: Path) -> KeyValueStore:
        """Open a store for a backend that restores by writing keys."""
        msg = f"this harness has no store engine: store={name} directory={directory}"
        raise NotImplementedError(msg)

    def read_content(self, store: StoreName, directory: Path) -> StoreContent:
        """Return what a restore has put into a directory."""
        del store
        return read_tree(directory)

    def _seal(
        self,
        number: int,
        content: Mapping[StoreName, StoreContent],
        parent: SealedVersion | None,
    ) -> SealedVersion:
        version = VersionId(number, f"{number:08x}")
        return seal_files(self.versions, version, content, self.task, parent=parent)

    def open_attempt(self, version: SealedVersion, *, epoch: int = 1) -> CommitContext:
        """Begin a commit of a version, on the newest commit as its base."""
        number = next(self._numbers)
        base = self.commits[-1] if self.commits else None
        context = CommitContext(
            CheckpointId(self._clock.time_ns() // 1_000_000, number),
            epoch,
            number,
            version,
            base.checkpoint if base else None,
            base.context.version.id if base else None,
            self.sent_bytes.append,
        )
        self._contexts[context.checkpoint_id] = context
        return context

    async def upload(self, context: CommitContext) -> Markers:
        """Snapshot and upload, as the commit pipeline does; the commit is not recorded."""
        snapshot = await self._executor.run(self.manager.snapshot, context.checkpoint_id)
        return await self.manager.upload(context.checkpoint_id, snapshot)

    def record(self, context: CommitContext, markers: Markers) -> Commit:
        """Make an uploaded attempt the newest commit."""
        checkpoint = CheckpointV2(context.checkpoint_id, {}, {self._factory.name: dict(markers)})
        self.commits.append(Commit(context, checkpoint, markers))
        return self.commits[-1]

    def abort(self, context: CommitContext) -> None:
        """Declare that an attempt never completes."""
        self.closed_attempts.append((context.epoch, context.attempt))

    def release(self, commit: Commit) -> None:
        """Declare that a commit is never restored again."""
        assert commit is not self.commits[-1], "the newest commit is never released"
        self.commits.remove(commit)
        self.closed_attempts.append(commit.attempt)

    async def commit(self, version: SealedVersion) -> Commit:
        """Run one whole commit."""
        context = self.open_attempt(version)
        return self.record(context, await self.upload(context))

    def log_snapshot(self) -> LogSnapshot:
        """Return what a clean-up that begins now goes by."""
        markers = [commit.markers for commit in self.commits]
        return LogSnapshot(markers, tuple(self.closed_attempts))

    async def clean_up(self, known: LogSnapshot | None = None) -> None:
        """Clean up by what is known now, or by what was known earlier."""
        known = known or self.log_snapshot()
        await self.manager.clean_up(known.retained, known.closed_attempts)

    async def restore(
        self,
        checkpoint: CheckpointV2,
        *,
        reusable: Sequence[SealedVersion] = (),
        factory: StateBackendFactory | None = None,
        version: VersionId | None = None,
    ) -> Restored:
        """Restore all stores into a new directory and return what is in it.

        Args:
            checkpoint: What to restore.
            reusable: Local versions.
            factory: Default: the harness's own.
            version: What the commit says that the checkpoint is of; None: it does not say.
        """
        work = self._root / f"work-{next(self._numbers)}"
        work.mkdir(parents=True)
        directories = {store: work / store / "db" for store in self.stores}
        totals: list[int] = []
        sizes: list[int] = []
        context = RestoreContext(
            self.task,
            directories,
            reusable,
            self.open_store,
            self.open_store,
            sizes.append,
            totals.append,
            self._executor,
            self._clock,
            version,
        )
        manager = (factory or self._factory).restore_manager(context)
        try:
            await manager.init(checkpoint)
            await manager.restore()
        finally:
            await manager.close()
        content = {
            store: self.read_content(store, directory) for store, directory in directories.items()
        }
        return Restored(content, sum(totals), sum(sizes), directories)

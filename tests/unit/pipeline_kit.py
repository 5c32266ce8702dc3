"""A commit pipeline with two stores and two backends, which note what is asked of them."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from statekeep.backends.base import (
    BackupContext,
    BlockingExecutor,
    CommitContext,
    JobTasks,
    RestoreContext,
    Snapshot,
    StateBackendAdmin,
    StateBackendFactory,
    StoreSnapshot,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.clock import Clock
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.store_settings import StoreSettings
from statekeep.reporter import Reporter
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

TASK = TaskIdentity("job", "main", TaskName("Partition 0"))
S0, S1 = StoreName("s0"), StoreName("s1")
F0, F1 = BackendName("f0"), BackendName("f1")
INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
ID = CheckpointId(7, 1)


class FakeBackup(TaskBackupManager):
    """Takes notes and fails where it is told to."""

    def __init__(self, name: BackendName, context: BackupContext, calls: list[str]) -> None:
        self.name = name
        self.context = context
        self.calls = calls
        self.fail: dict[str, BaseException] = {}
        self.hang = False
        self.markers: Mapping[StoreName, Marker] = {
            store: Marker(f"{name}-{store}") for store in context.stores
        }
        self.clean_up_args: Any = None

    def note(self, step: str) -> None:
        self.calls.append(f"{self.name}.{step}")
        if step in self.fail:
            raise self.fail[step]

    @override
    async def init(self) -> None:
        self.note("init")

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        assert self.context.commit(checkpoint_id).checkpoint_id == checkpoint_id
        self.note("snapshot")
        return Snapshot({store: StoreSnapshot(None, 1, 5) for store in self.context.stores})

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        assert snapshot.bytes == 5 * len(self.context.stores)
        self.note("upload")
        if self.hang:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.calls.append(f"{self.name}.cancelled")
                raise
        return self.markers

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        self.clean_up_args = (list(retained), list(closed_attempts))
        self.note("clean_up")

    @override
    async def close(self) -> None:
        self.note("close")


class FakeAdmin(StateBackendAdmin):
    """Checks the place of a `FakeBackup`, which says whether it is there."""

    def __init__(self, backup: FakeBackup) -> None:
        self.backup = backup

    @override
    async def create_resources(self) -> None:
        self.backup.note("create")

    @override
    async def validate_resources(self) -> None:
        self.backup.note("check")

    @override
    async def close(self) -> None:
        self.backup.note("check-end")


class FakeFactory(StateBackendFactory):
    def __init__(self, name: BackendName, calls: list[str]) -> None:
        super().__init__(name, {})
        self.calls = calls
        self.manager: FakeBackup

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        self.manager = FakeBackup(self.name, context, self.calls)
        return self.manager

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        raise NotImplementedError

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return FakeAdmin(self.manager)


class Rig:
    """Two stores, both backed up to f0 and f1; f1 may be optional."""

    def __init__(self, root: Path, optional: Mapping[StoreName, tuple[str, ...]]) -> None:
        self.calls: list[str] = []
        self.factories = {name: FakeFactory(name, self.calls) for name in (F0, F1)}
        self.metrics = CommitMetrics()
        stores = {
            name: StoreSettings(
                name,
                factory="memory",
                backup_factories=(F0, F1),
                optional_factories=optional.get(name, ()),
            )
            for name in (S0, S1)
        }
        self.pipeline = TaskStorageCommitManager(
            TASK,
            stores,
            self.factories,
            executor=SerialExecutor(),
            clock=FakeClock(),
            report=Reporter(FakeClock(), "job", parts=[self.metrics]).report,
            optional_timeout_s=0.001 if optional else None,
        )
        directory = TaskDirectory.of(root, TASK)
        with directory.begin("aaaaaaaa", None, (S0, S1)) as work:
            for name in (S0, S1):
                work.open_store(name, "memory").put(b"k", b"v")
            self.version: SealedVersion = work.seal(0, "aaaaaaaa", None)

    def backup(self, name: BackendName) -> FakeBackup:
        return self.factories[name].manager

    async def commit(self) -> CheckpointV2:
        context = CommitContext(ID, 1, 1, self.version, None, None)
        return (await self.pipeline.commit(context, {INPUT: "41"})).checkpoint

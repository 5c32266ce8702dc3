"""What the author of a state backend writes; checked by mypy and pyright, never run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_type

from typing_extensions import override

from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    JobTasks,
    RestoreContext,
    Snapshot,
    StateBackendAdmin,
    StateBackendFactory,
    TaskBackupManager,
    TaskRestoreManager,
    take_snapshot,
)
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.clock import Clock


def copy_blocking(store: StoreName, size: int) -> str:
    """Stand in for a call of a client library."""
    return f"{store}-{size}"


class TapeBackupManager(TaskBackupManager):
    """Uses what the context offers."""

    def __init__(self, context: BackupContext) -> None:
        self._context = context

    @override
    async def init(self) -> None:
        return None

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        commit = self._context.commit(checkpoint_id)
        return take_snapshot(commit, BackendName("tape"), self._context.stores)

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        commit = self._context.commit(checkpoint_id)
        assert_type(commit.base, CheckpointV2 | None)
        assert_type(snapshot.bytes, int)
        done: dict[StoreName, Marker] = {}
        for store, taken in snapshot.stores.items():
            assert_type(taken.changes, Sequence[Path] | None)
            name = await self._context.executor.run(copy_blocking, store, size=commit.epoch)
            assert_type(name, str)
            done[store] = Marker(name)
        return done

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        return None

    @override
    async def close(self) -> None:
        return None


class TapeRestoreManager(TaskRestoreManager):
    """The smallest one."""

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        return None

    @override
    async def restore(self) -> None:
        return None

    @override
    async def close(self) -> None:
        return None


class TapeAdmin(StateBackendAdmin):
    """The smallest one."""

    @override
    async def create_resources(self) -> None:
        return None

    @override
    async def validate_resources(self) -> None:
        return None

    @override
    async def close(self) -> None:
        return None


class TapeBackendFactory(StateBackendFactory):
    """The smallest one: it need not hold the job log."""

    properties = BackendProperties(needs_files=True)

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return TapeBackupManager(context)

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return TapeRestoreManager()

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return TapeAdmin()


def build() -> StateBackendFactory:
    """A factory is made from its name and its section of the settings."""
    return TapeBackendFactory(BackendName("tape"), {"directory": "tapes"})

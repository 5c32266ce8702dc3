"""What the tests of the container share: settings, an executor-free place, a backend to slow down."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

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
)
from statekeep.backends.memory import MemoryBackendFactory
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.records import Record, decode_record
from statekeep.clock import Clock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import RetriableError

INPUT = SystemStreamPartition("gen", "numbers", 0)


def config(directory: Path, **settings: str) -> Config:
    """A job on memory stores and a backend `HeldBackendFactory` of its own place."""
    values = {
        "job.name": "job",
        "job.logged.store.base.dir": str(directory / "local"),
        "stores.default.factory": "memory",
        "stores.backup.factories": "held",
        "backends.held.factory": "container_kit:HeldBackendFactory",
        "backends.held.place": str(directory),
        "task.commit.ms": "0",
        "checkpoint.clean.up.ms": "0",
    }
    return load_dict(values | {key.replace("__", "."): value for key, value in settings.items()})


class Controls:
    """How the backend of one place behaves; shared by test and backend."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.uploading = 0
        self.most_uploading = 0
        self.upload_error: Callable[[], Exception] | None = None
        self.restore_began = asyncio.Event()
        self.restore_gate = asyncio.Event()
        self.restore_gate.set()
        self.cleaned: list[Sequence[tuple[int, int]]] = []
        self.clean_up_gate = asyncio.Event()
        self.clean_up_gate.set()
        self.lose_answer: tuple[type[Record], str] | None = None
        """Type of record whose append fails once, ``before`` or ``after`` it has landed."""
        self.log_error: Callable[[Record], Exception | None] = lambda record: None
        """What the append of a record fails with."""


_controls: Final[dict[str, Controls]] = {}


def controls(directory: Path) -> Controls:
    """Return the controls of a place."""
    return _controls.setdefault(str(directory), Controls())


class HeldBackendFactory(StateBackendFactory):
    """The memory backend, whose uploads and restores can be held up or made to fail."""

    properties = BackendProperties(needs_files=True, can_hold_job_log=True, is_durable=False)

    def __init__(self, name: BackendName, settings: Mapping[str, str]) -> None:
        super().__init__(name, settings)
        self._memory = MemoryBackendFactory(name, settings)
        self._controls = controls(Path(settings["place"]))

    @override
    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        return _HeldLog(self._memory.job_log(scope, executor, clock), self._controls)

    @override
    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        return self._memory.checkpoint_store(scope, executor, clock)

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return _HeldBackup(self._memory.backup_manager(context), self._controls)

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return _HeldRestore(self._memory.restore_manager(context), self._controls)

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return self._memory.admin(executor, clock)


class _HeldBackup(TaskBackupManager):
    def __init__(self, inner: TaskBackupManager, controls: Controls) -> None:
        self._inner = inner
        self._controls = controls

    @override
    async def init(self) -> None:
        await self._inner.init()

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        return self._inner.snapshot(checkpoint_id)

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        self._controls.uploading += 1
        self._controls.most_uploading = max(self._controls.most_uploading, self._controls.uploading)
        try:
            await self._controls.gate.wait()
            if self._controls.upload_error is not None:
                raise self._controls.upload_error()
            return await self._inner.upload(checkpoint_id, snapshot)
        finally:
            self._controls.uploading -= 1

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        self._controls.cleaned.append(closed_attempts)
        await self._controls.clean_up_gate.wait()
        await self._inner.clean_up(retained, closed_attempts)

    @override
    async def close(self) -> None:
        await self._inner.close()


class _HeldRestore(TaskRestoreManager):
    def __init__(self, inner: TaskRestoreManager, controls: Controls) -> None:
        self._inner = inner
        self._controls = controls

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        await self._inner.init(checkpoint)

    @override
    async def restore(self) -> None:
        self._controls.restore_began.set()
        await self._controls.restore_gate.wait()
        await self._inner.restore()

    @override
    async def close(self) -> None:
        await self._inner.close()


class _HeldLog(JobLog):
    def __init__(self, inner: JobLog, controls: Controls) -> None:
        self._inner = inner
        self._controls = controls

    @override
    async def probe(self) -> None:
        await self._inner.probe()

    @override
    async def append(self, position: int, data: bytes) -> None:
        record = decode_record(data, where="test")
        error = self._controls.log_error(record)
        if error is not None:
            raise error
        losing = self._controls.lose_answer
        if losing is None or not isinstance(record, losing[0]):
            await self._inner.append(position, data)
            return
        self._controls.lose_answer = None
        if losing[1] == "after":
            await self._inner.append(position, data)
        raise RetriableError("the answer was lost")

    @override
    async def read(self, start: int, *, limit: int | None = None) -> Sequence[tuple[int, bytes]]:
        return await self._inner.read(start, limit=limit)

    @override
    async def read_floor(self) -> int:
        return await self._inner.read_floor()

    @override
    async def trim(self, floor: int) -> None:
        await self._inner.trim(floor)

    @override
    async def close(self) -> None:
        await self._inner.close()

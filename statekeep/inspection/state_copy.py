"""A backup of a task's restored state: the step that migration, savepoints, rescaling and writes share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from statekeep.backends.base import (
    BlockingExecutor,
    CommitContext,
    StateBackendFactory,
    TaskIdentity,
)
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
    TaskName,
    VersionId,
)
from statekeep.clock import Clock
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import CommitFailedError
from statekeep.events import Event, Report, SnapshotTaken, TaskUploaded, report_nothing
from statekeep.stores.version import SealedVersion


class Uploads(Protocol):
    """Follows what is uploaded; for people, on the event loop."""

    def expect(self, size: int, /) -> None:
        """Add to what is to be sent, before any of it is; encoded, it may be less."""
        ...

    def add(self, size: int, /) -> None:
        """Count bytes that were sent."""
        ...


class _UnseenUploads:
    def expect(self, size: int, /) -> None:
        pass

    def add(self, size: int, /) -> None:
        pass


UNSEEN: Final[Uploads] = _UnseenUploads()
"""Shows nothing."""


@dataclass(frozen=True, slots=True)
class CommitBackups:
    """Where the state of tasks is backed up, and under which attempt of which log."""

    factories: Mapping[BackendName, StateBackendFactory]
    stores: Mapping[StoreName, StoreSettings]
    """Each lists the backends that it goes to."""
    epoch: int
    attempt: int
    checkpoint_id: CheckpointId
    executor: BlockingExecutor
    clock: Clock
    uploads: Uploads
    optional_timeout_s: float | None = None
    """How long an upload to an optional backend may take, which is asked first whether it answers; None: as
    long as it wants."""
    report: Report = report_nothing

    async def back_up(
        self,
        task: TaskIdentity,
        version: SealedVersion,
        input_offsets: Mapping[SystemStreamPartition, str],
        base: tuple[CheckpointV2, VersionId] | None = None,
    ) -> CheckpointV2:
        """Back up a version.

        Args:
            task: Whose state it becomes, with the uid of its job's log.
            version: The state; must stay in place meanwhile.
            input_offsets: For the checkpoint.
            base: The task's newest commit, and the version in it, to build an increment on. None: all
                is uploaded, and nothing of an earlier upload is used or referred to.

        Raises:
            CommitFailedError: With the step that failed; nothing refers to what was uploaded.
            TaskFencedError: A backend found a newer owner.
        """
        began_ns = self.clock.monotonic_ns()
        pipeline = TaskStorageCommitManager(
            task,
            self.stores,
            self.factories,
            executor=self.executor,
            clock=self.clock,
            report=self._report,
            optional_timeout_s=self.optional_timeout_s,
        )
        if self.optional_timeout_s is not None:
            pipeline.ask_optional_first()
        try:
            await pipeline.init()
            backed_up = await pipeline.commit(
                CommitContext(
                    checkpoint_id=self.checkpoint_id,
                    epoch=self.epoch,
                    attempt=self.attempt,
                    version=version,
                    base=None if base is None else base[0],
                    base_version=None if base is None else base[1],
                    count_bytes=self.uploads.add,
                ),
                input_offsets,
            )
        finally:
            await pipeline.close()
        self.report(
            TaskUploaded(
                task=task.task_name,
                attempt=self.attempt,
                batch=version.id.batch,
                bytes=backed_up.bytes_uploaded,
                elapsed_ms=(self.clock.monotonic_ns() - began_ns) // 1_000_000,
                uploads=msgspec.to_builtins(backed_up.uploads),
                changed_bytes=backed_up.changed_bytes,
                state_bytes=backed_up.state_bytes,
            )
        )
        return backed_up.checkpoint

    def _report(self, event: Event) -> None:
        self.report(event)
        if isinstance(event, SnapshotTaken):
            self.uploads.expect(sum(event.bytes_by_backend.values()))


def require_markers(
    task: TaskName, version: SealedVersion, checkpoint: CheckpointV2, stores: Iterable[StoreName]
) -> None:
    """Make sure that some backend has each store of a version.

    Raises:
        CommitFailedError: None has one of them.
    """
    held = {store for markers in checkpoint.state_markers.values() for store in markers}
    for store in stores:
        if version.store_files(store) and store not in held:
            raise CommitFailedError(
                f"no backend has a store of a changed task: task={task} store={store}",
                checkpoint_id=checkpoint.checkpoint_id.serialize(),
                step="upload",
            )


def listing_only(
    settings: Mapping[StoreName, StoreSettings], backends: tuple[BackendName, ...]
) -> Mapping[StoreName, StoreSettings]:
    """Return the settings of stores as if each listed these backends, all of them required."""
    return {
        name: replace(found, backup_factories=backends, optional_factories=())
        for name, found in settings.items()
    }


async def prepare_backends(
    factories: Mapping[BackendName, StateBackendFactory], executor: BlockingExecutor, clock: Clock
) -> None:
    """Create and check the storage of backends, as the start of a job does.

    Raises:
        ConfigError: A storage is unreachable, refuses us, or cannot do what is needed.
    """
    for factory in factories.values():
        admin = factory.admin(executor, clock)
        try:
            await admin.create_resources()
            await admin.validate_resources()
        finally:
            await admin.close()


async def create_resources(
    factories: Mapping[BackendName, StateBackendFactory], executor: BlockingExecutor, clock: Clock
) -> None:
    """Create the storage of backends where it is missing, and find out whether they answer.

    Raises:
        ConfigError: One refuses us.
        RetriableError: One may answer later.
    """
    for factory in factories.values():
        admin = factory.admin(executor, clock)
        try:
            await admin.create_resources()
        finally:
            await admin.close()


async def validate_backend(
    factory: StateBackendFactory, executor: BlockingExecutor, clock: Clock
) -> None:
    """Find out whether a backend answers and takes backups; creates nothing.

    Raises:
        ConfigError: It is unreachable, refuses us, or cannot do what is needed.
        RetriableError: It may answer later.
    """
    admin = factory.admin(executor, clock)
    try:
        await admin.validate_resources()
    finally:
        await admin.close()

"""A whole backup of a task's restored state: the step that migration, savepoints and rescaling share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from statekeep.backends.base import (
    BlockingExecutor,
    CommitContext,
    StateBackendFactory,
    TaskIdentity,
)
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
)
from statekeep.clock import Clock
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.config.model import StoreSettings
from statekeep.stores.version import SealedVersion


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """Where the state of tasks is backed up, and under which attempt of which log."""

    factories: Mapping[BackendName, StateBackendFactory]
    stores: Mapping[StoreName, StoreSettings]
    """Each lists the backends that it goes to."""
    epoch: int
    attempt: int
    checkpoint_id: CheckpointId
    executor: BlockingExecutor
    clock: Clock
    count_bytes: Callable[[int], None]
    """Told of every byte that was sent; for people."""

    async def back_up(
        self,
        task: TaskIdentity,
        version: SealedVersion,
        input_offsets: Mapping[SystemStreamPartition, str],
    ) -> CheckpointV2:
        """Back up a version whole: nothing of an earlier upload is used or referred to.

        Args:
            task: Whose state it becomes, with the uid of its job's log.
            version: The state; must stay in place meanwhile.
            input_offsets: For the checkpoint.

        Raises:
            CommitFailedError: With the step that failed; nothing refers to what was uploaded.
            TaskFencedError: A backend found a newer owner.
        """
        pipeline = TaskCommitPipeline(
            task,
            self.stores,
            self.factories,
            executor=self.executor,
            clock=self.clock,
        )
        try:
            await pipeline.init(None)
            return await pipeline.commit(
                CommitContext(
                    checkpoint_id=self.checkpoint_id,
                    epoch=self.epoch,
                    attempt=self.attempt,
                    version=version,
                    base=None,
                    base_version=None,
                    count_bytes=self.count_bytes,
                ),
                input_offsets,
            )
        finally:
            await pipeline.close()


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
    """Create and check the places of backends, as the start of a job does.

    Raises:
        ConfigError: A place is unreachable, refuses us, or cannot do what is needed.
    """
    for factory in factories.values():
        admin = factory.admin(executor, clock)
        try:
            await admin.create_resources()
            await admin.validate_resources()
        finally:
            await admin.close()

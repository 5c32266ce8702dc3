"""Mistakes of a backend's author that a type checker must find.

An ignore that ignores nothing is an error of mypy's, so each line here proves that it is found.
"""

from collections.abc import Mapping

from typing_extensions import override

from statekeep.backends.base import Snapshot, TaskBackupManager, TaskRestoreManager
from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2, Marker, StoreName


class BlockingRestoreManager(TaskRestoreManager):
    """Restores with a plain method where a coroutine is asked for."""

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        return None

    @override
    def restore(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # the mistake
        return None

    @override
    async def close(self) -> None:
        return None


class ForgetfulBackupManager(TaskBackupManager):
    """Lacks `clean_up`."""

    @override
    async def init(self) -> None:
        return None

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        return Snapshot({})

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        return {"state": "marker"}  # type: ignore[dict-item]  # pyright: ignore[reportReturnType]  # plain strings

    @override
    async def close(self) -> None:
        return None


ForgetfulBackupManager()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # the mistake

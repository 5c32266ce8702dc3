"""The HDFS backend: everything that `statekeep.backends.hdfs` offers, put together."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    RestoreContext,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.hdfs.backup import HdfsBackupManager, SharedUpkeep
from statekeep.backends.hdfs.names import UploadMarker
from statekeep.backends.hdfs.restore import HdfsRestoreManager
from statekeep.backends.hdfs.settings import DEFAULTS_PREFIX, HdfsSettings
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import StoreFiles
from statekeep.backends.optional_powers import SnapshotNode
from statekeep.backends.storage.factory import StorageBackendFactory
from statekeep.backends.storage.names import TaskPrefix
from statekeep.backends.storage.settings import StorageSettings
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock
from statekeep.errors import ConfigError
from statekeep.stores.block_codec import codec_named


class HdfsBackendFactory(StorageBackendFactory):
    """State backups as deltas and snapshots below one root, made for HDFS.

    The storage need not be on HDFS: its settings of the storage are those of a blob backend.
    """

    properties = BackendProperties(needs_changes=True, can_hold_job_log=True)
    defaults_prefix: ClassVar[str] = DEFAULTS_PREFIX

    def __init__(
        self,
        name: BackendName,
        settings: Mapping[str, str],
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        """Check the settings.

        Args:
            name: Of the backend.
            settings: See `HdfsSettings`.
            new_uid: Draws lower-case hex that is never drawn again, for file names.
        """
        parsed = HdfsSettings.parse(name, settings)
        storage = StorageSettings.parse(name, parsed.storage)
        if storage.encryption != "none":
            raise ConfigError(
                f"an hdfs backend does not encrypt: backend={name}",
                key=f"backends.{name}.encryption",
                hint="a blob backend does, on HDFS too: "
                f"backends.{name}.factory=blob backends.{name}.uri=hdfs://...",
            )
        super().__init__(name, parsed.storage, storage, new_uid=new_uid)
        self._hdfs_settings = parsed
        self._upkeep = SharedUpkeep()
        codec_named(self._hdfs_settings.compression)

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return HdfsBackupManager(
            context,
            self.blob_store_manager(context.executor, context.clock),
            TaskPrefix(self.name, context.task),
            self._hdfs_settings,
            upkeep=self._upkeep,
            new_uid=self._new_uid,
        )

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return HdfsRestoreManager(
            context,
            self.blob_store_manager(context.executor, context.clock),
            self.name,
        )

    async def describe(
        self,
        task: TaskIdentity,
        store: StoreName,
        marker: Marker,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> Sequence[SnapshotNode]:
        """Return the snapshot and the deltas of an upload: see `DescribesSnapshots`."""
        if SparkStart.parse(marker) is not None:
            return [SnapshotNode("files of Spark's own state store", None, {"marker": marker})]
        manager = self.blob_store_manager(executor, clock)
        try:
            await manager.init()
            upload = UploadMarker.parse(marker)
            files = StoreFiles(manager, upload.prefix, task, store)
            plan = await files.plan(upload)
            headers = [await files.header(name) for name in plan.files]
        finally:
            await manager.close()
        return [
            SnapshotNode(
                str(name), None, {"path": files.path(name), "version": str(header.version)}
            )
            for name, header in zip(plan.files, headers, strict=True)
        ]

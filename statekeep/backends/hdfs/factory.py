"""The HDFS backend: everything that `statekeep.backends.hdfs` offers, put together."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    JobTasks,
    RestoreContext,
    StateBackendAdmin,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.names import TaskPrefix
from statekeep.backends.hdfs.backup import HdfsBackupManager, SharedUpkeep
from statekeep.backends.hdfs.names import UploadMarker
from statekeep.backends.hdfs.restore import HdfsRestoreManager
from statekeep.backends.hdfs.settings import DEFAULTS_PREFIX, HdfsSettings
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import StoreFiles
from statekeep.backends.optional_powers import SnapshotNode
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock
from statekeep.stores.block_codec import codec_named


class HdfsBackendFactory(StateBackendFactory):
    """State backups as deltas and snapshots below one root, made for HDFS.

    The client, with its retries and its cap on calls in flight, is that of the blob backend; so are
    the job log and the checkpoints.
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
        super().__init__(name, settings)
        self._hdfs_settings = HdfsSettings.parse(name, settings)
        self._blobs = BlobBackendFactory(name, self._hdfs_settings.place, new_uid=new_uid)
        self._new_uid = new_uid
        self._upkeep = SharedUpkeep()
        codec_named(self._hdfs_settings.compression)

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return HdfsBackupManager(
            context,
            self._blobs.blob_store_manager(context.executor, context.clock),
            TaskPrefix(self.name, context.task),
            self._hdfs_settings,
            upkeep=self._upkeep,
            new_uid=self._new_uid,
        )

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        return HdfsRestoreManager(
            context,
            self._blobs.blob_store_manager(context.executor, context.clock),
            self.name,
        )

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        return self._blobs.admin(executor, clock)

    @override
    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        return self._blobs.job_log(scope, executor, clock)

    @override
    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        return self._blobs.checkpoint_store(scope, executor, clock)

    async def find_state(
        self, task: TaskIdentity, executor: BlockingExecutor, clock: Clock
    ) -> str | None:
        """Return the folder of a task's files: see `FindsState`."""
        return await self._blobs.find_state(task, executor, clock)

    async def task_logs(
        self, job_name: str, operator: str, executor: BlockingExecutor, clock: Clock
    ) -> Sequence[str]:
        """Return the tasks that have a log: see `ListsTaskLogs`."""
        return await self._blobs.task_logs(job_name, operator, executor, clock)

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
        manager = self._blobs.blob_store_manager(executor, clock)
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

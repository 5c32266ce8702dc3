"""The blob backend: everything that `statekeep.backends.blob` offers, put together."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeAlias

from typing_extensions import override

from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    GarbageCollector,
    JobTasks,
    RestoreContext,
    StateBackendAdmin,
    StateBackendFactory,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.blob.admin import BlobAdmin
from statekeep.backends.blob.backup import BlobBackupManager
from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.backends.blob.clean_up import BlobGarbageCollector, UnfinishedLooks
from statekeep.backends.blob.codec import Codec
from statekeep.backends.blob.content_writer import WriterLimits
from statekeep.backends.blob.encoded_stream import SALT_BYTES, key_check_of
from statekeep.backends.blob.encryption_keys import (
    KeyProvider,
    is_before_end_of,
    load_key_provider,
)
from statekeep.backends.blob.found_state import find_state, find_task_logs
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob.index_tree import describe_index
from statekeep.backends.blob.job_log import BlobJobLog
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob.managers.hdfs_place import is_hdfs, make_hdfs_manager
from statekeep.backends.blob.managers.object_places import ObjectPlace
from statekeep.backends.blob.names import TaskPrefix, index_key_check
from statekeep.backends.blob.object_store import ObjectStore
from statekeep.backends.blob.restore import BlobRestoreManager
from statekeep.backends.blob.settings import DEFAULTS_PREFIX, BlobSettings
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.dotted_path import load_object
from statekeep.backends.optional_powers import Encryption, SnapshotNode
from statekeep.backends.pacing import ByteBudget, Throttle, TokenBucket
from statekeep.backends.retry import Retrier, RetryPolicy
from statekeep.backends.wrappers import (
    InFlightLimit,
    LimitedBlobStoreManager,
    LoggedBlobStoreManager,
    PacedBlobStoreManager,
    RestingBlobStoreManager,
    RetryingBlobStoreManager,
)
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock
from statekeep.errors import ConfigError

ManagerFactory: TypeAlias = Callable[[Mapping[str, str], BlockingExecutor], BlobStoreManager]
"""What ``manager.factory`` names: takes the backend's settings and the executor; does no I/O."""


def _random_salt() -> bytes:
    return os.urandom(SALT_BYTES)


def _current_check(keys: KeyProvider) -> str:
    return key_check_of(keys.current())


class BlobBackendFactory(StateBackendFactory):
    """State backups as blobs under one root: a directory, a bucket, anything that fsspec reaches.

    Every manager that it builds retries, keeps to one common cap on calls in flight, and logs.
    """

    properties = BackendProperties(needs_files=True, needs_changes=True, can_hold_job_log=True)
    defaults_prefix: ClassVar[str] = DEFAULTS_PREFIX

    def __init__(
        self,
        name: BackendName,
        settings: Mapping[str, str],
        *,
        make_manager: ManagerFactory | None = None,
        new_uid: Callable[[], str] = random_nonce,
        new_salt: Callable[[], bytes] = _random_salt,
    ) -> None:
        """Check the settings.

        Args:
            name: Of the backend.
            settings: See `BlobSettings`.
            make_manager: Builds the client, whatever the settings say; None: as they say.
            new_uid: Draws lower-case hex that is never drawn again, for blob names.
            new_salt: Draws random bytes that are never drawn again, for encryption.
        """
        super().__init__(name, settings)
        self._blob_settings = BlobSettings.parse(name, settings)
        self._buffers = ByteBudget(self._blob_settings.transfer.buffer_bytes)
        self._keys = self._make_keys()
        self._new_salt = new_salt
        self._make_manager = make_manager
        self._new_uid = new_uid
        self._limit = InFlightLimit(self._blob_settings.max_in_flight)
        self._looks = UnfinishedLooks()
        self._bandwidth: TokenBucket | None = None
        self._throttle: Throttle | None = None
        self._object_store = self._make_object_store() if make_manager is None else None

    def blob_store_manager(self, executor: BlockingExecutor, clock: Clock) -> BlobStoreManager:
        """Build a client of the place, wrapped; the caller closes it."""
        return self._manager(executor, clock, self._blob_settings.retry)

    def _manager(
        self, executor: BlockingExecutor, clock: Clock, policy: RetryPolicy
    ) -> BlobStoreManager:
        retrier = Retrier(policy, clock)
        if self._object_store is not None:
            manager = self._object_store.manager(executor, clock, retrier, self._limit)
            return LoggedBlobStoreManager(manager, self.name, clock)
        logged = LoggedBlobStoreManager(self._bare_manager(executor), self.name, clock)
        if self._throttle is None:
            self._throttle = Throttle(clock)
        resting = RestingBlobStoreManager(logged, self._throttle)
        manager = LimitedBlobStoreManager(resting, self._limit)
        return RetryingBlobStoreManager(self._paced(manager, executor, clock), retrier, executor)

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager:
        return BlobBackupManager(
            context,
            self.blob_store_manager(context.executor, context.clock),
            TaskPrefix(self.name, context.task),
            policy=self._blob_settings.snapshots,
            codec=self._codec(context.clock),
            limits=WriterLimits(
                buffers=self._buffers,
                part_bytes=self._blob_settings.transfer.part_bytes,
                pack_file_bytes=self._blob_settings.pack_file_bytes,
            ),
            looks=self._looks,
            new_uid=self._new_uid,
        )

    @override
    def restore_manager(self, context: RestoreContext) -> TaskRestoreManager:
        manager = self.blob_store_manager(context.executor, context.clock)
        return BlobRestoreManager(
            context,
            manager,
            self.name,
            codec=self._codec(context.clock),
            buffers=self._buffers,
        )

    @override
    def admin(
        self, executor: BlockingExecutor, clock: Clock, tasks: JobTasks | None = None
    ) -> StateBackendAdmin:
        policy = self._blob_settings.start_retry
        probe = None
        if self._object_store is not None:
            retrier = Retrier(policy, clock)
            probe = self._object_store.probe(executor, clock, retrier, self._limit)
        return BlobAdmin(
            self.name,
            self._manager(executor, clock, policy),
            new_uid=self._new_uid,
            check_codec=partial(self._codec(clock).check, executor),
            object_probe=probe,
        )

    @override
    def garbage_collector(
        self, executor: BlockingExecutor, clock: Clock
    ) -> GarbageCollector | None:
        manager = self.blob_store_manager(executor, clock)
        indexes = IndexBlobs(manager, self._codec(clock), executor)
        return BlobGarbageCollector(manager, indexes, self.name)

    @override
    def job_log(self, scope: str, executor: BlockingExecutor, clock: Clock) -> JobLog:
        manager = self.blob_store_manager(executor, clock)
        return BlobJobLog(manager, scope, root=self._blob_settings.shown_root)

    @override
    def checkpoint_store(
        self, scope: str, executor: BlockingExecutor, clock: Clock
    ) -> CheckpointStore:
        return BlobCheckpointStore(self.blob_store_manager(executor, clock), scope)

    async def describe(
        self,
        task: TaskIdentity,  # noqa: ARG002 - the marker names everything in full
        store: StoreName,  # noqa: ARG002 - as above
        marker: Marker,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> Sequence[SnapshotNode]:
        """Return the image and the deltas of an index: see `DescribesSnapshots`."""
        manager = self.blob_store_manager(executor, clock)
        try:
            await manager.init()
            indexes = IndexBlobs(manager, self._codec(clock), executor)
            return describe_index(marker, await indexes.load(marker))
        finally:
            await manager.close()

    async def find_state(
        self, task: TaskIdentity, executor: BlockingExecutor, clock: Clock
    ) -> str | None:
        """Return the folder of a task's blobs: see `FindsState`."""
        manager = self.blob_store_manager(executor, clock)
        try:
            return await find_state(manager, task)
        finally:
            await manager.close()

    async def task_logs(
        self, job_name: str, operator: str, executor: BlockingExecutor, clock: Clock
    ) -> Sequence[str]:
        """Return the tasks that have a log: see `ListsTaskLogs`."""
        manager = self.blob_store_manager(executor, clock)
        try:
            return await find_task_logs(manager, job_name, operator)
        finally:
            await manager.close()

    def encryption(self) -> Encryption | None:
        """Return how state is encrypted: see `Encrypts`."""
        if self._keys is None:
            return None
        settings = self._blob_settings
        return Encryption(self._keys, settings.encoding.needs_keys, settings.plain_until)

    async def outdated(
        self, markers: Mapping[StoreName, Collection[Marker]], executor: BlockingExecutor
    ) -> Collection[Marker]:
        """Return what is not encrypted with the current key: see `Encrypts`."""
        encoding = self._blob_settings.encoding
        encrypted = {store: found for store, found in markers.items() if encoding.of(store)[1]}
        if self._keys is None or not any(encrypted.values()):
            return ()
        check = await executor.run(_current_check, self._keys)
        found = (marker for of_store in encrypted.values() for marker in of_store)
        return {marker for marker in found if index_key_check(marker) != check}

    def _codec(self, clock: Clock) -> Codec:
        settings = self._blob_settings
        accepts_older = partial(is_before_end_of, settings.plain_until, clock)
        return Codec(settings.encoding, self._keys, self._new_salt, accepts_older)

    def _paced(
        self, manager: BlobStoreManager, executor: BlockingExecutor, clock: Clock
    ) -> BlobStoreManager:
        rate = self._blob_settings.transfer.bandwidth_bytes_per_second
        if rate is None:
            return manager
        if self._bandwidth is None:
            self._bandwidth = TokenBucket(rate, clock)
        return PacedBlobStoreManager(manager, self._bandwidth, executor)

    def _make_object_store(self) -> ObjectStore | None:
        settings = self._blob_settings
        if settings.manager_factory is not None or settings.uri is None:
            return None
        key = f"backends.{self.name}.uri"
        place = ObjectPlace.parse(settings.uri, key)
        if place is not None and settings.storage_options:
            raise ConfigError(
                f"storage options are for filesystems of fsspec: backend={self.name}",
                key=f"backends.{self.name}.storage.options",
                hint="an object store has settings of its own: s3.*, azure.*",
            )
        if place is None and settings.transfer.uncommitted_tags:
            raise ConfigError(
                f"tags are for object stores: backend={self.name}",
                key=f"backends.{self.name}.uncommitted.tags",
                hint="clean-up collects what stays uncommitted without them",
            )
        return ObjectStore(place, settings, self._buffers) if place is not None else None

    def _make_keys(self) -> KeyProvider | None:
        settings = self._blob_settings
        if settings.encryption_keys is None:
            return None
        key = f"backends.{self.name}.encryption.keys"
        return load_key_provider(settings.encryption_keys, settings.key_options, key=key)

    def _bare_manager(self, executor: BlockingExecutor) -> BlobStoreManager:
        settings = self._blob_settings
        if self._make_manager is not None:
            return self._make_manager(self.settings, executor)
        if settings.manager_factory is None:
            return self._manager_by_scheme(settings.uri or "", executor)
        key = f"backends.{self.name}.manager.factory"
        make = load_object(settings.manager_factory, key=key)
        if not callable(make):
            raise ConfigError(f"not callable: {key}={settings.manager_factory}", key=key)
        manager = make(self.settings, executor)
        if not isinstance(manager, BlobStoreManager):
            raise ConfigError(
                f"made no BlobStoreManager: {key}={settings.manager_factory}", key=key
            )
        return manager

    def _manager_by_scheme(self, uri: str, executor: BlockingExecutor) -> BlobStoreManager:
        options = self._blob_settings.storage_options
        if is_hdfs(uri):
            key = f"backends.{self.name}.storage.options"
            return make_hdfs_manager(uri, options, executor, key=key)
        return FsspecBlobStoreManager(uri, options, executor)

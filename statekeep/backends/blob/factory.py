"""The blob backend: everything that `statekeep.backends.blob` offers, put together."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from statekeep.backends.base import (
    BackendProperties,
    BackupContext,
    BlockingExecutor,
    GarbageCollector,
    RestoreContext,
    TaskBackupManager,
    TaskIdentity,
    TaskRestoreManager,
)
from statekeep.backends.blob.backup import BlobBackupManager
from statekeep.backends.blob.clean_up import BlobGarbageCollector, UnfinishedChecks
from statekeep.backends.blob.codec import Codec
from statekeep.backends.blob.content_writer import WriterLimits
from statekeep.backends.blob.encoded_stream import SALT_BYTES
from statekeep.backends.blob.index_blobs import IndexBlobs, describe_index
from statekeep.backends.blob.names import index_key_check, is_below
from statekeep.backends.blob.restore import BlobRestoreManager
from statekeep.backends.blob.settings import DEFAULTS_PREFIX, BlobSettings
from statekeep.backends.encryption_keys import (
    KeyProvider,
    is_before_end_of,
    load_key_provider,
)
from statekeep.backends.frame_cipher import key_check
from statekeep.backends.optional_powers import Encryption, SnapshotNode
from statekeep.backends.storage.factory import ManagerFactory, StorageBackendFactory
from statekeep.backends.storage.names import TaskPrefix
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.clock import Clock


def _random_salt() -> bytes:
    return os.urandom(SALT_BYTES)


def _current_check(keys: KeyProvider) -> str:
    return key_check(keys.current())


class BlobBackendFactory(StorageBackendFactory):
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
        parsed = BlobSettings.parse(name, settings)
        super().__init__(name, settings, parsed, make_manager=make_manager, new_uid=new_uid)
        self._blob_settings = parsed
        self._keys = self._make_keys()
        self._new_salt = new_salt
        self._checks = UnfinishedChecks()

    @override
    def backup_manager(self, context: BackupContext) -> TaskBackupManager[Any]:
        return BlobBackupManager(
            context,
            self.blob_store_manager(context.executor, context.clock),
            TaskPrefix(self.name, context.task),
            policy=self._blob_settings.snapshots,
            codec=self._codec(context.clock),
            limits=WriterLimits(
                buffers=self._limits.buffers,
                part_bytes=self._blob_settings.transfer.part_bytes,
                pack_file_bytes=self._blob_settings.pack_file_bytes,
            ),
            checks=self._checks,
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
            buffers=self._limits.buffers,
        )

    @override
    def garbage_collector(
        self, executor: BlockingExecutor, clock: Clock
    ) -> GarbageCollector | None:
        manager = self.blob_store_manager(executor, clock)
        indexes = IndexBlobs(manager, self._codec(clock), executor)
        return BlobGarbageCollector(manager, indexes, self.name)

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

    async def lost(
        self, task: TaskIdentity, marker: Marker, executor: BlockingExecutor, clock: Clock
    ) -> Collection[str]:
        """Return the blobs of an index that are gone, by one listing: see `FindsLosses`."""
        manager = self.blob_store_manager(executor, clock)
        try:
            await manager.init()
            index = await IndexBlobs(manager, self._codec(clock), executor).load(marker)
            return index.blob_ids() - set(await manager.list(str(TaskPrefix(self.name, task))))
        finally:
            await manager.close()

    def is_own(self, task: TaskIdentity, store: StoreName, marker: Marker) -> bool:
        """Return whether an index lies below the place of the task: see `SharesBackups`."""
        return is_below(marker, TaskPrefix(self.name, task).store(store))

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

    @override
    async def check_more(self, executor: BlockingExecutor, clock: Clock) -> None:
        await self._codec(clock).check(executor)

    def _codec(self, clock: Clock) -> Codec:
        settings = self._blob_settings
        accepts_older = partial(is_before_end_of, settings.plain_until, clock)
        return Codec(settings.encoding, self._keys, self._new_salt, accepts_older)

    def _make_keys(self) -> KeyProvider | None:
        settings = self._blob_settings
        if settings.encryption_keys is None:
            return None
        key = f"backends.{self.name}.encryption.keys"
        return load_key_provider(settings.encryption_keys, settings.key_options, key=key)

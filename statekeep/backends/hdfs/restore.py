"""Restoring a task's stores: a snapshot of the lineage, then the deltas that lead on from it."""

import logging

from typing_extensions import override

from statekeep.backends.awaiting import run_all, run_to_end
from statekeep.backends.base import RestoreContext, TaskRestoreManager
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.hdfs.lineage import LoadPlan
from statekeep.backends.hdfs.names import FileKind, FileName, UploadMarker
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import (
    PREVIOUS_SHA256_ATTRIBUTE,
    FileRead,
    StoreFiles,
    check_digest,
)
from statekeep.backends.hdfs.streaming import FilesAhead, empty_store
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName
from statekeep.errors import BackendClosedError, BlobNotFoundError, CheckpointCorruptError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.local_files import remove_tree

logger = logging.getLogger(__name__)


class _DamagedSnapshotError(CheckpointCorruptError):
    """Raised where an older snapshot of the lineage may still serve."""

    def __init__(self, message: str, name: FileName) -> None:
        super().__init__(message)
        self.name = name


class HdfsRestoreManager(TaskRestoreManager):
    """Fills the directories of a task's stores from the uploads that its checkpoint names.

    Every block is compared with its CRC, every file with its place in the lineage, and with its digest:
    that of the last file is in the marker, and each delta has the digests of the files before it. A
    marker of version 1 has none. A snapshot that is damaged is passed over for an older one, if the
    lineage leads to one.
    """

    def __init__(
        self, context: RestoreContext, manager: BlobStoreManager, backend: BackendName
    ) -> None:
        self._context = context
        self._manager = manager
        self._backend = backend
        self._files: dict[StoreName, StoreFiles] = {}
        self._wanted: dict[StoreName, UploadMarker] = {}
        self._plans: dict[StoreName, LoadPlan] = {}
        self._spark_starts: dict[StoreName, SparkStart] = {}
        self._is_closed = False

    @override
    async def init(self, checkpoint: CheckpointV2) -> None:
        self._check_open()
        await self._manager.init()
        markers = checkpoint.markers_of(self._backend)
        for store in self._context.directories:
            marker = markers.get(store)
            if marker is None:
                msg = (
                    f"checkpoint has no marker: task={self._context.task.task_name} "
                    f"checkpoint_id={checkpoint.checkpoint_id} backend={self._backend} "
                    f"store={store}"
                )
                raise CheckpointCorruptError(msg)
            spark_start = SparkStart.parse(marker)
            if spark_start is not None:
                await spark_start.find(self._manager)
                self._spark_starts[store] = spark_start
                continue
            wanted = self._wanted[store] = UploadMarker.parse(marker)
            files = StoreFiles(self._manager, wanted.prefix, self._context.task, store)
            self._files[store] = files
            self._plans[store] = await files.plan(wanted)

    @override
    async def restore(self) -> None:
        self._check_open()
        own = [self._restore_store(store, plan) for store, plan in self._plans.items()]
        spark = [
            start.restore(self._context, self._manager, store)
            for store, start in self._spark_starts.items()
        ]
        await run_all([*own, *spark])

    @override
    async def close(self) -> None:
        self._is_closed = True
        await self._manager.close()

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"hdfs restore manager is closed: task={self._context.task.task_name}"
            raise BackendClosedError(msg)

    async def _restore_store(self, store: StoreName, plan: LoadPlan) -> None:
        damaged: set[FileName] = set()
        while True:
            try:
                await self._apply(store, plan)
            except _DamagedSnapshotError as exc:
                damaged.add(exc.name)
                plan = await self._older_plan(store, frozenset(damaged), exc)
            except BlobNotFoundError:
                # Behind a snapshot that was made meanwhile, files are deleted under a restore.
                found = await self._files[store].plan(
                    self._wanted[store], without=frozenset(damaged)
                )
                if found == plan:
                    raise
                plan = found
            else:
                return
            directory = self._context.directories[store]
            await run_to_end(self._context.executor, remove_tree, directory)

    async def _older_plan(
        self, store: StoreName, damaged: frozenset[FileName], error: CheckpointCorruptError
    ) -> LoadPlan:
        """Return a plan without the damaged snapshots.

        Raises:
            CheckpointCorruptError: ``error``, where there is none.
        """
        try:
            plan = await self._files[store].plan(self._wanted[store], without=damaged)
        except BlobNotFoundError:
            raise error from None
        logger.error(
            "snapshot is damaged, an older one is used: task=%s backend=%s store=%s snapshot=%s "
            "deltas=%d error=%s",
            self._context.task.task_name,
            self._backend,
            store,
            plan.snapshot,
            len(plan.deltas),
            error,
        )
        return plan

    async def _apply(self, store: StoreName, plan: LoadPlan) -> None:
        files, wanted = self._files[store], self._wanted[store].file
        async with empty_store(self._context, store) as opened, files.ahead(plan.files) as ahead:
            previous: FileRead | None = None
            for number, name in enumerate(plan.files):
                read = await self._apply_file(files, name, ahead, opened)
                if wanted is not None and previous is None:
                    _check_snapshot(files, name, plan, read)
                if previous is not None and read.header.parent != previous.header.version:
                    msg = (
                        "delta does not lead on from the file before it: "
                        f"{files.path(name)} parent={read.header.parent} "
                        f"before={previous.header.version}"
                    )
                    raise CheckpointCorruptError(msg)
                if wanted is not None and previous is not None and number > 1:
                    expected = read.header.attributes.get(PREVIOUS_SHA256_ATTRIBUTE)
                    check_digest(files.path(plan.files[number - 1]), previous, expected)
                previous = read
            if wanted is not None and previous is not None:
                check_digest(files.path(plan.files[-1]), previous, wanted.sha256)

    async def _apply_file(
        self, files: StoreFiles, name: FileName, ahead: FilesAhead, opened: KeyValueStore
    ) -> FileRead:
        context = self._context
        sizes: list[int] = []

        def on_bytes(size: int) -> None:
            context.on_bytes(size)
            sizes.append(size)

        try:
            read = await files.read(
                name, ahead, context.executor, take=opened.load, on_bytes=on_bytes
            )
        except CheckpointCorruptError as exc:
            if name.kind is FileKind.DELTA:
                raise
            raise _DamagedSnapshotError(str(exc), name) from exc
        context.on_total(sum(sizes))
        return read


def _check_snapshot(files: StoreFiles, name: FileName, plan: LoadPlan, read: FileRead) -> None:
    try:
        check_digest(files.path(name), read, plan.snapshot_sha256)
    except CheckpointCorruptError as exc:
        raise _DamagedSnapshotError(str(exc), name) from exc

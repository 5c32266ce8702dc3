"""Backing up a task's stores: the changes since the base, or all of a store."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from typing_extensions import override

from statekeep.backends.awaiting import run_all, run_to_end
from statekeep.backends.base import (
    BackupContext,
    CommitContext,
    Snapshot,
    StoreSnapshot,
    TaskBackupManager,
    take_snapshot,
)
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.hdfs.clean_up import delete_unreached
from statekeep.backends.hdfs.lineage import LoadPlan
from statekeep.backends.hdfs.local_work import (
    WrittenFile,
    path_of,
    work_directory,
    write_delta,
    write_snapshot,
)
from statekeep.backends.hdfs.names import (
    FileDigest,
    FileKind,
    FileName,
    UploadMarker,
    new_file_id,
)
from statekeep.backends.hdfs.settings import HdfsSettings
from statekeep.backends.hdfs.spark_start import SparkStart
from statekeep.backends.hdfs.store_files import (
    DELTA_BYTES_ATTRIBUTE,
    ID_ATTRIBUTE,
    PREVIOUS_SHA256_ATTRIBUTE,
    SNAPSHOT_SHA256_ATTRIBUTE,
    StoreFiles,
    changed_bytes_of,
)
from statekeep.backends.storage.names import TaskPrefix
from statekeep.backends.wrappers import KeptBlobStoreManager
from statekeep.checkpoint.checkpoints import CheckpointId, Marker, StoreName, VersionId
from statekeep.errors import (
    BackendClosedError,
    BlobNotFoundError,
    CheckpointCorruptError,
    UnknownFormatError,
)
from statekeep.fault_points import fault_point
from statekeep.stores.block_codec import codec_named
from statekeep.stores.delta import DeltaHeader

logger = logging.getLogger(__name__)


_LATE_SNAPSHOTS: Final = 8
_LONGEST_WAIT_S: Final = 60.0
"""Nor does a commit wait longer for the snapshot of a lineage that has become very long."""


class SharedUpkeep:
    """What the tasks of one backend share beside their commits.

    Attributes:
        checked: Paths of snapshots that were read, and whether they are whole.
        turn: Of the one task that makes a snapshot, so that commits find free threads, and the disk
            holds one more copy of a store and no more.
    """

    def __init__(self) -> None:
        """Make it; used on one event loop."""
        self.checked: dict[str, bool] = {}
        self.turn = asyncio.Lock()


@dataclass(frozen=True, slots=True)
class _Increment:
    """What a delta leads on from, and what is in it."""

    plan: LoadPlan
    base_sha256: str
    """Of the file of the base."""
    changes: Sequence[Path]
    changed_bytes: int
    """Of all deltas since the lineage began, this one included."""
    bytes_since_snapshot: int
    """Of those since the plan's snapshot."""


@dataclass(frozen=True, slots=True)
class _StoreUpload:
    """One store in one call of ``upload``."""

    commit: CommitContext
    store: StoreName
    file_id: VersionId

    def delta_header(self, increment: _Increment) -> DeltaHeader:
        """Return the header of a delta."""
        header = self.snapshot_header(increment.changed_bytes)
        return msgspec.structs.replace(
            header,
            parent=str(self.commit.base_version),
            lineage=tuple(map(str, increment.plan.lineage)),
            attributes={
                **header.attributes,
                PREVIOUS_SHA256_ATTRIBUTE: increment.base_sha256,
                SNAPSHOT_SHA256_ATTRIBUTE: increment.plan.snapshot_sha256 or "",
            },
        )

    def snapshot_header(self, changed_bytes: int) -> DeltaHeader:
        """Return the header of a snapshot, up to which deltas of so many bytes have led."""
        return DeltaHeader(
            version=str(self.commit.version.id),
            store=self.store,
            attributes={
                ID_ATTRIBUTE: str(self.file_id),
                "epoch": str(self.commit.epoch),
                "attempt": str(self.commit.attempt),
                DELTA_BYTES_ATTRIBUTE: str(changed_bytes),
            },
        )


class HdfsBackupManager(TaskBackupManager):
    """Uploads a delta per commit, and the whole content where there is no base to lead on from.

    When a lineage has become long, a snapshot of the version just uploaded is made beside the
    processing, after the commit's own upload has returned; one at a time in a process. It has the
    id of its upload: should that never be committed, nothing leads to it, and clean-up deletes both.
    A snapshot that fails is a warning, and due again at the next commit. Where a lineage has become
    many times as long, the upload waits for the snapshot that it begins, well or not, up to a minute.
    """

    def __init__(
        self,
        context: BackupContext,
        manager: BlobStoreManager,
        prefix: TaskPrefix,
        settings: HdfsSettings,
        *,
        upkeep: SharedUpkeep,
        new_uid: Callable[[], str],
    ) -> None:
        """Take what the backup needs; no I/O.

        Args:
            context: The task.
            manager: Closed by `close`.
            prefix: Where the task's files lie.
            settings: When snapshots are due.
            upkeep: Of the backend.
            new_uid: Draws at least 16 digits of lower-case hex, never drawn again.
        """
        self._context = context
        self._manager = manager
        self._prefix = prefix
        self._settings = settings
        self._new_uid = new_uid
        self._files: dict[StoreName, StoreFiles] = {}
        self._snapshots: dict[StoreName, asyncio.Task[None]] = {}
        self._late: dict[StoreName, dict[VersionId, str]] = {}
        """The digests of the snapshots that were made here beside commits, by upload."""
        self._has_uploaded: set[StoreName] = set()
        self._upkeep = upkeep
        self._is_closed = False

    @override
    async def init(self) -> None:
        await self._manager.init()

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot:
        commit = self._context.commit(checkpoint_id)
        return take_snapshot(commit, self._prefix.backend, self._context.stores)

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot
    ) -> Mapping[StoreName, Marker]:
        self._check_open()
        commit, stores = self._context.commit(checkpoint_id), snapshot.stores
        uploaded = await run_all(
            self._upload_store(self._begin(commit, store), taken) for store, taken in stores.items()
        )
        return dict(zip(stores, uploaded, strict=True))

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        self._check_open()
        await delete_unreached(
            self._manager,
            self._prefix,
            retained,
            closed_attempts,
            files_of=self._files_of,
            executor=self._context.executor,
            checked=self._upkeep.checked,
        )

    async def unreached(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> Sequence[str]:
        """Return what `clean_up` would delete: see `PreviewsCleanUp`."""
        self._check_open()
        kept = KeptBlobStoreManager(self._manager)
        task = self._context.task
        await delete_unreached(
            kept,
            self._prefix,
            retained,
            closed_attempts,
            files_of=lambda store: StoreFiles(kept, self._prefix.store(store), task, store),
            executor=self._context.executor,
            checked=self._upkeep.checked,
        )
        return sorted(kept.to_delete)

    async def finish_snapshots(self) -> None:
        """Wait until every snapshot that was begun has ended, well or not."""
        await asyncio.gather(*self._snapshots.values())

    @override
    async def close(self) -> None:
        self._is_closed = True
        for snapshot in self._snapshots.values():
            snapshot.cancel()
        await asyncio.gather(*self._snapshots.values(), return_exceptions=True)
        await self._manager.close()

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"hdfs backup manager is closed: task={self._context.task.task_name}"
            raise BackendClosedError(msg)

    def _files_of(self, store: StoreName) -> StoreFiles:
        if store not in self._files:
            prefix = self._prefix.store(store)
            self._files[store] = StoreFiles(self._manager, prefix, self._context.task, store)
        return self._files[store]

    def _begin(self, commit: CommitContext, store: StoreName) -> _StoreUpload:
        batch = commit.version.id.batch
        file_id = new_file_id(batch, commit.epoch, commit.attempt, self._new_uid())
        return _StoreUpload(commit, store, file_id)

    async def _upload_store(self, upload: _StoreUpload, taken: StoreSnapshot) -> Marker:
        started_ns = self._context.clock.monotonic_ns()
        increment = await self._find_increment(upload, taken)
        if increment is None:
            written, kind = await self._upload_snapshot(upload), FileKind.SNAPSHOT
        else:
            written, kind = await self._upload_delta(upload, increment), FileKind.DELTA
            await self._see_to_snapshot(upload, increment)
        self._has_uploaded.add(upload.store)
        upload.commit.count_bytes(written.size)
        logger.debug(
            "store uploaded: task=%s checkpoint_id=%s backend=%s store=%s bytes=%d elapsed_ms=%d "
            "is_full=%s",
            self._context.task.task_name,
            upload.commit.checkpoint_id,
            self._prefix.backend,
            upload.store,
            written.size,
            (self._context.clock.monotonic_ns() - started_ns) // 1_000_000,
            increment is None,
        )
        digest = FileDigest(kind, written.sha256)
        return UploadMarker(self._files_of(upload.store).prefix, upload.file_id, digest).encode()

    async def _find_increment(
        self, upload: _StoreUpload, taken: StoreSnapshot
    ) -> _Increment | None:
        """Return what leads from the base to the version; None where the upload must be full."""
        commit, store = upload.commit, upload.store
        changes = taken.changes
        if changes is None or commit.base is None:
            return None
        marker = commit.base.markers_of(self._prefix.backend)[store]
        files = self._files_of(store)
        try:
            if SparkStart.parse(marker) is not None:
                return None
            base = UploadMarker.parse(marker)
            # What lies elsewhere may be deleted by others, and what has no digest may have
            # been changed.
            if base.prefix != files.prefix or base.file is None:
                return None
            plan = await files.plan(base, late=self._late.get(store, {}))
            self._check_not_damaged(files.path(plan.files[0]))
            snapshot, newest = [await files.header(plan.files[n]) for n in (0, -1)]
        except (BlobNotFoundError, CheckpointCorruptError, UnknownFormatError) as exc:
            logger.warning(
                "base is unusable, the upload is full: "
                "task=%s checkpoint_id=%s backend=%s store=%s marker=%s error=%s",
                self._context.task.task_name,
                commit.checkpoint_id,
                self._prefix.backend,
                store,
                marker,
                exc,
            )
            return None
        if newest.version != str(commit.base_version) or self._is_due_at_once(store, plan):
            return None
        changed_bytes = changed_bytes_of(newest) + taken.bytes
        return _Increment(
            plan,
            base.file.sha256,
            changes,
            changed_bytes,
            changed_bytes - changed_bytes_of(snapshot),
        )

    def _is_due_at_once(self, store: StoreName, plan: LoadPlan) -> bool:
        """Return whether the first upload of a process is full, because a snapshot is due.

        Only the process that made a snapshot beside its commits knows its digest. Programs that end
        after each commit would make one after the other, and never use one.
        """
        is_first = store not in self._has_uploaded
        return is_first and len(plan.deltas) >= self._settings.min_deltas_for_snapshot

    def _check_not_damaged(self, path: str) -> None:
        if self._upkeep.checked.get(path) is False:
            raise CheckpointCorruptError(f"clean-up has found the snapshot damaged: {path}")

    async def _upload_delta(self, upload: _StoreUpload, increment: _Increment) -> WrittenFile:
        context, version = self._context, upload.commit.version
        async with work_directory(context.executor, version, (), self._new_uid()) as work:
            path = path_of(work, upload.file_id)
            header, codec = upload.delta_header(increment), codec_named(self._settings.compression)
            written = await run_to_end(
                context.executor, write_delta, increment.changes, path, header, codec
            )
            await self._files_of(upload.store).put(FileName(upload.file_id, FileKind.DELTA), path)
        return written

    async def _upload_snapshot(self, upload: _StoreUpload, changed_bytes: int = 0) -> WrittenFile:
        context, version, store = self._context, upload.commit.version, upload.store
        async with work_directory(context.executor, version, (store,), self._new_uid()) as work:
            path = path_of(work, upload.file_id)
            header, codec = (
                upload.snapshot_header(changed_bytes),
                codec_named(self._settings.compression),
            )
            write = partial(
                write_snapshot, work, version, store, target=path, header=header, codec=codec
            )
            written = await run_to_end(context.executor, write)
            await self._files_of(store).put(FileName(upload.file_id, FileKind.SNAPSHOT), path)
        return written

    async def _see_to_snapshot(self, upload: _StoreUpload, increment: _Increment) -> None:
        """Begin a snapshot of what was just uploaded where one is due and none is under way.

        It is waited for where the lineage has become very long. If it fails, that is no error here
        either.
        """
        deltas = len(increment.plan.deltas) + 1
        if (
            deltas < self._settings.min_deltas_for_snapshot
            and increment.bytes_since_snapshot < self._settings.max_delta_bytes
        ):
            return
        running = self._snapshots.get(upload.store)
        if running is not None and not running.done():
            return
        snapshot = self._snapshots[upload.store] = asyncio.create_task(
            self._make_snapshot(upload, increment.changed_bytes),
            name=f"snapshot {upload.store} {upload.file_id}",
        )
        if deltas % self._settings.deltas_before_wait == 0:
            await self._wait_for(snapshot)

    async def _wait_for(self, snapshot: asyncio.Task[None]) -> None:
        timer = asyncio.ensure_future(self._context.clock.sleep(_LONGEST_WAIT_S))
        try:
            await asyncio.wait({snapshot, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _make_snapshot(self, upload: _StoreUpload, changed_bytes: int) -> None:
        try:
            async with self._upkeep.turn:
                fault_point("late_snapshot.before")
                written = await self._upload_snapshot(upload, changed_bytes)
                self._remember(upload, written)
                fault_point("late_snapshot.after")
        except Exception as exc:  # noqa: BLE001 - whatever it is, the commits go on
            logger.warning(
                "snapshot failed, the next commit tries again: task=%s backend=%s store=%s "
                "upload=%s error=%r",
                self._context.task.task_name,
                self._prefix.backend,
                upload.store,
                upload.file_id,
                exc,
            )
        else:
            logger.info(
                "snapshot is uploaded: task=%s backend=%s store=%s upload=%s",
                self._context.task.task_name,
                self._prefix.backend,
                upload.store,
                upload.file_id,
            )

    def _remember(self, upload: _StoreUpload, written: WrittenFile) -> None:
        """Keep the digests of the newest snapshots: an upload may be aborted, and an older one needed."""
        late = self._late.setdefault(upload.store, {})
        late[upload.file_id] = written.sha256
        while len(late) > _LATE_SNAPSHOTS:
            del late[next(iter(late))]

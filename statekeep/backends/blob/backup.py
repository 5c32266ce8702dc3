"""Backing up a task's stores as blobs: the changes since the base, or the files that are new."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from typing_extensions import override

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import (
    BackupContext,
    CommitContext,
    Snapshot,
    StoreSnapshot,
    TaskBackupManager,
    take_snapshot,
)
from statekeep.backends.blob.clean_up import UnfinishedChecks, delete_unreached
from statekeep.backends.blob.codec import Codec, stored_form
from statekeep.backends.blob.content_writer import ContentWriter, Upload, WriterLimits, Written
from statekeep.backends.blob.diff import DirDiff, LocalDir, LocalFile, diff_dirs
from statekeep.backends.blob.encoded_stream import Encoding
from statekeep.backends.blob.image import (
    PackedDelta,
    file_metadata,
    merged_bytes,
    pack_deltas,
    read_image,
    read_sealed_file,
    sealed_files,
)
from statekeep.backends.blob.index import (
    MAX_IMAGE_FILES,
    SCHEMA_VERSION,
    THIS_INDEX,
    DeltaBlob,
    DirIndex,
    FileIndex,
    SnapshotIndex,
    SnapshotMetadata,
)
from statekeep.backends.blob.index_blobs import IndexBlobs
from statekeep.backends.blob.settings import (
    MAX_ADDED_DELTAS,
    MAX_INDEX_DELTA_BYTES,
    SnapshotPolicy,
)
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.names import TaskPrefix
from statekeep.checkpoint.checkpoints import CheckpointId, Marker, StoreName
from statekeep.errors import (
    BackendClosedError,
    BlobNotFoundError,
    CheckpointCorruptError,
    KeyUnavailableError,
    StateBackupError,
    UnknownFormatError,
)
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

_JOB_ID: Final = "1"
"""Samza runs several instances of a job under numbers; we do not, and its reader wants one."""
_UID_LENGTH: Final = 16
_DELTA_NAME: Final = "changes.delta"


@dataclass(frozen=True, slots=True)
class _Base:
    """The snapshot that an upload is an increment to."""

    marker: Marker
    index: SnapshotIndex


@dataclass(frozen=True, slots=True)
class _BlobStoreSnapshot(StoreSnapshot):
    """What a store sends; which of the two is only certain once the index of the base is here."""

    image: LocalDir
    deltas: Sequence[LocalFile] | None
    """Of `StoreSnapshot.changes`."""


@dataclass(frozen=True, slots=True)
class _StoreUpload:
    """One store in one call of ``upload``: what its names and its index need to know."""

    commit: CommitContext
    store: StoreName
    upload: Upload
    writer: ContentWriter


@dataclass(frozen=True, slots=True)
class _Content:
    """What an upload has made durable, as the index is to say it."""

    image: DirIndex
    image_version: str | None
    """None: the version's own."""
    deltas: tuple[DeltaBlob, ...]
    new_files: Sequence[FileIndex]
    """Deltas included."""

    @property
    def new_blobs(self) -> Sequence[str]:
        found = {blob.blob_id for file in self.new_files for blob in file.blobs}
        return sorted(found - {THIS_INDEX})

    @property
    def bytes_in_index(self) -> int:
        """Of deltas that the index is to hold."""
        return sum(len(delta.content) for delta in self.deltas if delta.content is not None)

    @property
    def new_bytes(self) -> int:
        """As stored."""
        return sum(file.stored_bytes for file in self.new_files)


class BlobBackupManager(TaskBackupManager[_BlobStoreSnapshot]):
    """Backs up changes, and now and then files: content first, then the index, whose id is the marker.

    The base comes with each commit (R9), so that a failed or skipped commit cannot mislead the next
    one. Only what stands in the newest index is remembered, by its marker: where that is the base,
    it is fetched only now and then. Blob names are drawn anew by each call of `upload`; what a failed or
    cancelled call leaves belongs to its attempt, and `clean_up` finds it once the job log has closed
    that attempt.
    """

    def __init__(
        self,
        context: BackupContext,
        manager: BlobStoreManager,
        prefix: TaskPrefix,
        *,
        policy: SnapshotPolicy,
        codec: Codec,
        limits: WriterLimits,
        checks: UnfinishedChecks,
        new_uid: Callable[[], str],
    ) -> None:
        """Take what the backup needs; no I/O.

        Args:
            context: The task.
            manager: Closed by `close`.
            prefix: Where the task's blobs lie.
            policy: When files are uploaded instead of changes.
            codec: Compresses and encrypts.
            limits: Of memory and requests.
            checks: Of the process.
            new_uid: Draws lower-case hex that is never drawn again.
        """
        self._context = context
        self._manager = manager
        self._prefix = prefix
        self._policy = policy
        self._codec = codec
        self._limits = limits
        self._checks = checks
        self._indexes = IndexBlobs(manager, codec, context.executor)
        self._new_uid = new_uid
        self._newest: dict[StoreName, tuple[Marker, SnapshotIndex]] = {}
        self._is_closed = False

    @override
    async def init(self) -> None:
        await self._manager.init()

    @override
    def snapshot(self, checkpoint_id: CheckpointId) -> Snapshot[_BlobStoreSnapshot]:
        commit, stores = self._context.commit(checkpoint_id), self._context.stores
        taken = take_snapshot(commit, self._prefix.backend, stores).stores
        return Snapshot({store: self._decide(commit, store, taken[store]) for store in stores})

    @override
    async def upload(
        self, checkpoint_id: CheckpointId, snapshot: Snapshot[_BlobStoreSnapshot]
    ) -> Mapping[StoreName, Marker]:
        self._check_open()
        commit, stores = self._context.commit(checkpoint_id), snapshot.stores
        uploaded = await run_all(
            self._upload_store(commit, store, taken) for store, taken in stores.items()
        )
        return dict(zip(stores, uploaded, strict=True))

    @override
    async def clean_up(
        self,
        retained: Sequence[Mapping[StoreName, Marker]],
        closed_attempts: Sequence[tuple[int, int]],
    ) -> None:
        self._check_open()
        markers = {marker for checkpoint in retained for marker in checkpoint.values()}
        await delete_unreached(
            self._manager,
            self._indexes,
            self._prefix,
            markers,
            closed_attempts,
            checks=self._checks,
        )

    @override
    async def close(self) -> None:
        self._is_closed = True
        await self._manager.close()

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"blob backup manager is closed: task={self._context.task.task_name}"
            raise BackendClosedError(msg)

    async def _plan(self, commit: CommitContext, store: StoreName) -> _StoreUpload:
        upload = Upload(
            prefix=self._prefix.attempt(store, commit.epoch, commit.attempt),
            uid=self._new_uid()[:_UID_LENGTH],
            encoding=await self._codec.encoding_of(store, self._context.executor),
            metadata=partial(BlobMetadata, self._context.task, store, is_temporary=True),
        )
        writer = ContentWriter(
            self._manager, self._context.executor, self._codec, self._limits, upload
        )
        return _StoreUpload(commit, store, upload, writer)

    async def _upload_store(
        self, commit: CommitContext, store: StoreName, taken: _BlobStoreSnapshot
    ) -> Marker:
        started_ns = self._context.clock.monotonic_ns()
        plan = await self._plan(commit, store)
        base = await self._load_base(plan)
        content = await self._upload_content(plan, base, taken)
        index = self._make_index(plan, base, content)
        fault_point("upload.before_index")
        upload = plan.upload
        # As bytes, in JSON, and perhaps encoded.
        async with self._limits.buffers.hold(3 * content.bytes_in_index):
            marker = await self._indexes.put(
                upload.prefix, upload.uid, index, upload.metadata("", None), upload.encoding
            )
        fault_point("upload.after_index")
        self._newest[store] = (marker, index.without_content().stored_at(marker))
        plan.commit.count_bytes(content.new_bytes)
        await run_all(self._manager.remove_ttl(blob_id) for blob_id in (*content.new_blobs, marker))
        logger.debug(
            "store uploaded: task=%s checkpoint_id=%s backend=%s store=%s bytes=%d elapsed_ms=%d "
            "blobs=%d deltas=%d is_full=%s",
            self._context.task.task_name,
            plan.commit.checkpoint_id,
            self._prefix.backend,
            plan.store,
            content.new_bytes,
            (self._context.clock.monotonic_ns() - started_ns) // 1_000_000,
            len(content.new_blobs),
            len(content.deltas),
            base is None,
        )
        return marker

    def _decide(
        self, commit: CommitContext, store: StoreName, taken: StoreSnapshot
    ) -> _BlobStoreSnapshot:
        """Say what goes up, by the index of the base where it is remembered."""
        file_count = len(commit.version.store_files(store))
        if file_count > MAX_IMAGE_FILES:
            raise StateBackupError(
                f"store has more files than a restore would read: store={store} files={file_count} "
                f"max_files={MAX_IMAGE_FILES}"
            )
        image, deltas = read_image(commit.version, store), taken.changes
        sealed = None if deltas is None else sealed_files(commit.version, deltas)
        known = self._newest.get(store)
        marker = commit.base.markers_of(self._prefix.backend).get(store) if commit.base else None
        index = known[1] if known is not None and known[0] == marker else None
        diff = diff_dirs(image, index.dir_index if index else None)
        is_full = sealed is None or (index is not None and self._is_full(index, diff, sealed))
        sizes = [file.size for file in (diff.added_files() if is_full else sealed or ())]
        return _BlobStoreSnapshot(deltas, len(sizes), sum(sizes), image, sealed)

    def _is_full(self, base: SnapshotIndex, diff: DirDiff, deltas: Sequence[LocalFile]) -> bool:
        return self._policy.is_image_due(
            base,
            new_file_bytes=sum(file.size for file in diff.added_files()),
            new_delta_bytes=sum(file.size for file in deltas),
            new_deltas=len(deltas),
        )

    async def _upload_content(
        self, plan: _StoreUpload, base: _Base | None, taken: _BlobStoreSnapshot
    ) -> _Content:
        diff = diff_dirs(taken.image, base.index.dir_index if base else None)
        deltas = taken.deltas
        if base is None or deltas is None or self._is_full(base.index, diff, deltas):
            return await self._upload_image(plan, diff)
        return await self._upload_changes(plan, base.index, deltas)

    async def _load_base(self, plan: _StoreUpload) -> _Base | None:
        """Return the base of an increment by R9; None where the upload must be full.

        It is full also after a change of the key, so that the old one is needed no longer than the
        commits that were made with it are retained.
        """
        commit, store = plan.commit, plan.store
        if commit.base is None or commit.base_version is None:
            return None
        marker = commit.base.markers_of(self._prefix.backend).get(store)
        lineage = (commit.version.id, *commit.version.lineage)
        if marker is None or commit.base_version not in lineage:
            return None
        try:
            index = await self._find_index(store, marker)
        except (
            BlobNotFoundError,
            CheckpointCorruptError,
            KeyUnavailableError,
            UnknownFormatError,
        ) as exc:
            logger.warning(
                "base snapshot is unusable, the upload is full: "
                "task=%s checkpoint_id=%s backend=%s store=%s marker=%s error=%s",
                self._context.task.task_name,
                commit.checkpoint_id,
                self._prefix.backend,
                store,
                marker,
                exc,
            )
            return None
        key = plan.upload.encoding.key
        is_usable = (
            self._is_own(index, marker, store)
            and index.version == str(commit.base_version)
            and index.key_ids() <= {None if key is None else key.id}
        )
        return _Base(marker, index) if is_usable else None

    async def _find_index(self, store: StoreName, marker: Marker) -> SnapshotIndex:
        """Return the index of a base: as it is remembered, or as it is stored where a full one is due.

        So a lost index is missed before many commits build on it.
        """
        known = self._newest.get(store)
        if known is None or known[0] != marker or known[1].added_deltas >= MAX_ADDED_DELTAS:
            return (await self._indexes.load(marker, is_anew=True)).without_content()
        return known[1]

    def _is_own(self, index: SnapshotIndex, marker: Marker, store: StoreName) -> bool:
        """Return whether an index and all its blobs lie under this store's own prefix.

        Blobs elsewhere may be deleted by others: no increment builds on them.
        """
        own = f"/{self._prefix.store(store)}"
        return all(own in f"/{blob_id}" for blob_id in {marker, *index.blob_ids()})

    async def _upload_image(self, plan: _StoreUpload, diff: DirDiff) -> _Content:
        """Upload the files that the base's image does not have."""
        files = list(diff.added_files())
        root = plan.commit.version.store_directory(plan.store)
        written = await plan.writer.write_files(root, files)
        indexes = await self._context.executor.run(
            _file_indexes, plan.upload.encoding, root, files, written
        )
        uploaded = {file.path: index for file, index in zip(files, indexes, strict=True)}
        return _Content(
            image=diff.to_index(uploaded),
            image_version=None,
            deltas=(),
            new_files=indexes,
        )

    async def _upload_changes(
        self, plan: _StoreUpload, base: SnapshotIndex, changes: Sequence[LocalFile]
    ) -> _Content:
        """Upload what was changed since the base, whose image and deltas stay."""
        run = self._context.executor.run
        # Nothing that is merged waits for a share of the buffer of its own meanwhile.
        async with self._limits.buffers.hold(2 * merged_bytes(changes)):
            packed = await run(pack_deltas, plan.commit.version, plan.store, changes)
            added = await run_all(self._upload_delta(plan, delta) for delta in packed)
        return _Content(
            image=base.dir_index.without_removed(),
            image_version=base.image_version or base.version,
            deltas=(*base.deltas, *added),
            new_files=[delta.as_file() for delta in added],
        )

    async def _upload_delta(self, plan: _StoreUpload, delta: PackedDelta) -> DeltaBlob:
        digests = delta.digests
        if plan.upload.encoding.is_plain and digests.size <= MAX_INDEX_DELTA_BYTES:
            return await self._put_into_index(delta)
        if isinstance(delta.content, bytes):
            blobs = await plan.writer.write_bytes(delta.content, _DELTA_NAME, digests.sha256)
        else:
            path = PurePosixPath(delta.content)
            file = LocalFile(path, digests.size, digests.crc32)
            written = await plan.writer.write_file(delta.content, file, _DELTA_NAME, known=digests)
            blobs = written.blobs
        is_plain = plan.upload.encoding.is_plain
        return DeltaBlob(
            parent=delta.parent,
            version=delta.version,
            blob_id=blobs[0].blob_id,
            size=digests.size,
            checksum=digests.crc32,
            sha256=digests.sha256,
            stored_form=stored_form(plan.upload.encoding),
            blobs=() if is_plain else blobs,
        )

    async def _put_into_index(self, delta: PackedDelta) -> DeltaBlob:
        """Return a small delta as a part of the index that is written next."""
        digests = delta.digests
        if isinstance(delta.content, bytes):
            content = delta.content
        else:
            file = LocalFile(PurePosixPath(delta.content), digests.size, digests.crc32)
            content, _ = await self._context.executor.run(read_sealed_file, delta.content, file)
        return DeltaBlob(
            parent=delta.parent,
            version=delta.version,
            blob_id=THIS_INDEX,
            size=digests.size,
            checksum=digests.crc32,
            sha256=digests.sha256,
            in_index=True,
            content=content,
        )

    def _make_index(
        self, plan: _StoreUpload, base: _Base | None, content: _Content
    ) -> SnapshotIndex:
        task = self._context.task
        full, full_deltas = _full_index(base, content.deltas)
        return SnapshotIndex(
            creation_time_millis=self._context.clock.time_ns() // 1_000_000,
            snapshot_metadata=SnapshotMetadata(
                checkpoint_id=plan.commit.checkpoint_id.serialize(),
                job_name=task.job_name,
                job_id=_JOB_ID,
                task_name=task.task_name,
                store_name=plan.store,
            ),
            dir_index=content.image,
            prev_snapshot_index_blob_id=base.marker if base else None,
            schema_version=SCHEMA_VERSION,
            version=str(plan.commit.version.id),
            image_version=content.image_version,
            deltas=content.deltas,
            full_index_blob_id=full,
            full_deltas=full_deltas,
        )


def _full_index(base: _Base | None, deltas: Sequence[DeltaBlob]) -> tuple[str | None, int]:
    """Return the full index that the next one adds to, and how many of its deltas that names.

    (None, 0) where the next one is to be full: it has another image than the base, or would add too
    much.
    """
    if base is None or not deltas:
        return None, 0
    index = base.index
    full, count = index.full_index_blob_id, len(index.deltas) - index.added_deltas
    if full is None:
        full = base.marker
    return (full, count) if len(deltas) - count <= MAX_ADDED_DELTAS else (None, 0)


def _file_indexes(
    encoding: Encoding, root: Path, files: Sequence[LocalFile], written: Sequence[Written]
) -> Sequence[FileIndex]:
    """Return what an index says of files that are durable; blocks, on their status."""
    return [
        FileIndex(
            file_name=file.path.name,
            blobs=one.blobs,
            file_metadata=file_metadata(root / file.path),
            checksum=one.digests.crc32,
            sha256=one.digests.sha256,
            stored_form=stored_form(encoding) if one.blobs else None,
        )
        for file, one in zip(files, written, strict=True)
    ]

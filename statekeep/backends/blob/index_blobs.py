"""Reading and writing snapshot indexes as blobs."""

import hashlib
from collections.abc import Iterator, Sequence

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.blob.codec import Codec, is_stream
from statekeep.backends.blob.encoded_stream import Encoding
from statekeep.backends.blob.index import (
    DeltaBlob,
    DirIndex,
    FileBlob,
    IndexAddition,
    SnapshotIndex,
    decode_index,
    encode_index,
)
from statekeep.backends.blob.names import (
    INDEX_PAYLOAD_NAME,
    index_blob_name,
    index_digest,
    index_place,
    is_below,
    store_of,
)
from statekeep.backends.blob_store import (
    MAX_DOCUMENT_BYTES,
    BlobMetadata,
    BlobStoreManager,
)
from statekeep.backends.frame_cipher import key_check
from statekeep.backends.optional_powers import SnapshotNode
from statekeep.backends.storage.names import TaskPrefix
from statekeep.checkpoint.checkpoints import Marker, StoreName, VersionId
from statekeep.errors import CheckpointCorruptError, StateBackupError


class IndexBlobs:
    """The indexes of one backend, stored as their stores are."""

    def __init__(self, manager: BlobStoreManager, codec: Codec, executor: BlockingExecutor) -> None:
        self._manager = manager
        self._codec = codec
        self._executor = executor
        self._full: tuple[Marker, SnapshotIndex] | None = None
        """The last one that was fetched for an addition to it: others follow."""

    async def load(self, marker: Marker, *, is_anew: bool = False) -> SnapshotIndex:
        """Fetch the index that a marker names, and the full one that it adds to.

        Each is compared with the digest in its name.

        Args:
            marker: Of the index.
            is_anew: Fetch the full one even if it was fetched before.

        Raises:
            BlobNotFoundError: It is not there.
            CheckpointCorruptError: The marker is not ours, the bytes are not those that were put, or
                the store is encrypted and the index is not.
            KeyUnavailableError: It is encrypted, and its key is missing.
            UnknownFormatError: A newer version of Statekeep wrote it.
            RetriableError: The service may answer later.
        """
        where = f"blob_id={marker}"
        if is_anew:
            self._full = None
        found = await self._fetch(marker, where)
        if isinstance(found, IndexAddition):
            found = found.joined(await self._fetch_full(found, where), where=where)
        index = found.stored_at(marker)
        self._codec.check_files_encrypted(store_of(marker), index, where)
        return index

    async def load_delta(self, delta: DeltaBlob) -> bytes:
        """Fetch a delta that lies in the index that added it; raises as `load` does."""
        if delta.content is not None:
            return delta.content
        where = f"blob_id={delta.blob_id}"
        for other in (await self._fetch(Marker(delta.blob_id), where)).deltas:
            if other.version == delta.version and other.content is not None:
                return other.content
        raise CheckpointCorruptError(f"delta is not in its index: {where} version={delta.version}")

    async def _fetch_full(self, addition: IndexAddition, where: str) -> SnapshotIndex:
        marker = Marker(addition.full_index_blob_id)
        if self._full is not None and self._full[0] == marker:
            return self._full[1]
        where = f"{where} full={marker}"
        full = await self._fetch(marker, where)
        if isinstance(full, IndexAddition):
            raise CheckpointCorruptError(f"snapshot index adds to one that adds: {where}")
        self._full = (marker, full.without_content().stored_at(marker))
        return self._full[1]

    async def _fetch(self, marker: Marker, where: str) -> SnapshotIndex | IndexAddition:
        expected = index_digest(marker)
        data = await self._manager.get(marker)
        actual = hashlib.sha256(data).hexdigest()
        if actual != expected:
            msg = f"snapshot index differs from its digest: blob_id={marker} bytes={len(data)}"
            raise CheckpointCorruptError(msg)
        version = 0
        if is_stream(data):
            data, version = await self._executor.run(
                self._codec.decode_index,
                data,
                index_place(marker),
                where=where,
                max_bytes=MAX_DOCUMENT_BYTES,
            )
        self._codec.check_index_form(store_of(marker), version, where)
        return await self._executor.run(decode_index, data, where=where)

    async def put(
        self,
        prefix: str,
        uid: str,
        index: SnapshotIndex,
        metadata: BlobMetadata,
        encoding: Encoding,
    ) -> Marker:
        """Write an index and return its marker.

        Args:
            prefix: Of the attempt.
            uid: Of the call of ``upload``.
            index: Every blob that it names is durable already.
            metadata: Of the store; the payload's name and digest are filled in here.
            encoding: Of the store: an index says much of its files.
        """
        data, check = encode_index(index), None
        if len(data) > MAX_DOCUMENT_BYTES:
            raise StateBackupError(
                f"snapshot index is larger than a restore would read: bytes={len(data)} "
                f"max_bytes={MAX_DOCUMENT_BYTES}"
            )
        if not encoding.is_plain:
            place = index_place(f"{prefix}{uid}-")
            data = await self._executor.run(self._codec.encode, data, encoding, place)
        if encoding.key is not None:
            check = key_check(encoding.key)
        name = index_blob_name(prefix, uid, data, check)
        stamped = BlobMetadata(
            task=metadata.task,
            store_name=metadata.store_name,
            payload_name=INDEX_PAYLOAD_NAME,
            sha256=hashlib.sha256(data).hexdigest(),
            is_temporary=metadata.is_temporary,
        )
        return Marker(await self._manager.put(name, data, stamped))


def check_owner(index: SnapshotIndex, marker: Marker, task: TaskIdentity, store: StoreName) -> None:
    """Check that an index is of this task and store, as far as it says itself.

    Raises:
        CheckpointCorruptError: It is another's.
    """
    metadata = index.snapshot_metadata
    if (metadata.task_name, metadata.store_name) != (task.task_name, store):
        msg = (
            f"snapshot index is of another store: task={task.task_name} store={store} "
            f"index_task={metadata.task_name} index_store={metadata.store_name} blob_id={marker}"
        )
        raise CheckpointCorruptError(msg)


def check_bound(
    index: SnapshotIndex,
    marker: Marker,
    prefix: TaskPrefix,
    store: StoreName,
    version: VersionId | None,
) -> None:
    """Check that an authenticated index is the one that a commit means, and not another of the job's.

    Its checkpoint id is not compared: the commits after it keep the snapshot of a task that did not
    change. Its version is, which is drawn once.

    Args:
        index: Encrypted for the place that its marker names.
        marker: Of the commit.
        prefix: The task's, by its job, uid, backend and operator.
        store: The store that is restored.
        version: What the commit says that the snapshot is of; None where it does not say.

    Raises:
        CheckpointCorruptError: It is another job's, task's, store's or version's.
    """
    if not is_below(marker, prefix.store(store)):
        raise CheckpointCorruptError(
            f"snapshot index is of another store: prefix={prefix.store(store)} blob_id={marker}"
        )
    found = index.snapshot_metadata.job_name
    if found != prefix.task.job_name:
        raise CheckpointCorruptError(
            f"snapshot index is of another job: job={prefix.task.job_name} index_job={found} "
            f"blob_id={marker}"
        )
    if version is not None and index.version != str(version):
        raise CheckpointCorruptError(
            f"snapshot index is of another version than the commit: version={version} "
            f"index_version={index.version} blob_id={marker}"
        )


def describe_index(marker: Marker, index: SnapshotIndex) -> Sequence[SnapshotNode]:
    """Return the image with its files, and the deltas after it."""
    nodes = [
        SnapshotNode(
            "image",
            index.image_bytes(),
            {"version": str(index.image_version or index.version)},
            tuple(_files(index.dir_index, "")),
        )
    ]
    if index.deltas:
        deltas = tuple(
            SnapshotNode(f"{delta.parent} to {delta.version}", delta.size, {"blob": delta.blob_id})
            for delta in index.deltas
        )
        nodes.append(
            SnapshotNode("deltas", index.delta_bytes(), {"version": str(index.version)}, deltas)
        )
    base = index.prev_snapshot_index_blob_id
    facts = {"marker": marker, "base": base} if base else {"marker": marker}
    return [SnapshotNode("index", None, facts), *nodes]


def _files(directory: DirIndex, prefix: str) -> Iterator[SnapshotNode]:
    for file in directory.files_present:
        blobs = [_range_of(blob) for blob in file.blobs]
        yield SnapshotNode(f"{prefix}{file.file_name}", file.size, {"blobs": blobs})
    for below in directory.sub_dirs_present:
        yield from _files(below, f"{prefix}{below.dir_name}/")


def _range_of(blob: FileBlob) -> str:
    """Return where a range lies; in a packed blob with its range of bytes."""
    if blob.range is None:
        return blob.blob_id
    return f"{blob.blob_id}[{blob.range.start}:{blob.range.start + blob.range.size}]"

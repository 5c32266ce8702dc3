"""Reading and writing snapshot indexes as blobs."""

import hashlib

from statekeep.backends.base import BlobMetadata, BlobStoreManager, TaskIdentity
from statekeep.backends.blob.index import SnapshotIndex, decode_index, encode_index
from statekeep.backends.blob.names import INDEX_PAYLOAD_NAME, index_blob_name, index_digest
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.errors import CheckpointCorruptError


async def load_index(manager: BlobStoreManager, marker: Marker) -> SnapshotIndex:
    """Fetch the index that a marker names and check it against the digest in its name.

    Raises:
        BlobNotFoundError: It is not there.
        CheckpointCorruptError: The marker is not ours, or the bytes are not those that were put.
        RetriableError: The service may answer later.
    """
    expected = index_digest(marker)
    data = await manager.get(marker)
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        msg = f"snapshot index differs from its digest: blob_id={marker} bytes={len(data)}"
        raise CheckpointCorruptError(msg)
    return decode_index(data, where=f"blob_id={marker}")


def check_owner(index: SnapshotIndex, marker: Marker, task: TaskIdentity, store: StoreName) -> None:
    """Check that an index is of this task and store.

    The job is not compared: a job may start from another job's savepoint.

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


async def put_index(
    manager: BlobStoreManager, prefix: str, uid: str, index: SnapshotIndex, metadata: BlobMetadata
) -> Marker:
    """Write an index and return its marker.

    Args:
        manager: Where.
        prefix: Of the attempt.
        uid: Of the call of ``upload``.
        index: Every blob that it names is durable already.
        metadata: Of the store; the payload's name and digest are filled in here.
    """
    data = encode_index(index)
    name = index_blob_name(prefix, uid, data)
    stamped = BlobMetadata(
        task=metadata.task,
        store_name=metadata.store_name,
        payload_name=INDEX_PAYLOAD_NAME,
        sha256=hashlib.sha256(data).hexdigest(),
    )
    return Marker(await manager.put(name, data, stamped))

"""Reading and writing snapshot indexes as blobs."""

import hashlib

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.blob.codec import Codec, is_stream
from statekeep.backends.blob.encoded_stream import Encoding
from statekeep.backends.blob.index import SnapshotIndex, decode_index, encode_index
from statekeep.backends.blob.names import (
    INDEX_PAYLOAD_NAME,
    index_blob_name,
    index_digest,
    stream_place,
)
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.errors import CheckpointCorruptError


class IndexBlobs:
    """The indexes of one backend, stored as their stores are."""

    def __init__(self, manager: BlobStoreManager, codec: Codec, executor: BlockingExecutor) -> None:
        self._manager = manager
        self._codec = codec
        self._executor = executor

    async def load(self, marker: Marker) -> SnapshotIndex:
        """Fetch the index that a marker names and check it against the digest in its name.

        Raises:
            BlobNotFoundError: It is not there.
            CheckpointCorruptError: The marker is not ours, or the bytes are not those that were put.
            KeyUnavailableError: It is encrypted, and its key is missing.
            UnknownFormatError: A newer version of Statekeep wrote it.
            RetriableError: The service may answer later.
        """
        expected = index_digest(marker)
        data = await self._manager.get(marker)
        actual = hashlib.sha256(data).hexdigest()
        if actual != expected:
            msg = f"snapshot index differs from its digest: blob_id={marker} bytes={len(data)}"
            raise CheckpointCorruptError(msg)
        where = f"blob_id={marker}"
        if is_stream(data):
            place = _place(marker)
            data = await self._executor.run(self._codec.decode, data, place, where=where)
        return decode_index(data, where=where)

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
        data = encode_index(index)
        if not encoding.is_plain:
            place = _place(f"{prefix}{uid}-")
            data = await self._executor.run(self._codec.encode, data, encoding, place)
        name = index_blob_name(prefix, uid, data)
        stamped = BlobMetadata(
            task=metadata.task,
            store_name=metadata.store_name,
            payload_name=INDEX_PAYLOAD_NAME,
            sha256=hashlib.sha256(data).hexdigest(),
            is_temporary=metadata.is_temporary,
        )
        return Marker(await self._manager.put(name, data, stamped))


def _place(index_name: str) -> str:
    """Return what an encoded index is bound to: its name up to the digest, which comes later."""
    attempt, _, name = stream_place(index_name).partition("/")
    return f"{attempt}/{name.partition('-')[0]}-{INDEX_PAYLOAD_NAME}"


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

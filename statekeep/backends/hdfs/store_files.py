"""The files of one store on the remote side: listing, headers, upload, download."""

import io
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.hdfs.lineage import LoadPlan, plan_load
from statekeep.backends.hdfs.names import FileKind, FileName, UploadMarker
from statekeep.backends.hdfs.streaming import FilesAhead, read_next
from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.fault_points import fault_point
from statekeep.stores.delta import Change, DeltaHeader, DeltaReader, header_end

logger = logging.getLogger(__name__)

ID_ATTRIBUTE: Final = "id"
"""The id of the upload, as in the file's name."""
DELTA_BYTES_ATTRIBUTE: Final = "delta-bytes"
"""Bytes of all changes since the lineage began, before compression."""
PREVIOUS_SHA256_ATTRIBUTE: Final = "previous-sha256"
"""Of a delta: the digest of the file of the upload that it leads on from, as in that one's marker."""
SNAPSHOT_SHA256_ATTRIBUTE: Final = "snapshot-sha256"
"""Of a delta: the digest of the snapshot at which its lineage ends."""
_NONE: Final[Mapping[VersionId, str]] = MappingProxyType({})
_BYTES: Final = re.compile(r"[0-9]{1,18}")
_START_BYTES: Final = 16 << 10
"""Fetched first: holds the header of a lineage of about 370 uploads; what is longer is fetched anew."""


@dataclass(frozen=True, slots=True)
class FileRead:
    """What is known of a file that was read to its end."""

    header: DeltaHeader
    sha256: str
    """Hex, of all its bytes."""


class StoreFiles:
    """One store's files. Remembers headers, which never change.

    Attributes:
        prefix: Where the files lie, with a slash at its end.
        store: Whose files they are.
    """

    def __init__(
        self, manager: BlobStoreManager, prefix: str, task: TaskIdentity, store: StoreName
    ) -> None:
        """Take the client and the location; nothing is reached yet.

        Args:
            manager: The client; closed by its owner.
            prefix: Of the store's files, with a slash at its end.
            task: Whose state it is.
            store: The store.
        """
        self._manager = manager
        self.prefix = prefix
        self._task = task
        self.store = store
        self._headers: dict[FileName, DeltaHeader] = {}
        self._warned: set[str] = set()

    async def names(self) -> frozenset[FileName]:
        """Return the names of all files; what is not ours is left alone, with a warning."""
        found: set[FileName] = set()
        for blob_id in await self._manager.list(self.prefix):
            text = blob_id.rpartition(self.prefix)[2]
            name = FileName.parse(text)
            if name is not None:
                found.add(name)
            elif text not in self._warned:
                self._warned.add(text)
                logger.warning(
                    "file was not written by Statekeep and is left as it is: task=%s store=%s name=%s",
                    self._task.task_name,
                    self.store,
                    text,
                )
        self._headers = {name: self._headers[name] for name in self._headers if name in found}
        return frozenset(found)

    async def header(self, name: FileName) -> DeltaHeader:
        """Return a file's header, checked.

        Raises:
            BlobNotFoundError: The file is not there.
            CheckpointCorruptError: It is damaged, or another file than its name says.
        """
        if name not in self._headers:
            start = await self._manager.get_start(self.path(name), _START_BYTES)
            if header_end(start) > len(start):
                start = await self._manager.get_start(self.path(name), header_end(start))
            header = DeltaReader(io.BytesIO(start), where=self.path(name)).header
            check_header(header, name, self.store)
            self._headers[name] = header
        return self._headers[name]

    async def plan(
        self,
        marker: UploadMarker,
        *,
        without: frozenset[FileName] = frozenset(),
        late: Mapping[VersionId, str] = _NONE,
    ) -> LoadPlan:
        """Find the files that give the content of an upload, as `plan_load` does.

        Args:
            marker: Of the upload.
            without: Files that are taken as not there.
            late: The digests of snapshots that were made after their uploads had their markers, by
                upload.
        """
        files = (await self.names()) - without
        proven = None if marker.file is None else {**late, **marker.snapshots}
        try:
            plan = await plan_load(marker.id, files, self._lineage, proven)
        except BlobNotFoundError as exc:
            error = BlobNotFoundError(f"{self.prefix}{exc.blob_id}")
            error.add_note(f"a file that upload={marker.id} needs: store={self.store}")
            raise error from exc
        if proven is None:
            return plan
        sha256 = proven.get(plan.snapshot)
        if sha256 is None and plan.leader is not None:
            leader = await self.header(FileName(plan.leader, FileKind.DELTA))
            sha256 = leader.attributes.get(SNAPSHOT_SHA256_ATTRIBUTE, "")
        return replace(plan, snapshot_sha256=sha256)

    async def put(self, name: FileName, content: Path) -> None:
        """Upload a file under a name that was never used."""
        fault_point("upload.before_file")
        metadata = BlobMetadata(self._task, self.store, str(name))
        await self._manager.put(self.path(name), content, metadata)

    def ahead(self, names: Sequence[FileName]) -> FilesAhead:
        """Return the contents of files in this order, for `read`."""
        return FilesAhead(self._manager, [self.path(name) for name in names])

    async def read(
        self,
        name: FileName,
        ahead: FilesAhead,
        executor: BlockingExecutor,
        *,
        take: Callable[[Iterable[Change]], None],
        on_bytes: Callable[[int], None],
    ) -> FileRead:
        """Read a file to its end, and check all that a restore asks of it but for its digest.

        Args:
            name: Of the file that is next in ``ahead``.
            ahead: See `ahead`.
            executor: For taking it apart.
            take: Called in the executor with the records of each block, in order.
            on_bytes: Called with the bytes of each piece.

        Raises:
            CheckpointCorruptError: Truncated or damaged, a snapshot that deletes, or another file
                than its name says; what was taken must be thrown away.
            BlobNotFoundError: The file is not there.
            RetriableError: The service may answer later.
        """
        where = self.path(name)
        reader, sha256 = await read_next(ahead, executor, where=where, take=take, on_bytes=on_bytes)
        if name.kind is FileKind.SNAPSHOT and reader.counts.deletes:
            raise CheckpointCorruptError(f"a snapshot has a value size below 0: {where}")
        check_header(reader.header, name, self.store)
        if self._headers.get(name, reader.header) != reader.header:
            raise CheckpointCorruptError(f"file has changed since its header was read: {where}")
        return FileRead(reader.header, sha256)

    async def delete(self, name: FileName) -> None:
        """Delete a file; one that is not there is no error."""
        await self._manager.delete(self.path(name))

    def path(self, name: FileName) -> str:
        """Return where a file lies."""
        return f"{self.prefix}{name}"

    async def _lineage(self, delta: VersionId) -> Sequence[VersionId]:
        header = await self.header(FileName(delta, FileKind.DELTA))
        return lineage_of(header)


def lineage_of(header: DeltaHeader) -> Sequence[VersionId]:
    """Return the uploads before a delta, nearest first.

    Raises:
        CheckpointCorruptError: One is not of our form.
    """
    return [VersionId.parse(text) for text in header.lineage]


def changed_bytes_of(header: DeltaHeader) -> int:
    """Return the bytes of all changes that have led to a file since its lineage began.

    Raises:
        CheckpointCorruptError: The header does not say it in digits.
    """
    text = header.attributes.get(DELTA_BYTES_ATTRIBUTE, "0")
    if _BYTES.fullmatch(text) is None:
        raise CheckpointCorruptError(f"not a number of bytes: text={text[:100]!r}")
    return int(text)


def check_header(header: DeltaHeader, name: FileName, store: StoreName) -> None:
    """Make sure that a file is the one that its name says.

    Raises:
        CheckpointCorruptError: It is not.
    """
    if header.attributes.get(ID_ATTRIBUTE) != str(name.id) or header.store != store:
        msg = f"file is another one than its name says: name={name} store={store}"
        raise CheckpointCorruptError(msg)
    if (name.kind is FileKind.DELTA) != bool(header.lineage):
        raise CheckpointCorruptError(f"lineage of a file does not fit its kind: name={name}")


def check_digest(path: str, read: FileRead, expected: str | None) -> None:
    """Make sure that a file is the one that was uploaded.

    Args:
        path: For the error.
        read: What was read of it.
        expected: Its sha-256 in hex; None, where the one who should have it does not, is damage too.

    Raises:
        CheckpointCorruptError: It is not.
    """
    if read.sha256 != expected:
        msg = (
            f"file differs from its digest: {path} expected_sha256={expected} "
            f"actual_sha256={read.sha256}"
        )
        raise CheckpointCorruptError(msg)

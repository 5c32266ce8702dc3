"""The index of one store's snapshot: which files it holds and in which blobs they lie.

JSON in the form of Samza's ``SnapshotIndex``, which Samza's own reader accepts: what is ours
(``schema-version``, ``version``, ``image-version`` and ``deltas`` of the index, ``sha-256`` and
``stored-form`` of a file, ``range`` of a blob) are fields that it does not know and skips. Written last, after every blob that it names is
durable; never changed.

An index that would repeat all but the last deltas of an earlier one is written as an *addition*: it
names that one, the *full* index, and the deltas since. A full index is never an addition itself, so
a reader fetches two blobs at most. Samza refuses an addition, as it has no directory.

A snapshot is an *image*, the files of some version, and the deltas that lead from there to the
version that was backed up; where there are none, it is the image. Samza, which knows no deltas,
reads the image alone.

Source: Samza 1.8 ``SnapshotIndex``, ``DirIndex``, ``FileIndex``, ``FileBlob`` and their mixins.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from statekeep.checkpoint.framing import decode_json
from statekeep.checkpoint.names import is_file_name
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

SCHEMA_VERSION: Final = 4
"""What this code writes, and the newest that it reads: 3 knew neither additions nor deltas within an
index, 2 neither ranges nor stored forms, 1 no deltas, 0 stands for an index of Samza's own."""

MAX_IMAGE_FILES: Final = 32_768
"""Of one store: 2 TB in SST files of 64 MiB. A restore takes some 0.2 ms for each, whatever is in it."""

THIS_INDEX: Final = "."
"""Stands for the id of the blob that an index is written to, which holds the index's digest."""

_MAX_OFFSET: Final = 2**63 - 1  # Samza's are 32 bits wide; only files in several blobs need more
_MAX_CRC32: Final = 2**32 - 1
_MAX_PATH_BYTES: Final = 1024
"""Of a file within its image: with the way to the image still a path that a filesystem takes."""
_MAX_DEPTH: Final = 32
"""Of directories in an image; RocksDB makes none."""
_MAX_DIRECTORIES: Final = MAX_IMAGE_FILES
"""Of an image: a restore makes them before it fetches anything."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class _IndexPart(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Fields without a default are always written: Samza's reader wants every one of its own."""


class StoredForm(_IndexPart, frozen=True, kw_only=True):
    """How the bytes of a file are stored: as a stream of `statekeep.backends.blob.encoded_stream`."""

    compression: str
    """``none`` or ``zstd``."""
    encryption: str | None = None
    """``aes-256-gcm``; None: not encrypted."""
    key_id: str | None = None
    """Of the key that a reader needs."""

    def __post_init__(self) -> None:
        is_encrypted = self.encryption is not None
        _check(is_encrypted == (self.key_id is not None), "encryption without its key's id")


class BlobRange(_IndexPart, frozen=True, kw_only=True):
    """Stored bytes that are part of a blob, or a whole one; what they are is proven by a digest."""

    start: int
    size: int
    """Bytes."""
    sha256: str = msgspec.field(name="sha-256")
    """Hex digest of these bytes as they are stored."""

    def __post_init__(self) -> None:
        _check(0 <= self.start <= _MAX_OFFSET, f"range begins out of range: {self.start}")
        _check(0 < self.size <= _MAX_OFFSET, f"range has no size: {self.size}")
        _check(_SHA256.fullmatch(self.sha256) is not None, f"not a sha-256: {self.sha256}")


class FileBlob(_IndexPart, frozen=True, kw_only=True):
    """One blob, or a range of one, that holds a range of a file."""

    blob_id: str
    offset: int
    """Where in the file the range begins, in bytes."""
    range: BlobRange | None = None
    """Where in the blob it is stored; None: the blob is the range, as it is."""

    def __post_init__(self) -> None:
        _check(bool(self.blob_id.strip()), "blob id is blank")
        _check(0 <= self.offset <= _MAX_OFFSET, f"blob offset is out of range: {self.offset}")


class FileMetadata(_IndexPart, frozen=True, kw_only=True):
    """What the file's host said of it; for people, never compared."""

    creation_time_millis: int
    last_modified_time_millis: int
    size: int
    """Bytes."""
    owner: str
    group: str
    permissions: str
    """As ``ls`` writes them: ``rw-r-----``."""

    def __post_init__(self) -> None:
        _check(0 <= self.size <= _MAX_OFFSET, f"file size is out of range: {self.size}")


class FileIndex(_IndexPart, frozen=True, kw_only=True):
    """One file: its name within its directory, its blobs in no promised order, its checksums."""

    file_name: str
    blobs: tuple[FileBlob, ...]
    file_metadata: FileMetadata
    checksum: int
    """CRC32 as an unsigned number."""
    sha256: str | None = msgspec.field(default=None, name="sha-256")
    """Hex digest of the whole file; None in an index that Samza wrote."""
    stored_form: StoredForm | None = None
    """None: its blobs, or their ranges, hold it as it is."""

    def __post_init__(self) -> None:
        _check_name(self.file_name)
        _check(0 <= self.checksum <= _MAX_CRC32, f"checksum is out of range: {self.checksum}")
        _check(bool(self.blobs) or self.size == 0, f"file without blobs: {self.file_name}")
        _check(
            self.sha256 is None or _SHA256.fullmatch(self.sha256) is not None,
            f"not a sha-256: {self.sha256}",
        )
        is_plain = self.stored_form is None
        _check(
            is_plain or all(blob.range is not None for blob in self.blobs),
            f"stored form without ranges: {self.file_name}",
        )

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.file_metadata.size

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes up in its blobs."""
        ranges = [blob.range for blob in self.blobs if blob.range is not None]
        return sum(part.size for part in ranges) if ranges else self.size


class DirIndex(_IndexPart, frozen=True, kw_only=True):
    """One directory: what it holds, and what the base index held in it that is gone.

    No blob is both present and removed, anywhere in the tree; a *name* may be both, when the file
    changed.
    """

    dir_name: str
    """Name within the parent; empty for the root."""
    files_present: tuple[FileIndex, ...]
    files_removed: tuple[FileIndex, ...]
    sub_dirs_present: "tuple[DirIndex, ...]"
    sub_dirs_removed: "tuple[DirIndex, ...]"

    def __post_init__(self) -> None:
        names = [file.file_name for file in self.files_present]
        names += [sub_dir.dir_name for sub_dir in self.sub_dirs_present]
        _check(len(set(names)) == len(names), f"a name is present twice: dir={self.dir_name!r}")
        for sub_dir in (*self.sub_dirs_present, *self.sub_dirs_removed):
            _check_name(sub_dir.dir_name)

    def check_tree(self) -> None:
        """Check what holds of the whole tree below a root, in one pass.

        Raises:
            ValueError: A blob is both present and removed, a path is longer than any, or the files
                or directories are more than any.
        """
        present: set[FileBlob] = set()
        removed: set[FileBlob] = set()
        count = directory_count = 0
        waiting = [_Visit(self, 0, 0, present)]
        while waiting:
            visit = waiting.pop()
            directory, depth = visit.directory, visit.depth + 1
            path_bytes = visit.path_bytes + len(directory.dir_name.encode()) + 1
            longest = max(
                (len(file.file_name.encode()) for file in directory.files_present), default=0
            )
            is_path = path_bytes + longest <= _MAX_PATH_BYTES and depth <= _MAX_DEPTH
            _check(is_path, f"path is too long or too deep: dir={directory.dir_name!r}")
            count += len(directory.files_present)
            _check(count <= MAX_IMAGE_FILES, f"more files than {MAX_IMAGE_FILES}")
            directory_count += len(directory.sub_dirs_present)
            _check(directory_count <= _MAX_DIRECTORIES, f"more directories than {_MAX_DIRECTORIES}")
            for file in directory.files_present:
                visit.blobs.update(file.blobs)
            waiting += [
                _Visit(below, depth, path_bytes, visit.blobs)
                for below in directory.sub_dirs_present
            ]
            if visit.blobs is present:  # what a removed directory had lost before is of no concern
                for file in directory.files_removed:
                    removed.update(file.blobs)
                waiting += [
                    _Visit(below, depth, path_bytes, removed)
                    for below in directory.sub_dirs_removed
                ]
        _check(present.isdisjoint(removed), "blobs are both present and removed")

    def without_removed(self) -> "DirIndex":
        """Return the directory as it is, without what an older base held in it."""
        return DirIndex(
            dir_name=self.dir_name,
            files_present=self.files_present,
            files_removed=(),
            sub_dirs_present=tuple(below.without_removed() for below in self.sub_dirs_present),
            sub_dirs_removed=(),
        )

    def present_files(self) -> Iterator[FileIndex]:
        """Yield every file of this directory and of those below it."""
        yield from self.files_present
        for sub_dir in self.sub_dirs_present:
            yield from sub_dir.present_files()

    def removed_files(self) -> Iterator[FileIndex]:
        """Yield every file that the base held here or below and that is gone or replaced."""
        yield from self.files_removed
        for sub_dir in self.sub_dirs_removed:
            yield from sub_dir.present_files()
        for sub_dir in self.sub_dirs_present:
            yield from sub_dir.removed_files()


@dataclass(frozen=True, slots=True)
class _Visit:
    """A directory that `DirIndex.check_tree` has to look at, and what it knows on the way."""

    directory: DirIndex
    depth: int
    path_bytes: int
    blobs: set[FileBlob]
    """Gets the blobs of its files."""


class DeltaBlob(_IndexPart, frozen=True, kw_only=True):
    """A file with the changes that lead from one version to a later one of its lineage.

    It is in the format of `statekeep.stores.delta`, whose header names both versions as well.
    """

    parent: str
    """`VersionId` that the changes start from."""
    version: str
    """`VersionId` that they lead to."""
    blob_id: str
    """The blob that it is stored in; the first of several."""
    size: int
    """Bytes of the file."""
    checksum: int
    """CRC32 of the file as an unsigned number."""
    sha256: str = msgspec.field(name="sha-256")
    """Hex digest of the file."""
    stored_form: StoredForm | None = None
    """None: the blob is the file."""
    blobs: tuple[FileBlob, ...] = ()
    """Where it is stored, if not as it is."""
    in_index: bool = False
    """Whether the blob is the index that added it."""
    content: bytes | None = None
    """The file, in the index that added it; absent in those that repeat the delta."""

    def __post_init__(self) -> None:
        _check(bool(self.parent and self.version), "delta without its versions")
        _check(self.size > 0, f"delta without content: {self.version}")
        is_plain = self.stored_form is None and not self.blobs
        _check(is_plain or not self.in_index, f"delta in an index, but encoded: {self.version}")
        if self.content is not None:
            is_here = self.in_index and len(self.content) == self.size
            _check(is_here, f"delta of another size than its content: {self.version}")
        first = self.blobs[0].blob_id if self.blobs else self.blob_id
        _check(first == self.blob_id, f"delta in another blob: {self.version}")
        self.as_file()

    def as_file(self) -> FileIndex:
        """Return the file that it becomes when it is fetched."""
        return FileIndex(
            file_name=f"{self.version}.delta",
            blobs=self.blobs or (FileBlob(blob_id=self.blob_id, offset=0),),
            file_metadata=FileMetadata(
                creation_time_millis=0,
                last_modified_time_millis=0,
                size=self.size,
                owner="",
                group="",
                permissions="",
            ),
            checksum=self.checksum,
            sha256=self.sha256,
            stored_form=self.stored_form,
        )


class SnapshotMetadata(_IndexPart, frozen=True, kw_only=True):
    """Whose snapshot it is."""

    checkpoint_id: str
    job_name: str
    job_id: str
    task_name: str
    store_name: str

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _check(bool(getattr(self, field).strip()), f"snapshot metadata is blank: {field}")


class SnapshotIndex(_IndexPart, frozen=True, kw_only=True):
    """One store's snapshot at one checkpoint."""

    creation_time_millis: int
    snapshot_metadata: SnapshotMetadata
    dir_index: DirIndex
    """The root directory of the image."""
    prev_snapshot_index_blob_id: str | None
    """The index that this one was an increment to; None for a full snapshot."""
    schema_version: int = 0
    """`SCHEMA_VERSION`; 0 where Samza wrote the index."""
    version: str | None = None
    """`VersionId` of the local version that was backed up; None where Samza wrote the index."""
    image_version: str | None = None
    """`VersionId` of the version that the image is of; None: that of ``version``."""
    deltas: tuple[DeltaBlob, ...] = ()
    """What leads from the image to ``version``, in order."""
    full_index_blob_id: str | None = None
    """The full index that this one is written as an addition to; None: it is full itself."""
    full_deltas: int = 0
    """How many of ``deltas`` that one names."""

    def __post_init__(self) -> None:
        _check(self.creation_time_millis >= 0, "creation time is negative")
        reached = self.image_version or self.version
        for delta in self.deltas:
            _check(delta.parent == reached, f"delta does not connect: {delta.parent} {reached}")
            reached = delta.version
        _check(reached == self.version, f"deltas end before the version: {reached}")
        _check(
            self.dir_index.dir_name == "", "the root directory has a name"
        )  # the empty name is the rule, not falsehood
        self.dir_index.check_tree()

    @property
    def added_deltas(self) -> int:
        """How many deltas it adds to a full index; 0 if it is full itself."""
        return 0 if self.full_index_blob_id is None else len(self.deltas) - self.full_deltas

    def blob_ids(self) -> set[str]:
        """Return the ids of all blobs that a restore of this snapshot reads, its own excepted."""
        found = {blob.blob_id for file in self.files() for blob in file.blobs}
        return found if self.full_index_blob_id is None else found | {self.full_index_blob_id}

    def stored_at(self, blob_id: str) -> "SnapshotIndex":
        """Return the index as it refers to itself once it is known where it is stored."""
        deltas = tuple(
            msgspec.structs.replace(delta, blob_id=blob_id)
            if delta.blob_id == THIS_INDEX
            else delta
            for delta in self.deltas
        )
        return msgspec.structs.replace(self, deltas=deltas)

    def without_content(self) -> "SnapshotIndex":
        """Return the index as a later one repeats it: without the delta that it holds itself."""
        deltas = tuple(
            delta if delta.content is None else msgspec.structs.replace(delta, content=None)
            for delta in self.deltas
        )
        return msgspec.structs.replace(self, deltas=deltas)

    def files(self) -> Iterator[FileIndex]:
        """Yield every file that a restore of this snapshot fetches, deltas included."""
        yield from self.dir_index.present_files()
        for delta in self.deltas:
            yield delta.as_file()

    def key_ids(self) -> set[str | None]:
        """Return the ids of the keys that a restore needs; None among them: some are not encrypted."""
        files = [file for file in self.files() if file.blobs]
        return {file.stored_form.key_id if file.stored_form else None for file in files}

    def image_bytes(self) -> int:
        """Return the size of the image."""
        return sum(file.size for file in self.dir_index.present_files())

    def delta_bytes(self) -> int:
        """Return the size of all deltas."""
        return sum(delta.size for delta in self.deltas)


class IndexAddition(_IndexPart, frozen=True, kw_only=True):
    """What an index adds to a full one."""

    creation_time_millis: int
    snapshot_metadata: SnapshotMetadata
    full_index_blob_id: str
    prev_snapshot_index_blob_id: str
    schema_version: int
    version: str
    deltas: tuple[DeltaBlob, ...]
    """What leads from the version of the full index to ``version``."""

    def __post_init__(self) -> None:
        _check(self.creation_time_millis >= 0, "creation time is negative")
        _check(bool(self.full_index_blob_id.strip()), "full index without an id")

    def joined(self, full: SnapshotIndex, *, where: str) -> SnapshotIndex:
        """Return the whole index.

        Raises:
            CheckpointCorruptError: The full one is another one's, or an addition itself.
        """
        metadata, other = self.snapshot_metadata, full.snapshot_metadata
        is_own = (metadata.task_name, metadata.store_name) == (other.task_name, other.store_name)
        try:
            _check(is_own, "full index of another store")
            _check(full.full_index_blob_id is None, "full index that is an addition")
            return SnapshotIndex(
                creation_time_millis=self.creation_time_millis,
                snapshot_metadata=metadata,
                dir_index=full.dir_index.without_removed(),
                prev_snapshot_index_blob_id=self.prev_snapshot_index_blob_id,
                schema_version=self.schema_version,
                version=self.version,
                image_version=full.image_version or full.version,
                deltas=(*full.without_content().deltas, *self.deltas),
                full_index_blob_id=self.full_index_blob_id,
                full_deltas=len(full.deltas),
            )
        except ValueError as exc:
            msg = (
                f"snapshot index cannot be read: {where} full={self.full_index_blob_id} error={exc}"
            )
            raise CheckpointCorruptError(msg) from exc


class _Versioned(_IndexPart, frozen=True, kw_only=True):
    """What an index of any schema version says of itself."""

    schema_version: int = 0
    full_index_blob_id: str | None = None


_encoder: Final = msgspec.json.Encoder()
_version_decoder: Final = msgspec.json.Decoder(_Versioned)
_decoder: Final = msgspec.json.Decoder(SnapshotIndex)
_addition_decoder: Final = msgspec.json.Decoder(IndexAddition)


def encode_index(index: SnapshotIndex) -> bytes:
    """Return the JSON of an index: of what it adds, where there is a full one that it adds to."""
    if index.full_index_blob_id is None:
        return _encoder.encode(index)
    return _encoder.encode(
        IndexAddition(
            creation_time_millis=index.creation_time_millis,
            snapshot_metadata=index.snapshot_metadata,
            full_index_blob_id=index.full_index_blob_id,
            prev_snapshot_index_blob_id=index.prev_snapshot_index_blob_id or "",
            schema_version=index.schema_version,
            version=index.version or "",
            deltas=index.deltas[index.full_deltas :],
        )
    )


def decode_index(data: bytes, *, where: str) -> SnapshotIndex | IndexAddition:
    """Read an index back.

    Args:
        data: The JSON, as it was put: its digest is compared before.
        where: Named in errors, such as ``blob_id=...``.

    Raises:
        CheckpointCorruptError: Truncated, damaged or inconsistent.
        UnknownFormatError: Of a newer schema version.
    """
    damage = f"snapshot index cannot be read: {where}"
    kind = decode_json(_version_decoder, data, damage)
    if kind.schema_version > SCHEMA_VERSION:
        msg = f"snapshot index of an unknown schema version: {where} version={kind.schema_version}"
        raise UnknownFormatError(msg)
    if kind.full_index_blob_id is None:
        return decode_json(_decoder, data, damage)
    return decode_json(_addition_decoder, data, damage)


def _check_name(name: str) -> None:
    """Refuse what would leave the directory when it is joined to a path, and what no file can have."""
    _check(is_file_name(name), f"not a file name: {name[:300]!r}")


def _check(is_fine: bool, message: str) -> None:  # noqa: FBT001  # the condition of an assertion
    if not is_fine:
        raise ValueError(message)

"""The index of one store's snapshot: which files it holds and in which blobs they lie.

JSON in the form of Samza's ``SnapshotIndex``, which Samza's own reader accepts: what is ours
(``schema-version`` and ``version`` of the index, ``sha-256`` of a file) are fields that it does not
know and skips. Written last, after every blob that it names is durable; never changed.

Source: Samza 1.8 ``SnapshotIndex``, ``DirIndex``, ``FileIndex``, ``FileBlob`` and their mixins.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from statekeep.errors import CheckpointCorruptError

SCHEMA_VERSION: Final = 1
"""What this code writes, and the newest that it reads; 0 stands for an index of Samza's own."""

_MAX_OFFSET: Final = 2**31 - 1  # Samza reads offsets as 32-bit integers
_MAX_CRC32: Final = 2**32 - 1
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class _IndexPart(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """Fields without a default are always written: Samza's reader wants every one of its own."""


class FileBlob(_IndexPart, frozen=True, kw_only=True):
    """One blob that holds a stretch of a file."""

    blob_id: str
    offset: int
    """Where in the file the blob begins, in bytes."""

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
        _check(self.size >= 0, f"file size is negative: {self.size}")


class FileIndex(_IndexPart, frozen=True, kw_only=True):
    """One file: its name within its directory, its blobs in no promised order, its checksums."""

    file_name: str
    blobs: tuple[FileBlob, ...]
    file_metadata: FileMetadata
    checksum: int
    """CRC32 as an unsigned number."""
    sha256: str | None = msgspec.field(default=None, name="sha-256")
    """Hex digest of the whole file; None in an index that Samza wrote."""

    def __post_init__(self) -> None:
        _check_name(self.file_name)
        _check(0 <= self.checksum <= _MAX_CRC32, f"checksum is out of range: {self.checksum}")
        _check(bool(self.blobs) or self.size == 0, f"file without blobs: {self.file_name}")
        _check(
            self.sha256 is None or _SHA256.fullmatch(self.sha256) is not None,
            f"not a sha-256: {self.sha256}",
        )

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.file_metadata.size


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
        both = _blobs(self.present_files()).intersection(_blobs(self.removed_files()))
        _check(not both, f"blobs are both present and removed: dir={self.dir_name!r}")

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
    """The root directory of the store's image."""
    prev_snapshot_index_blob_id: str | None
    """The index that this one was an increment to; None for a full snapshot."""
    schema_version: int = 0
    """`SCHEMA_VERSION`; 0 where Samza wrote the index."""
    version: str | None = None
    """`VersionId` of the local version that was backed up; None where Samza wrote the index."""

    def __post_init__(self) -> None:
        _check(self.creation_time_millis >= 0, "creation time is negative")
        _check(
            self.dir_index.dir_name == "", "the root directory has a name"
        )  # the empty name is the rule, not falsehood

    def blob_ids(self) -> set[str]:
        """Return the ids of all blobs that a restore of this snapshot reads, its own excepted."""
        return {blob.blob_id for file in self.dir_index.present_files() for blob in file.blobs}


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(SnapshotIndex)


def encode_index(index: SnapshotIndex) -> bytes:
    """Return the JSON of an index."""
    return _encoder.encode(index)


def decode_index(data: bytes, *, where: str) -> SnapshotIndex:
    """Read an index back.

    Args:
        data: The JSON.
        where: Named in errors, such as ``blob_id=...``.

    Raises:
        CheckpointCorruptError: Truncated, damaged, inconsistent, or of a newer schema version.
    """
    try:
        index = _decoder.decode(data)
    except msgspec.MsgspecError as exc:
        msg = f"snapshot index cannot be read: {where}"
        raise CheckpointCorruptError(msg) from exc
    if index.schema_version > SCHEMA_VERSION:
        msg = f"snapshot index of an unknown schema version: {where} version={index.schema_version}"
        raise CheckpointCorruptError(msg)
    return index


def _blobs(files: Iterator[FileIndex]) -> set[FileBlob]:
    return {blob for file in files for blob in file.blobs}


def _check_name(name: str) -> None:
    """Refuse what would leave the directory when it is joined to a path."""
    is_component = bool(name.strip()) and "/" not in name and "\0" not in name
    _check(is_component and name not in {".", ".."}, f"not a file name: {name!r}")


def _check(is_fine: bool, message: str) -> None:  # noqa: FBT001  # the condition of an assertion
    if not is_fine:
        raise ValueError(message)

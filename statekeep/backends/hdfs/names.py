"""The files of one store: what their names say.

::

    <place>/<store>/<batch>_<uid>.delta       changes since the file that its lineage names first
    <place>/<store>/<batch>_<uid>.snapshot    the whole content

``<place>`` is as for blobs (`statekeep.backends.storage.names`). Each upload draws a uid: 8
hex digits each of epoch and attempt, then 16 random ones. Only the uid distinguishes two files of
one batch, and no name is ever used twice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from typing_extensions import override

from statekeep.backends.storage.names import is_blob_name
from statekeep.checkpoint.checkpoints import Marker, VersionId
from statekeep.errors import CheckpointCorruptError, UnknownFormatError

_FORM: Final = re.compile(r"([0-9]{1,18}_[0-9a-f]{8,64})\.(delta|snapshot)")
_VERSION: Final = re.compile(r"v=([0-9]{1,9})")
_DIGEST: Final = re.compile(r"v=2;sha256=([0-9a-f]{64})")
_MARKER_VERSION: Final = 2
_ATTEMPT_DIGITS: Final = 8
_NONCE_DIGITS: Final = 16


class FileKind(Enum):
    """What a file holds; the value is its suffix."""

    DELTA = "delta"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of one file of a store."""

    id: VersionId
    """Of the upload, not of the local version: one version may be uploaded twice."""
    kind: FileKind

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a name; None if it is not one of ours."""
        match = _FORM.fullmatch(name)
        return None if match is None else cls(VersionId.parse(match[1]), FileKind(match[2]))

    @override
    def __str__(self) -> str:
        return f"{self.id}.{self.kind.value}"


def new_file_id(batch: int, epoch: int, attempt: int, nonce: str) -> VersionId:
    """Return the id of an upload.

    Args:
        batch: Of the version.
        epoch: Of the commit.
        attempt: Of the commit.
        nonce: At least 16 digits of lower-case hex, drawn anew.
    """
    digits = f"{epoch:0{_ATTEMPT_DIGITS}x}{attempt:0{_ATTEMPT_DIGITS}x}"
    return VersionId(batch, f"{digits}{nonce[:_NONCE_DIGITS]}")


def check_directory(directory: str, marker: Marker) -> None:
    """Refuse a marker that names a directory in which no file of a backup can lie.

    Args:
        directory: With a slash at its end; empty for the root.
        marker: For the error.

    Raises:
        CheckpointCorruptError: It is absolute, leads out of the root or is no name of a directory.
    """
    if directory and not is_blob_name(directory.removesuffix("/")):
        raise CheckpointCorruptError(f"not a marker of the hdfs backend: marker={marker[:300]!r}")


def attempt_of(file_id: VersionId) -> tuple[int, int] | None:
    """Return the (epoch, attempt) of an upload; None for an id of another form."""
    uid = file_id.uid
    if len(uid) != 2 * _ATTEMPT_DIGITS + _NONCE_DIGITS:
        return None
    return int(uid[:_ATTEMPT_DIGITS], 16), int(uid[_ATTEMPT_DIGITS : 2 * _ATTEMPT_DIGITS], 16)


@dataclass(frozen=True, slots=True)
class UploadMarker:
    """What a marker says: which upload, and the digest of its file.

    ::

        <prefix><batch>_<uid>.<delta|snapshot>;v=2;sha256=<64 hex>
        <prefix><batch>_<uid>                                        version 1

    The digest of one file is enough: a delta has in its header the digests of the file that it leads
    on from and of the snapshot at which its lineage ends. So a marker does not grow with the lineage.
    """

    prefix: str
    """Where the store's files lie, with a slash at its end."""
    id: VersionId
    """Of the upload."""
    file: "FileDigest | None"
    """None in version 1, which has no digest."""

    @classmethod
    def parse(cls, marker: Marker) -> Self:
        """Read a marker.

        Raises:
            CheckpointCorruptError: It is not one that this backend makes.
            UnknownFormatError: A newer version of Statekeep made it.
        """
        directory, slash, text = marker.rpartition("/")
        check_directory(f"{directory}{slash}", marker)
        name, *rest = text.split(";")
        if not rest:
            return cls(f"{directory}{slash}", VersionId.parse(name), None)
        version = _VERSION.fullmatch(rest[0])
        if version is not None and int(version[1]) > _MARKER_VERSION:
            raise UnknownFormatError(f"marker of an unknown format: marker={marker}")
        file, digest = FileName.parse(name), _DIGEST.fullmatch(";".join(rest))
        if file is None or digest is None:
            raise CheckpointCorruptError(f"not a marker of the hdfs backend: marker={marker}")
        return cls(f"{directory}{slash}", file.id, FileDigest(file.kind, digest[1]))

    def encode(self) -> Marker:
        """Return the marker."""
        if self.file is None:
            return Marker(f"{self.prefix}{self.id}")
        name = FileName(self.id, self.file.kind)
        return Marker(f"{self.prefix}{name};v={_MARKER_VERSION};sha256={self.file.sha256}")

    @property
    def snapshots(self) -> Mapping[VersionId, str]:
        """Return the digest of the upload's snapshot, by its id, if the upload was a whole content."""
        is_full = self.file is not None and self.file.kind is FileKind.SNAPSHOT
        return {self.id: self.file.sha256} if self.file is not None and is_full else {}


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The file that an upload has made, and its digest."""

    kind: FileKind
    sha256: str
    """Hex, of all bytes of the file."""

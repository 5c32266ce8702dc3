"""The files of one store: what their names say.

::

    <place>/<store>/<batch>_<uid>.delta       changes since the file that its lineage names first
    <place>/<store>/<batch>_<uid>.snapshot    the whole content

``<place>`` is as for blobs (`statekeep.backends.blob.names`). The uid is drawn by each upload: 8
digits each of epoch and attempt, then 16 at random, all hex. Two files of one batch are told apart
by it alone, and no name is ever used twice.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from typing_extensions import override

from statekeep.checkpoint.checkpoints import Marker
from statekeep.checkpoint.version_id import VersionId

_FORM: Final = re.compile(r"([0-9]{1,18}_[0-9a-f]{8,64})\.(delta|snapshot)")
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


def attempt_of(file_id: VersionId) -> tuple[int, int] | None:
    """Return the (epoch, attempt) of an upload; None for an id of another form."""
    uid = file_id.uid
    if len(uid) != 2 * _ATTEMPT_DIGITS + _NONCE_DIGITS:
        return None
    return int(uid[:_ATTEMPT_DIGITS], 16), int(uid[_ATTEMPT_DIGITS : 2 * _ATTEMPT_DIGITS], 16)


def marker_of(prefix: str, file_id: VersionId) -> Marker:
    """Return the marker of an upload: where its files lie, without their suffix."""
    return Marker(f"{prefix}{file_id}")


def parse_marker(marker: Marker) -> tuple[str, VersionId]:
    """Return the prefix of a store's files, with a slash at its end, and the id of an upload.

    Raises:
        CheckpointCorruptError: The marker is not one that this backend makes.
    """
    directory, slash, text = marker.rpartition("/")
    return f"{directory}{slash}", VersionId.parse(text)

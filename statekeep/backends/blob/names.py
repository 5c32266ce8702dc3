"""Where blobs lie: names that are never used twice and say which attempt made them.

Below the root of a `BlobStoreManager`::

    <place>/<store>/<epoch>-<attempt>/<uid>-<number>-<file name, or small-files.pack>
    <place>/<store>/<epoch>-<attempt>/<uid>-snapshot-index-<sha256>.json
    <place>/<store>/<epoch>-<attempt>/<uid>-snapshot-index-<sha256>-<key check>.json    encrypted

where ``<place>`` is ``<job>/state-<job uid>/<backend>/<operator>/<task>``. What nothing retained
reaches is deleted below one such place, so the location contains all that has markers of its own: the
backend's name, since two backends may be given one root, and the uid of the job log, since a log
that was set up anew counts its epochs and attempts from the start again.

A blob's id is what its store calls it; it ends with the blob's name (`BlobStoreManager`). What a
name says is therefore read from the end of an id.
"""

import hashlib
import re
from typing import Final

from statekeep.checkpoint.checkpoints import Marker, StoreName
from statekeep.checkpoint.names import escape_name, unescape_name
from statekeep.errors import CheckpointCorruptError

INDEX_PAYLOAD_NAME: Final = "snapshot-index"
"""`BlobMetadata.payload_name` of an index, as in Samza."""

_INDEX: Final = re.compile(r"([0-9a-f]+)-snapshot-index-([0-9a-f]{64})(?:-([0-9a-f]{16}))?\.json")
_NAME_PARTS: Final = 8
"""Of every blob's name: job, state, backend, operator, task, store, attempt, file."""
_ATTEMPT: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def file_blob_name(prefix: str, uid: str, number: int, file_name: str) -> str:
    """Return the name of a file's blob.

    Args:
        prefix: Of the attempt.
        uid: Drawn for each call of ``upload``, lower-case hex.
        number: Of the file within that call.
        file_name: Kept for people.
    """
    return f"{prefix}{uid}-{number}-{escape_name(file_name)}"


def index_blob_name(prefix: str, uid: str, data: bytes, key_check: str | None = None) -> str:
    """Return the name of an index's blob: it carries the digest of the index.

    Args:
        prefix: Of the attempt.
        uid: Of the call of ``upload``.
        data: The index as it is stored.
        key_check: Of the key that it is encrypted with: finds what a key rotation has left behind.
    """
    digest = hashlib.sha256(data).hexdigest()
    suffix = "" if key_check is None else f"-{key_check}"
    return f"{prefix}{uid}-{INDEX_PAYLOAD_NAME}-{digest}{suffix}.json"


def index_digest(marker: Marker) -> str:
    """Return the sha-256 that the index of a marker must have.

    Raises:
        CheckpointCorruptError: The marker is not one that this backend makes.
    """
    match = _INDEX.fullmatch(marker.rpartition("/")[2])
    if match is None:
        msg = f"not a marker of the blob backend: marker={marker!r}"
        raise CheckpointCorruptError(msg)
    return match[2]


def index_key_check(marker: Marker) -> str | None:
    """Return which key the index of a marker is encrypted with; None where its name does not say."""
    match = _INDEX.fullmatch(marker.rpartition("/")[2])
    return None if match is None else match[3]


def index_place(blob_id: str) -> str:
    """Return what an encrypted index is bound to: its name up to the digest, which comes later."""
    uid = blob_id.rpartition("/")[2].partition("-")[0]
    return "/".join([*_name_parts(blob_id)[:-1], f"{uid}-{INDEX_PAYLOAD_NAME}"])


def store_of(blob_id: str) -> StoreName:
    """Return the store that a blob is of, by its name.

    Raises:
        CheckpointCorruptError: The name is not of our form.
    """
    parts = _name_parts(blob_id)
    try:
        return StoreName(unescape_name(parts[-3]))
    except (IndexError, UnicodeDecodeError) as exc:
        raise CheckpointCorruptError(f"not a blob of a store: blob_id={blob_id!r}") from exc


def is_below(blob_id: str, prefix: str) -> bool:
    """Return whether a blob is the one of its name below a store's prefix, and of no longer one."""
    return "/".join([*_name_parts(blob_id)[:-2], ""]) == prefix


def is_index(blob_id: str) -> bool:
    """Return whether a blob is an index, by its name."""
    return _INDEX.fullmatch(blob_id.rpartition("/")[2]) is not None


def stream_place(blob_id: str, start: int = 0) -> str:
    """Return what a stream is bound to: the blob that it begins in, by its whole name.

    The same whatever stands before it in the id, and drawn once.
    """
    return f"{'/'.join(_name_parts(blob_id))}#{start}"


def _name_parts(blob_id: str) -> list[str]:
    return blob_id.split("/")[-_NAME_PARTS:]


def attempt_of(blob_id: str) -> tuple[int, int] | None:
    """Return the (epoch, attempt) that made a blob; None for a name that is not of our form."""
    parts = blob_id.rsplit("/", 2)
    match = _ATTEMPT.fullmatch(parts[1]) if len(parts) == 3 else None  # noqa: PLR2004  # prefix, attempt, file
    return (int(match[1]), int(match[2])) if match else None

"""Where blobs lie: names that are never used twice and say which attempt made them.

Below the root of a `BlobStoreManager`::

    <job>/state/<backend>/<operator>/<task>/<store>/<epoch>-<attempt>/<uid>-<number>-<file name>
    <job>/state/<backend>/<operator>/<task>/<store>/<epoch>-<attempt>/<uid>-snapshot-index-<sha256>.json

The backend's name is part of it because what one backend's markers do not reach is deleted by that
backend: two backends that are given one place must not see each other's blobs.

A blob's id is what its store calls it; it ends with the blob's name. What a name says is therefore
read from the end of an id.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from statekeep.backends.base import TaskIdentity
from statekeep.backends.remote_names import escape_name
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.errors import CheckpointCorruptError

INDEX_PAYLOAD_NAME: Final = "snapshot-index"
"""`BlobMetadata.payload_name` of an index, as in Samza."""

_INDEX: Final = re.compile(r"[0-9a-f]+-snapshot-index-([0-9a-f]{64})\.json")
_ATTEMPT: Final = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class TaskPrefix:
    """The place of one task's blobs in one backend."""

    backend: BackendName
    task: TaskIdentity

    @override
    def __str__(self) -> str:
        parts = (self.backend, self.task.operator, self.task.task_name)
        below = "/".join(escape_name(part) for part in parts)
        return f"{escape_name(self.task.job_name)}/state/{below}/"

    def store(self, store: StoreName) -> str:
        """Return the prefix of one store's blobs."""
        return f"{self}{escape_name(store)}/"

    def attempt(self, store: StoreName, epoch: int, attempt: int) -> str:
        """Return the prefix of what one attempt made of one store."""
        return f"{self.store(store)}{epoch}-{attempt}/"


def file_blob_name(prefix: str, uid: str, number: int, file_name: str) -> str:
    """Return the name of a file's blob.

    Args:
        prefix: Of the attempt.
        uid: Drawn for each call of ``upload``, lower-case hex.
        number: Of the file within that call.
        file_name: Kept for people.
    """
    return f"{prefix}{uid}-{number}-{escape_name(file_name)}"


def index_blob_name(prefix: str, uid: str, data: bytes) -> str:
    """Return the name of an index's blob: it carries the digest of the index."""
    digest = hashlib.sha256(data).hexdigest()
    return f"{prefix}{uid}-{INDEX_PAYLOAD_NAME}-{digest}.json"


def index_digest(marker: Marker) -> str:
    """Return the sha-256 that the index of a marker must have.

    Raises:
        CheckpointCorruptError: The marker is not one that this backend makes.
    """
    match = _INDEX.fullmatch(marker.rpartition("/")[2])
    if match is None:
        msg = f"not a marker of the blob backend: marker={marker!r}"
        raise CheckpointCorruptError(msg)
    return match[1]


def is_index(blob_id: str) -> bool:
    """Return whether a blob is an index, by its name."""
    return _INDEX.fullmatch(blob_id.rpartition("/")[2]) is not None


def attempt_of(blob_id: str) -> tuple[int, int] | None:
    """Return the (epoch, attempt) that made a blob; None for a name that is not of our form."""
    parts = blob_id.rsplit("/", 2)
    match = _ATTEMPT.fullmatch(parts[1]) if len(parts) == 3 else None  # noqa: PLR2004  # prefix, attempt, file
    return (int(match[1]), int(match[2])) if match else None

"""Where blobs lie: names that are never used twice and say which attempt made them.

Below the root of a `BlobStoreManager`::

    <place>/<store>/<epoch>-<attempt>/<uid>-<number>-<file name, or small-files.pack>
    <place>/<store>/<epoch>-<attempt>/<uid>-snapshot-index-<sha256>.json
    <place>/<store>/<epoch>-<attempt>/<uid>-snapshot-index-<sha256>-<key check>.json    encrypted

where ``<place>`` is ``<job>/state-<job uid>/<backend>/<operator>/<task>``. What nothing retained
reaches is deleted below one such place, so it is told apart by all that has markers of its own: the
backend's name, since two backends may be given one root, and the uid of the job log, since a log
that was set up anew counts its epochs and attempts from the start again.

A blob's id is what its store calls it; it ends with the blob's name (`BlobStoreManager`). What a
name says is therefore read from the end of an id.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName
from statekeep.checkpoint.escaping import escape_name, unescape_name
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError

INDEX_PAYLOAD_NAME: Final = "snapshot-index"
"""`BlobMetadata.payload_name` of an index, as in Samza."""

TEMPORARY_PREFIX: Final = ".tmp-"
"""With this begin names of files that are not blobs yet; no part of a blob's name may."""

_MAX_ID_CHARACTERS: Final = 4096
"""Of an id: a path on Linux; object stores take a quarter of that."""

_KEPT_CHARACTERS: Final = 100
"""Of a blob's name in that of its temporary file: filesystems bound a name, mostly to 255."""

_INDEX: Final = re.compile(r"([0-9a-f]+)-snapshot-index-([0-9a-f]{64})(?:-([0-9a-f]{16}))?\.json")
_NAME_PARTS: Final = 8
"""Of every blob's name: job, state, backend, operator, task, store, attempt, file."""
_ATTEMPT: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


def check_blob_name(name: str) -> None:
    """Refuse a name that could lead out of the root or mean another blob on some store.

    Raises:
        ValueError: The name is absolute, has an empty, ``.``, ``..`` or temporary part, a
            backslash or a control character.
    """
    if not is_blob_name(name):
        msg = f"not a blob name: name={name!r}"
        raise ValueError(msg)


def is_blob_name(name: str) -> bool:
    """Return whether `check_blob_name` takes a name."""
    parts = name.split("/")
    is_bad = any(part in {"", ".", ".."} or part.startswith(TEMPORARY_PREFIX) for part in parts)
    return not is_bad and "\\" not in name and name.isprintable()


def check_blob_id(blob_id: str) -> None:
    """Refuse the id of a blob that is to be read, if it is the name of none.

    Raises:
        BlobNotFoundError: No blob can have it: it comes from bytes that somebody else wrote.
    """
    if len(blob_id) > _MAX_ID_CHARACTERS or not is_blob_name(blob_id):
        raise BlobNotFoundError(blob_id[:_MAX_ID_CHARACTERS])


def temporary_path(path: str, uid: str) -> str:
    """Return where a blob is written before it has its name: beside it, and the name says of which.

    Args:
        path: Of the blob.
        uid: Lower-case hex, never drawn again.
    """
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{TEMPORARY_PREFIX}{uid}-{name[:_KEPT_CHARACTERS]}"


def unfinished_name(path: str) -> str | None:
    """Return the name of the blob that a temporary file was to become; None for any other file."""
    directory, slash, name = path.rpartition("/")
    if not name.startswith(TEMPORARY_PREFIX):
        return None
    return f"{directory}{slash}{name.removeprefix(TEMPORARY_PREFIX).partition('-')[2]}"


def job_prefix(job_name: str) -> str:
    """Return how the names of all blobs begin that jobs of one name have, whatever their logs' uids."""
    return f"{escape_name(job_name)}/state-"


def backend_prefix(job_name: str, job_uid: str, backend: BackendName) -> str:
    """Return the prefix of all blobs that one job, by the uid of its log, has in one backend."""
    state = f"state-{job_uid}" if job_uid else "state"
    return "".join(f"{escape_name(part)}/" for part in (job_name, state, backend))


@dataclass(frozen=True, slots=True)
class TaskPrefix:
    """The place of one task's blobs in one backend."""

    backend: BackendName
    task: TaskIdentity

    @override
    def __str__(self) -> str:
        job = backend_prefix(self.task.job_name, self.task.job_uid, self.backend)
        return f"{job}{escape_name(self.task.operator)}/{escape_name(self.task.task_name)}/"

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


def index_blob_name(prefix: str, uid: str, data: bytes, key_check: str | None = None) -> str:
    """Return the name of an index's blob: it carries the digest of the index.

    Args:
        prefix: Of the attempt.
        uid: Of the call of ``upload``.
        data: The index as it is stored.
        key_check: Of the key that it is encrypted with: tells what a rotation has left behind.
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

"""Which names blobs may have, those of files that are not blobs yet, and where a task's are."""

from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.checkpoint.names import escape_name
from statekeep.errors import BlobNotFoundError

TEMPORARY_PREFIX: Final = ".tmp-"
"""With this begin names of files that are not blobs yet; no part of a blob's name may."""

_MAX_ID_CHARACTERS: Final = 4096
"""Of an id: a path on Linux; object stores take a quarter of that."""

_KEPT_CHARACTERS: Final = 100
"""Of a blob's name in that of its temporary file: filesystems bound a name, mostly to 255."""


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
        BlobNotFoundError: No blob can have it: it comes from bytes that others wrote.
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
    """Where the blobs of one task are in one backend."""

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

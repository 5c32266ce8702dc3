"""What `ObjectBlobStoreManager` asks of one object store: its requests, each of them blocking."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from statekeep.backends.blob_store import BlobMetadata


@dataclass(frozen=True, slots=True)
class PartLimits:
    """What the store allows in an upload in parts."""

    min_bytes: int
    """Of every part but the last."""
    max_parts: int


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes of an object."""

    data: bytes
    """At most as many as were asked for; fewer only at the object's end."""
    object_bytes: int
    """Size of the whole object."""


@dataclass(frozen=True, slots=True)
class ObjectStamps:
    """What an object store keeps beside a blob."""

    metadata: Mapping[str, str]
    """For people."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """On top of those that every object of the client has."""


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload in parts that was begun, and neither completed nor aborted."""

    name: str
    """Of the object that it was to become."""
    upload: str
    """As `ObjectClient.begin_parts` returned it."""


class ObjectClient(ABC):
    """The requests of one object store, below one prefix of one bucket.

    Every method makes one request (`list` and `unfinished`: one for each page) on an executor thread
    and makes it once: repeating is the caller's. Names are relative to the prefix.

    Every method raises, beside what it says itself: `RetriableError` (`ThrottledError` where the
    service asks for less) if asking again may help, `ConfigError` if not.
    """

    part_limits: PartLimits
    """A class attribute."""
    max_deletes: ClassVar[int] = 1
    """Objects that one `delete_many` takes; 1: there is no such request."""

    @abstractmethod
    def check(self) -> None:
        """Reach the bucket."""

    @abstractmethod
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        """Store an object whole.

        Raises:
            BlobExistsError: With ``if_absent``: the name is taken.
        """

    @abstractmethod
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        """Begin an upload in parts, which nobody sees before its end; return its id."""

    @abstractmethod
    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str:
        """Store a part, or store it again; return what `complete_parts` calls it by."""

    @abstractmethod
    def complete_parts(
        self,
        name: str,
        upload: str,
        parts: Sequence[str],
        stamps: ObjectStamps,
        *,
        if_absent: bool,
    ) -> None:
        """Make an object of the parts, in order.

        Raises:
            BlobExistsError: With ``if_absent``: the name is taken.
            BlobNotFoundError: There is no such upload, or no longer.
        """

    @abstractmethod
    def abort_parts(self, name: str, upload: str) -> None:
        """Drop the parts of an upload that will not be completed; none is no error.

        Called when no request of the upload is under way: a part that lands later may stay.
        """

    @abstractmethod
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        """Return the uploads of objects whose names begin with ``prefix``, in any order.

        None where the store drops them by itself.
        """

    @abstractmethod
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        """Return bytes of an object from ``start`` on; ``length`` is at least 1.

        Args:
            name: Of the object.
            start: First byte.
            length: How many, if there are as many.

        Raises:
            BlobNotFoundError: It is not there.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is no error."""

    def delete_many(self, names: Sequence[str]) -> None:
        """Delete up to ``max_deletes`` objects; those that are not there are no error."""
        raise NotImplementedError(f"no request deletes {len(names)} objects")

    @abstractmethod
    def remove_tags(self, name: str) -> None:
        """Leave an object no tags but those that every object of the client has.

        Raises:
            BlobNotFoundError: It is not there.
        """

    @abstractmethod
    def list(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with ``prefix``, in any order."""

    @abstractmethod
    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `BlobStoreManager.list_folders`; in any order."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. Idempotent."""


def object_metadata(metadata: BlobMetadata) -> Mapping[str, str]:
    """Return what an object store keeps beside a blob, for people who look at a bucket.

    Only ASCII without control characters goes through every store's headers: anything else is
    escaped. Restores read none of it.
    """
    values = {"payload": metadata.payload_name, "store": metadata.store_name or ""}
    if metadata.task is not None:
        values |= {
            "job": metadata.task.job_name,
            "operator": metadata.task.operator,
            "task": metadata.task.task_name,
        }
    if metadata.sha256 is not None:
        values["sha256"] = metadata.sha256
    return {
        key: value.encode("unicode_escape").decode("ascii").strip()
        for key, value in values.items()
        if value.strip()
    }

"""What `StorageManager` asks of one store of objects or files: its requests, each of them blocking."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.file_errors import explained_reach_errors, explained_storage_errors
from statekeep.backends.storage.names import unfinished_name
from statekeep.backends.storage.requests import Requests


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
    object_bytes: int | None
    """Size of the whole object; None where the answer does not have it: see `StorageClient.size`."""


@dataclass(frozen=True, slots=True)
class ObjectStamps:
    """What an object store keeps beside a blob."""

    metadata: Mapping[str, str]
    """For people."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """On top of those that every object of the client has."""


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """What is left of a put that was begun, and neither completed nor aborted."""

    name: str
    """Of the blob that it was to become; its end may lack where it is long."""
    upload: str
    """What `StorageClient.abort` takes."""


class StorageClient(ABC):
    """The requests of one store of objects or files, below one root.

    Every method makes one request (`list` and `unfinished`: one for each page or folder) on an
    executor thread and makes it once: repeating is the caller's. Names are relative to the root.

    Every method raises, beside what it says itself: `RetriableError` (`ThrottledError` where the
    service asks for less) if asking again may help, `ConfigError` if not; or what `explained` makes such
    an error of.
    """

    max_deletes: ClassVar[int] = 1
    """Objects that one `delete_many` takes; 1: there is no such request."""

    def explained(self, name: str, *, is_read: bool = False) -> AbstractContextManager[None]:
        """Return what the caller makes a request in, so that its errors are ours.

        Args:
            name: The blob or prefix.
            is_read: It is read, so that a name which no blob can have is that of one that is missing.
        """
        del name, is_read
        return nullcontext()

    @abstractmethod
    def check(self) -> None:
        """Reach the root, creating it where a root is a thing of its own; errors are ours."""

    @abstractmethod
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        """Store an object whole.

        Raises:
            BlobExistsError: With ``if_absent``: the name is taken.
        """

    def put_file(self, name: str, path: Path, stamps: ObjectStamps, *, if_absent: bool) -> None:
        """Store a file whole; raises as `put`. To be overridden where memory can be bounded."""
        self.put(name, path.read_bytes(), stamps, if_absent=if_absent)

    @abstractmethod
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        """Return what is left of puts of blobs whose names begin with ``prefix``, in any order.

        None where the store drops it by itself.
        """

    @abstractmethod
    def abort(self, name: str, upload: str) -> None:
        """Drop what an upload that will not be completed has left; nothing is no error.

        Called when no request of the upload is under way: a part that lands later may stay.
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

    def size(self, name: str) -> int:
        """Return an object's size; for clients whose `read` does not always have it."""
        raise NotImplementedError(f"read tells the size: name={name}")

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is no error."""

    def delete_many(self, names: Sequence[str]) -> None:
        """Delete up to ``max_deletes`` objects; those that are not there are no error."""
        raise NotImplementedError(f"no request deletes {len(names)} objects")

    @abstractmethod
    def list(self, prefix: str) -> Sequence[str]:
        """Return the names that begin with ``prefix``, in any order."""

    @abstractmethod
    def list_folders(self, prefix: str) -> Sequence[str]:
        """See `BlobStoreManager.list_folders`; in any order."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. Idempotent."""


class ObjectClient(StorageClient):
    """A store that takes a large object in parts, and tags."""

    part_limits: PartLimits
    """A class attribute."""

    @abstractmethod
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        """Begin an upload in parts, which is not visible before its end; return its id."""

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
    def remove_tags(self, name: str) -> None:
        """Leave an object no tags but those that every object of the client has.

        Raises:
            BlobNotFoundError: It is not there.
        """


class FileClient(StorageClient):
    """A store of files: a blob is written whole, and has no stamps.

    What a crash leaves of a put has a temporary name (`temporary_path`): it is no blob.
    """

    def __init__(self, shown_root: str) -> None:
        """Keep the root.

        Args:
            shown_root: Its URI, without what is secret, for messages.
        """
        self.shown_root = shown_root

    @abstractmethod
    def reach(self) -> None:
        """Reach the root, creating it where roots are created; raises errors of ours."""

    @abstractmethod
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        """Store a blob, of a file with bounded memory.

        Raises:
            FileExistsError: With ``if_absent``: the name is taken.
        """

    @abstractmethod
    def files(self, prefix: str) -> Sequence[str]:
        """Return the names of all files that begin with ``prefix``, temporary ones included."""

    @override
    def explained(self, name: str, *, is_read: bool = False) -> AbstractContextManager[None]:
        return explained_storage_errors(self.shown_root, name, is_read=is_read)

    @override
    def check(self) -> None:
        with explained_reach_errors(self.shown_root):
            self.reach()

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        self.write(name, data, if_absent=if_absent)

    @override
    def put_file(self, name: str, path: Path, stamps: ObjectStamps, *, if_absent: bool) -> None:
        self.write(name, path, if_absent=if_absent)

    @override
    def list(self, prefix: str) -> Sequence[str]:
        return [name for name in self.files(prefix) if unfinished_name(name) is None]

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        named = ((unfinished_name(name), name) for name in self.files(prefix))
        return [UnfinishedUpload(blob, name) for blob, name in named if blob is not None]

    @override
    def abort(self, name: str, upload: str) -> None:
        self.delete(upload)

    @override
    def close(self) -> None:
        pass


class SharedClient:
    """One client for all managers of a container and backend: building one costs more than a request.

    It is built by the first who asks for it and closed by the last who leaves; those who come after
    that get a new one. Used by one event loop.
    """

    def __init__(self, make: Callable[[], StorageClient]) -> None:
        """Build nothing yet.

        Args:
            make: Called on an executor thread; may raise ConfigError or RetriableError.
        """
        self._make = make
        self._client: StorageClient | None = None
        self._member_count = 0
        self._changing = asyncio.Lock()

    def join(self) -> None:
        """Count one more who may ask; `leave` is due."""
        self._member_count += 1

    async def get(self, requests: Requests) -> StorageClient:
        """Return the client."""
        async with self._changing:
            if self._client is None:
                self._client = await requests.run_to_end("connect", "", 0, self._make)
            return self._client

    async def leave(self, requests: Requests) -> None:
        """Count one fewer; the last one closes the client."""
        async with self._changing:
            self._member_count -= 1
            if self._member_count == 0 and self._client is not None:
                client, self._client = self._client, None
                await requests.local(client.close)


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

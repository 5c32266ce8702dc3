"""Clients of object stores that count requests, by operation: in memory, and of a real S3 server."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from typing_extensions import override

from statekeep.backends.storage.client import (
    ObjectClient,
    ObjectRange,
    ObjectStamps,
    PartLimits,
    UnfinishedUpload,
)
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.s3 import S3Client
from statekeep.errors import BlobExistsError, BlobNotFoundError

BUCKET: Final = "statekeep-requests"
_PAGE: Final = 1_000


class ObjectsInMemory(ObjectClient):
    """One bucket; every request is counted."""

    part_limits = PartLimits(min_bytes=5 << 20, max_parts=10_000)
    max_deletes = _PAGE

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._objects: dict[str, bytes] = {}
        self._parts: dict[str, dict[int, bytes]] = {}

    @override
    def check(self) -> None:
        self._counts["HEAD"] += 1

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        self._counts["PUT"] += 1
        self._counts["bytes put"] += len(data)
        if if_absent and name in self._objects:
            raise BlobExistsError(name)
        self._objects[name] = data

    @override
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        self._counts["PUT"] += 1
        return name

    @override
    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str:
        self._counts["PUT"] += 1
        self._parts.setdefault(name, {})[number] = data
        return ""

    @override
    def complete_parts(
        self,
        name: str,
        upload: str,
        parts: Sequence[str],
        stamps: ObjectStamps,
        *,
        if_absent: bool,
    ) -> None:
        found = self._parts.pop(name)
        self.put(name, b"".join(found[n] for n in sorted(found)), stamps, if_absent=if_absent)

    @override
    def abort(self, name: str, upload: str) -> None:
        self._counts["DELETE"] += 1
        self._parts.pop(name, None)

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        self._counts["LIST"] += 1
        return ()

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        self._counts["GET"] += 1
        if name not in self._objects:
            raise BlobNotFoundError(name)
        data = self._objects[name]
        return ObjectRange(data[start : start + length], len(data))

    @override
    def delete(self, name: str) -> None:
        self._counts["DELETE"] += 1
        self._objects.pop(name, None)

    @override
    def delete_many(self, names: Sequence[str]) -> None:
        self._counts["DELETE"] += 1
        for name in names:
            self._objects.pop(name, None)

    @override
    def remove_tags(self, name: str) -> None:
        self._counts["DELETE"] += 1

    @override
    def list(self, prefix: str) -> Sequence[str]:
        found = [name for name in tuple(self._objects) if name.startswith(prefix)]
        self._counts["LIST"] += max(1, -(-len(found) // _PAGE))
        return found

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        found = (name.removeprefix(prefix).partition("/") for name in self.list(prefix))
        return list({folder for folder, slash, _ in found if slash})

    @override
    def close(self) -> None:
        pass


@contextmanager
def counted_memory() -> Generator[Counter[str]]:
    """Let every client that is made meanwhile reach one bucket in memory."""
    counts = Counter[str]()
    bucket = ObjectsInMemory(counts)
    with mock.patch.object(Location, "open_client", return_value=bucket):
        yield counts


@contextmanager
def counted_s3() -> Generator[Counter[str]]:
    """Count the HTTP requests of every S3 client that is made meanwhile."""
    counts, make = Counter[str](), S3Client.__init__

    def count(request: Any, **_: Any) -> None:
        path = request.url.partition("?")[0].rstrip("/")
        if not path.endswith(BUCKET):
            counts[request.method] += 1
        elif request.method == "POST":
            counts["DELETE"] += 1  # of many
        else:
            counts["LIST" if request.method == "GET" else request.method] += 1

    def counted(client: S3Client, *args: Any, **kwargs: Any) -> None:
        make(client, *args, **kwargs)
        client._s3.meta.events.register("before-send.s3", count)  # noqa: SLF001 - the SDK's own

    with mock.patch.object(S3Client, "__init__", counted):
        yield counts

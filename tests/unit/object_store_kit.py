"""An object store in memory, whose requests can be made to fail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage.client import (
    ObjectClient,
    ObjectRange,
    ObjectStamps,
    PartLimits,
    SharedClient,
    UnfinishedUpload,
)
from statekeep.backends.storage.manager import StorageManager
from statekeep.backends.storage.requests import Requests, TransferLimits
from statekeep.clock import Clock
from statekeep.errors import BlobExistsError, BlobNotFoundError
from statekeep.testing.clock import FakeClock


@dataclass
class ObjectsInMemory(ObjectClient):
    """Objects and unfinished uploads; `before` and `after` may raise around each request.

    Attributes:
        uploads: The parts of each, by its id.
        names: What each was to become, ended ones included.
    """

    part_limits = PartLimits(min_bytes=1, max_parts=10_000)
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict[str, dict[int, bytes]])
    names: dict[str, str] = field(default_factory=dict[str, str])
    tags: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    requests: list[str] = field(default_factory=list[str])
    before: Callable[[str], None] = lambda request: None
    after: Callable[[str], None] = lambda request: None
    closed_count: int = 0

    def _done(self, request: str) -> None:
        self.after(request)

    def _begin(self, request: str) -> None:
        self.requests.append(request)
        self.before(request)

    @override
    def check(self) -> None:
        self._begin("check")

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        self._begin("put")
        self._create(name, data, if_absent=if_absent)
        self.tags[name] = stamps.tags
        self._done("put")

    @override
    def begin_parts(self, name: str, stamps: ObjectStamps) -> str:
        self._begin("begin")
        upload = f"upload-{len(self.requests)}"
        self.uploads[upload] = {}
        self.names[upload] = name
        self._done("begin")
        return upload

    @override
    def put_part(self, name: str, upload: str, number: int, data: bytes) -> str:
        self._begin(f"part {number}")
        # What lands after the abort stays, as in S3.
        self.uploads.setdefault(upload, {})[number] = data
        self._done(f"part {number}")
        return str(number)

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
        self._begin("complete")
        if upload not in self.uploads:
            raise BlobNotFoundError(name)
        data = b"".join(self.uploads[upload][int(part)] for part in parts)
        self._create(name, data, if_absent=if_absent)
        self.tags[name] = stamps.tags
        del self.uploads[upload]
        self._done("complete")

    @override
    def abort(self, name: str, upload: str) -> None:
        self._begin("abort")
        self.uploads.pop(upload, None)

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        self._begin("unfinished")
        named = ((self.names[upload], upload) for upload in self.uploads)
        return [UnfinishedUpload(name, upload) for name, upload in named if name.startswith(prefix)]

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        self._begin(f"read {start}")
        if name not in self.objects:
            raise BlobNotFoundError(name)
        data = self.objects[name]
        return ObjectRange(data[start : start + length], len(data))

    @override
    def delete(self, name: str) -> None:
        self._begin("delete")
        self.objects.pop(name, None)

    @override
    def delete_many(self, names: Sequence[str]) -> None:
        self._begin(f"delete {len(names)}")
        for name in names:
            self.objects.pop(name, None)

    @override
    def remove_tags(self, name: str) -> None:
        self._begin("remove tags")
        self.tags[name] = {}

    @override
    def list(self, prefix: str) -> Sequence[str]:
        self._begin("list")
        return [name for name in tuple(self.objects) if name.startswith(prefix)]

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        found = (name.removeprefix(prefix).partition("/") for name in self.list(prefix))
        return list({folder for folder, slash, _ in found if slash})

    @override
    def close(self) -> None:
        self.closed_count += 1

    def _create(self, name: str, data: bytes, *, if_absent: bool) -> None:
        if if_absent and name in self.objects:
            raise BlobExistsError(name)
        self.objects[name] = data


class Failing:
    """Raises an error at the first so many requests of a name."""

    def __init__(self, request: str, error: Exception, times: int = 1) -> None:
        self._request = request
        self._error = error
        self._times_left = times

    def __call__(self, request: str) -> None:
        if request == self._request and self._times_left:
            self._times_left -= 1
            raise self._error


@dataclass
class ObjectStoreRig:
    """Managers of one container on one object store."""

    client: ObjectsInMemory
    executor: BlockingExecutor
    clock: Clock = field(default_factory=FakeClock)
    part_bytes: int = 10
    buffer_bytes: int = 40
    bytes_per_second: int | None = None
    own_calls: int = 4
    max_retries: int = 3
    uncommitted_tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.limits = TransferLimits(
            "memory",
            max_in_flight=8,
            task_max_in_flight=self.own_calls,
            buffer_bytes=self.buffer_bytes,
            bytes_per_second=self.bytes_per_second,
        )
        self.shared_client = SharedClient(lambda: self.client)

    def manager(self) -> StorageManager:
        policy = RetryPolicy(max_retries=self.max_retries, jitter_factor=0)
        return StorageManager(
            self.shared_client,
            "memory",
            Requests(self.limits, self.executor, self.clock, policy),
            part_bytes=self.part_bytes,
            uncommitted_tags=self.uncommitted_tags,
        )

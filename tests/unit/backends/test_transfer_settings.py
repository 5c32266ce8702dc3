"""What the settings say of transfers reaches them: the rate, and how many requests there are at once."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lagging_kit import OverlappingCalls
from object_store_kit import ObjectsInMemory
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.names import is_index
from statekeep.backends.storage.client import StorageClient
from statekeep.backends.storage.locations import Location
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.testing.backend_harness import BackendHarness
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

RATE = 64 << 10
CONTENT = {
    "CURRENT": b"1",
    "small.sst": bytes(70_000),
    "a.sst": bytes(range(256)) * 10_000,
    "b.sst": b"b" * 1_500_000,
}


@dataclass
class ObjectStore:
    """One store for all clients that a backend builds for a bucket."""

    client: ObjectsInMemory = field(default_factory=ObjectsInMemory)
    connections: int = 0


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    store = ObjectStore()

    real_open = Location.open_client

    def open_client(location: Location) -> StorageClient:
        if not location.kind.has_buckets:
            return real_open(location)
        store.connections = location.connections
        return store.client

    monkeypatch.setattr(Location, "open_client", open_client)
    return store


class Place:
    """Where a backend puts its blobs, looked at without it."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def sizes(self) -> dict[str, int]:
        root = Path(self.uri.removeprefix("file://"))
        files = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.stat().st_size for path in files}


class Bucket(Place):
    def __init__(self, client: ObjectsInMemory) -> None:
        super().__init__("s3://bucket/prefix")
        self._client = client

    @override
    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self._client.objects.items()}


@pytest.fixture(params=["object store", "directory"])
def place(request: pytest.FixtureRequest, store: ObjectStore, tmp_path: Path) -> Place:
    if request.param == "object store":
        return Bucket(store.client)
    return Place((tmp_path / "place").as_uri())


async def commit_and_restore(place: Place, root: Path, **settings: str) -> tuple[float, int]:
    """Return the seconds that a commit and its restore took, and the bytes they moved."""
    clock = FakeClock()
    merged = {"uri": place.uri, "part.bytes": "1MiB", **settings}
    factory = BlobBackendFactory(BackendName("b"), merged)
    task = BackendHarness(factory, SerialExecutor(), clock, root / "task")
    await task.start()
    commit = await task.commit(task.seal(CONTENT))
    restored = await task.restore(commit.checkpoint)
    await task.close()
    sizes = place.sizes()
    index_bytes = sum(size for name, size in sizes.items() if is_index(name))
    moved = sum(sizes.values()) + restored.fetched_bytes + index_bytes
    return clock.monotonic_ns() / 1e9, moved


@pytest.mark.asyncio
async def test_commits_and_restores_move_no_more_bytes_than_the_rate(
    place: Place, tmp_path: Path
) -> None:
    rate = {"bandwidth.bytes.per.second": str(RATE)}
    seconds, moved = await commit_and_restore(place, tmp_path, **rate)
    assert moved > 2 * sum(map(len, CONTENT.values()))
    # The first second is saved up.
    assert seconds == pytest.approx(moved / RATE - 1)


@pytest.mark.asyncio
async def test_without_a_rate_no_caller_waits(place: Place, tmp_path: Path) -> None:
    assert (await commit_and_restore(place, tmp_path))[0] == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("task_count", "most"), [(1, 2), (3, 5)], ids=["of a task", "of a container"]
)
async def test_requests_of_an_object_store_are_as_many_at_once_as_was_set(
    store: ObjectStore, task_count: int, most: int
) -> None:
    executor = OverlappingCalls()
    settings = {"uri": "s3://bucket/a", "max.in.flight": "5", "task.max.in.flight": "2"}
    factory = BlobBackendFactory(BackendName("b"), settings)
    tasks = [factory.blob_store_manager(executor, FakeClock()) for _ in range(task_count)]
    for task in tasks:
        await task.init()
    await asyncio.gather(*(task.delete(f"a/{n}") for n in range(20) for task in tasks))
    assert executor.most_calls == most
    assert store.connections == 5
    for task in tasks:
        await task.close()

"""What is looked for by names is found without listing all blobs of a job."""

from collections.abc import Awaitable, Callable, Sequence, Sized
from pathlib import Path
from typing import TypeVar, cast

import pytest
from typing_extensions import override

from statekeep.backends.base import TaskIdentity
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.backends.storage.factory import find_state, find_task_logs
from statekeep.backends.storage.memory import MemoryBlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.storage import bare_manager

T = TypeVar("T")

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")
TASK = TaskIdentity("orders", "main", TaskName("Partition 3"))
NAMES = [
    *(f"orders/state-1f/blob/main/Partition_{n % 8}/s/1-{n}/f" for n in range(400)),
    *(f"orders/state-1f/blob/main/Partition_{n % 8}/orders/1-{n}/f" for n in range(8)),
    *(f"orders/checkpoints/1-{n}/Partition_{t}/000000" for n in range(3) for t in range(100)),
    *(f"orders/main/Partition_{n % 4}/log/{n:020d}.json" for n in range(400)),
    "orders/main/Partition_9/checkpoints/1-1/Partition_9/000000",
]


class CountingNames(WrappedBlobStoreManager):
    """Counts the names that listings return."""

    count = 0

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        answer = await call()
        if operation == "list":
            self.count += len(cast("Sized", answer))
        return answer


async def filled(manager: BlobStoreManager, names: Sequence[str] = NAMES) -> CountingNames:
    await manager.init()
    for name in names:
        await manager.put(name, b"", METADATA)
    return CountingNames(manager)


@pytest.fixture
def place(tmp_path: Path) -> BlobStoreManager:
    return bare_manager(tmp_path.as_uri(), {}, SerialExecutor())


@pytest.mark.asyncio
async def test_a_task_without_state_is_found_by_folders_alone(place: BlobStoreManager) -> None:
    blobs = await filled(place)
    assert await find_state(blobs, TaskIdentity("orders", "main", TaskName("Partition 8"))) is None
    assert blobs.count < 10


@pytest.mark.asyncio
async def test_state_is_found_under_any_uid_and_an_empty_folder_is_none(
    place: BlobStoreManager, tmp_path: Path
) -> None:
    (tmp_path / "orders/state-0a/blob/main/Partition_3/s").mkdir(parents=True)
    blobs = await filled(place)
    assert await find_state(blobs, TASK) == "orders/state-1f/blob/main/Partition_3/"


@pytest.mark.asyncio
async def test_tasks_with_logs_are_listed_without_their_records(
    place: BlobStoreManager,
) -> None:
    blobs = await filled(place)
    assert await find_task_logs(blobs, "orders", "main") == [f"Partition {n}" for n in range(4)]
    assert blobs.count < 20


@pytest.mark.asyncio
async def test_attempts_are_listed_without_their_entries(place: BlobStoreManager) -> None:
    blobs = await filled(place)
    store = BlobCheckpointStore(blobs, "orders")
    assert set(await store.attempts()) == {(1, 0), (1, 1), (1, 2)}
    assert blobs.count == 3


class RootedIds(MemoryBlobStoreManager):
    """A store whose ids begin with its root, which looks like the name of the job."""

    @override
    async def list(self, prefix: str) -> Sequence[str]:
        return [f"/srv/orders/{name}" for name in await super().list(prefix)]


@pytest.mark.asyncio
async def test_a_store_that_lists_blobs_only_gives_the_same() -> None:
    blobs = await filled(RootedIds("rooted", SerialExecutor()))
    assert await find_state(blobs, TASK) == "orders/state-1f/blob/main/Partition_3/"
    assert await find_task_logs(blobs, "orders", "main") == [f"Partition {n}" for n in range(4)]
    assert set(await BlobCheckpointStore(blobs, "orders").attempts()) == {(1, 0), (1, 1), (1, 2)}

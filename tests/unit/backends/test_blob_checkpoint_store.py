import asyncio
import random
from pathlib import Path

import pytest
from log_kit import DawdlingBlobs, InlineExecutor, LosingBlobs, RetryingOnce, new_blobs

from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.checkpoint.checkpoints import TaskName

pytestmark = pytest.mark.asyncio

TASK = TaskName("Partition 3")
OTHER = TaskName("Partition_3/é.")


@pytest.fixture(params=["memory", "directory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStoreManager:
    if request.param == "memory":
        return new_blobs()
    return FsspecBlobStoreManager(str(tmp_path), {}, InlineExecutor())


@pytest.fixture
def store(blobs: BlobStoreManager) -> BlobCheckpointStore:
    return BlobCheckpointStore(blobs, "job")


async def test_entries_are_gathered_by_task(store: BlobCheckpointStore) -> None:
    await store.write("7-3", TASK, b"a")
    await store.write("7-3", OTHER, b"b")

    assert await store.read("7-3") == {TASK: b"a", OTHER: b"b"}


async def test_attempt_without_entries_is_empty(store: BlobCheckpointStore) -> None:
    assert await store.read("7-3") == {}


async def test_attempts_whose_names_begin_alike_are_apart(store: BlobCheckpointStore) -> None:
    await store.write("7-30", TASK, b"a")

    assert await store.read("7-3") == {}


async def test_later_entry_of_a_task_holds(store: BlobCheckpointStore) -> None:
    for entry in (b"failure", b"done", b"failure", b"done"):
        await store.write("7-3", TASK, entry)
        assert await store.read("7-3") == {TASK: entry}


async def test_entry_that_landed_without_an_answer_is_written_once() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    losing.losses["put"] = 1

    await BlobCheckpointStore(RetryingOnce(losing), "job").write("7-3", TASK, b"a")

    assert await blobs.list("") == ["job/checkpoints/7-3/Partition_3/000000"]


async def test_racing_writers_of_one_task_leave_one_whole_entry() -> None:
    blobs = new_blobs()
    rng = random.Random(5)
    stores = [BlobCheckpointStore(DawdlingBlobs(blobs, rng), "job") for _ in range(4)]
    entries = [b"entry %d" % number for number in range(4)]

    await asyncio.gather(*(s.write("7-3", TASK, e) for s, e in zip(stores, entries, strict=True)))

    assert (await stores[0].read("7-3"))[TASK] in entries
    assert len(await blobs.list("")) == 4


async def test_delete_leaves_other_attempts_and_is_idempotent(
    store: BlobCheckpointStore, blobs: BlobStoreManager
) -> None:
    await store.write("7-3", TASK, b"a")
    await store.write("7-4", TASK, b"b")

    await store.delete("7-3")
    await store.delete("7-3")

    assert await store.read("7-3") == {}
    assert await store.read("7-4") == {TASK: b"b"}
    assert len(await blobs.list("")) == 1

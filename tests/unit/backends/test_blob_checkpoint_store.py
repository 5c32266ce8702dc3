import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from log_kit import (
    CountedBlobs,
    DawdlingBlobs,
    InlineExecutor,
    LosingBlobs,
    RetryingOnce,
    new_blobs,
)

from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.errors import CheckpointCorruptError
from statekeep.testing.storage import bare_manager

pytestmark = pytest.mark.asyncio

TASK = TaskName("Partition 3")
OTHER = TaskName("Partition_3/é.")


@pytest.fixture(params=["memory", "directory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStoreManager:
    if request.param == "memory":
        return new_blobs()
    return bare_manager(str(tmp_path), {}, InlineExecutor())


@pytest.fixture
def store(blobs: BlobStoreManager) -> BlobCheckpointStore:
    return BlobCheckpointStore(blobs, "job")


async def test_entries_are_gathered_by_task(store: BlobCheckpointStore) -> None:
    await store.write("7-3", TASK, b"a")
    await store.write("7-3", OTHER, b"b")

    assert await store.read("7-3") == {TASK: b"a", OTHER: b"b"}


async def test_entries_that_are_written_together_are_one_blob(
    blobs: BlobStoreManager, store: BlobCheckpointStore
) -> None:
    await store.write("7-3", TaskName("Partition 1"), b"alone")
    await store.write_all("7-3", {TASK: b"a", OTHER: b"b"})
    assert len(await blobs.list("job/checkpoints/7-3/")) == 2
    expected = {TaskName("Partition 1"): b"alone", TASK: b"a", OTHER: b"b"}
    assert await store.read("7-3") == expected
    reader = BlobCheckpointStore(blobs, "job")
    assert await reader.read("7-3") == expected
    assert await reader.read("7-3", known=expected) == {}
    assert await store.attempts() == {(7, 3)}


async def test_a_later_entry_holds_that_is_written_with_others(store: BlobCheckpointStore) -> None:
    await store.write_all("7-3", {TASK: b"a", OTHER: b"b"})
    assert await store.read("7-3") == {TASK: b"a", OTHER: b"b"}
    await store.write_all("7-3", {TASK: b"c"})
    assert await store.read("7-3") == {TASK: b"c", OTHER: b"b"}


async def test_what_stores_write_together_at_once_is_all_found(blobs: BlobStoreManager) -> None:
    names = [TaskName(f"Partition {number}") for number in range(8)]
    writers = [BlobCheckpointStore(blobs, "job") for _ in range(4)]
    packs = [dict.fromkeys(names[2 * n : 2 * n + 2], b"%d" % n) for n in range(4)]
    await asyncio.gather(
        *(w.write_all("7-3", pack) for w, pack in zip(writers, packs, strict=True))
    )
    found = await BlobCheckpointStore(blobs, "job").read("7-3")
    assert found == {task: data for pack in packs for task, data in pack.items()}


async def test_a_pack_is_fetched_once() -> None:
    blobs = CountedBlobs(new_blobs(), Counter())
    store = BlobCheckpointStore(blobs, "job")
    await store.write_all("7-3", {TASK: b"a"})
    for _ in range(3):
        await store.read("7-3", known=[TASK])
    await store.write_all("7-3", {OTHER: b"b"})
    assert await store.read("7-3", known=[TASK]) == {OTHER: b"b"}
    assert blobs.counts["get"] == 2


async def test_a_damaged_pack_is_no_silence(blobs: BlobStoreManager) -> None:
    store = BlobCheckpointStore(blobs, "job")
    await store.write_all("7-3", {TASK: b"a", OTHER: b"b"})
    (name,) = await blobs.list("job/checkpoints/")
    data = await blobs.get(name)
    await blobs.delete(name)
    await blobs.put(name, data[:-1] + b"x", BlobMetadata(None, None, "x"))
    with pytest.raises(CheckpointCorruptError):
        await BlobCheckpointStore(blobs, "job").read("7-3")


async def test_the_entries_of_several_attempts_go_at_once(
    blobs: BlobStoreManager, store: BlobCheckpointStore
) -> None:
    for attempt in ("7-3", "7-30", "7-4", "8-3"):
        await store.write(attempt, TASK, b"a")
        await store.write_all(attempt, {TASK: b"b", OTHER: b"c"})
    await store.write("events-7", TASK, b"events")
    await store.delete_all({(7, 3), (8, 3)})
    assert await store.attempts() == {(7, 30), (7, 4)}
    assert await store.read("events-7") == {TASK: b"events"}
    assert len(await blobs.list("job/")) == 5


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

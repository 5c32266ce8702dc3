"""Blobs of an object store: moved in parts, each repeated alone, with bounded memory."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from lagging_kit import TURNS, LaggingExecutor
from object_store_kit import Failing, ObjectsInMemory, ObjectStoreRig
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobStoreManager
from statekeep.backends.storage.client import ObjectRange, ObjectStamps, PartLimits
from statekeep.backends.storage.manager import StorageManager
from statekeep.backends.storage.transfers import cut, fitting_part_bytes
from statekeep.errors import (
    BackendClosedError,
    BlobExistsError,
    ConfigError,
    RetriableError,
    VersionDamagedError,
)
from statekeep.testing.blob_store_tests import METADATA, BlobStoreManagerTests, ignore_bytes
from statekeep.testing.executor import SerialExecutor

CONTENT = bytes(range(95))
TAGS = {"statekeep": "uncommitted"}


class TestObjectManagerContract(BlobStoreManagerTests):
    @pytest.fixture(autouse=True)
    def store(self) -> None:
        self.client = ObjectsInMemory()

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        rig = ObjectStoreRig(self.client, executor, part_bytes=1 << 20, buffer_bytes=4 << 20)
        return rig.manager()

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        return self.client.objects[blob_id]


@pytest.fixture
def client() -> ObjectsInMemory:
    return ObjectsInMemory()


@pytest.fixture
def rig(client: ObjectsInMemory) -> ObjectStoreRig:
    return ObjectStoreRig(client, SerialExecutor())


@pytest_asyncio.fixture
async def manager(rig: ObjectStoreRig) -> AsyncIterator[StorageManager]:
    manager = rig.manager()
    await manager.init()
    yield manager
    await manager.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.asyncio
async def test_a_file_above_the_part_size_goes_up_in_parts(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    await manager.put("a/1", source, METADATA)
    assert client.objects == {"a/1": CONTENT}
    assert sorted(r for r in client.requests if r.startswith("part")) == [
        f"part {number}" for number in range(10)
    ]


@pytest.mark.asyncio
async def test_a_small_blob_comes_down_with_one_request(
    manager: StorageManager, client: ObjectsInMemory, tmp_path: Path
) -> None:
    await manager.put("a/1", b"small", METADATA)
    await manager.download("a/1", tmp_path / "target", ignore_bytes, max_bytes=MAX_FILE_BYTES)
    assert [r for r in client.requests if r.startswith("read")] == ["read 0"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.asyncio
async def test_a_failed_part_is_sent_again_alone(
    manager: StorageManager, client: ObjectsInMemory, source: Path, moment: str
) -> None:
    setattr(client, moment, Failing("part 3", RetriableError("lost"), times=2))
    await manager.put("a/1", source, METADATA)
    assert client.objects["a/1"] == CONTENT
    assert client.requests.count("part 3") == 3
    assert sum(r.startswith("part") for r in client.requests) == 12


@pytest.mark.asyncio
async def test_a_failed_range_is_fetched_again_alone(
    manager: StorageManager, client: ObjectsInMemory, source: Path, tmp_path: Path
) -> None:
    await manager.put("a/1", source, METADATA)
    client.before = Failing("read 30", RetriableError("lost"), times=2)
    sizes: list[int] = []
    digest = await manager.download(
        "a/1", tmp_path / "target", sizes.append, max_bytes=MAX_FILE_BYTES
    )
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert (tmp_path / "target").read_bytes() == CONTENT
    assert sum(sizes) == len(CONTENT)
    assert client.requests.count("read 30") == 3
    assert client.requests.count("read 40") == 1


@pytest.mark.asyncio
async def test_an_upload_that_fails_for_good_leaves_neither_blob_nor_parts(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    client.before = Failing("part 3", ConfigError("no"), times=1)
    with pytest.raises(ConfigError):
        await manager.put("a/1", source, METADATA)
    assert (client.objects, client.uploads) == ({}, {})


@pytest.mark.asyncio
async def test_a_cancelled_upload_leaves_neither_blob_nor_parts(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    task = asyncio.create_task(manager.put("a/1", source, METADATA))
    while "part 1" not in client.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.objects, client.uploads) == ({}, {})


@pytest.mark.asyncio
@pytest.mark.parametrize("nth", [2, 3, 7], ids=["begin", "first part", "other part"])
async def test_a_cancel_drops_an_upload_only_after_its_requests_under_way(
    client: ObjectsInMemory, source: Path, nth: int
) -> None:
    executor = LaggingExecutor()
    manager = ObjectStoreRig(client, executor).manager()
    await manager.init()
    executor.lagging = executor.call_count + nth  # the first one looks at the file
    task = asyncio.create_task(manager.put("a/1", source, METADATA))
    await executor.is_lagging.wait()
    task.cancel()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    await executor.catch_up()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (client.objects, client.uploads) == ({}, {})
    assert "begin" in client.requests
    await manager.close()


@pytest.mark.asyncio
async def test_what_killed_uploads_have_left_is_removed_once_no_upload_runs(
    manager: StorageManager, client: ObjectsInMemory
) -> None:
    stamps = ObjectStamps({})
    for name in ("a/1-1/x", "a/1-2/x", "b/1-1/x"):
        client.put_part(name, client.begin_parts(name, stamps), 0, b"half")
    await manager.remove_unfinished("a/", lambda name: "/1-1/" in name)
    assert [client.names[upload] for upload in client.uploads] == ["a/1-2/x", "b/1-1/x"]
    await manager.remove_unfinished("", lambda name: True)
    assert client.uploads == {}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "requests"),
    [
        (None, ["delete 3", "delete 2"]),
        (RetriableError("busy"), ["delete 3", "delete 3", "delete 2"]),
        (ConfigError("not implemented"), ["delete 3", *["delete"] * 3, "delete 2"]),
    ],
)
async def test_a_request_deletes_as_many_as_it_takes_where_there_is_such_a_request(
    manager: StorageManager,
    client: ObjectsInMemory,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception | None,
    requests: list[str],
) -> None:
    monkeypatch.setattr(client, "max_deletes", 3)
    names = [await manager.put(f"a/{number}", b"1", METADATA) for number in range(6)]
    if error is not None:
        client.before = Failing("delete 3", error)
    client.requests.clear()
    await manager.delete_all(names[:5])
    assert client.requests == requests
    assert list(client.objects) == names[5:]


@pytest.mark.asyncio
async def test_a_store_that_lists_no_unfinished_uploads_is_reported_once(
    manager: StorageManager, client: ObjectsInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    client.before = Failing("unfinished", ConfigError("access denied"), times=2)
    for _ in range(2):
        await manager.remove_unfinished("a/", lambda name: True)
    [record] = caplog.records
    assert "s3:ListBucketMultipartUploads" in record.getMessage()
    assert record.levelname == "WARNING"


@pytest.mark.asyncio
async def test_an_end_of_an_upload_that_landed_unheard_counts(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    client.after = Failing("complete", RetriableError("answer lost"))
    await manager.put("a/1", source, METADATA)
    assert client.objects == {"a/1": CONTENT}


@pytest.mark.asyncio
async def test_an_upload_that_is_gone_without_a_blob_does_not_count(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    def expire(request: str) -> None:
        if request == "complete":
            client.uploads.clear()

    client.before = expire
    with pytest.raises(FileNotFoundError):
        await manager.put("a/1", source, METADATA)


@pytest.mark.asyncio
async def test_a_create_in_parts_whose_answer_was_lost_is_reported_as_taken(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    client.after = Failing("complete", RetriableError("answer lost"))
    with pytest.raises(BlobExistsError):
        await manager.put("a/1", source, METADATA, if_absent=True)


@pytest.mark.asyncio
async def test_a_file_that_shrinks_while_it_is_sent_is_no_backup(
    manager: StorageManager, client: ObjectsInMemory, source: Path
) -> None:
    def shrink(request: str) -> None:
        if request == "begin":
            source.write_bytes(CONTENT[:50])

    client.before = shrink
    with pytest.raises(VersionDamagedError):
        await manager.put("a/1", source, METADATA)
    assert client.objects == {}


@pytest.mark.asyncio
async def test_a_range_that_comes_short_is_fetched_again(
    manager: StorageManager,
    client: ObjectsInMemory,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await manager.put("a/1", source, METADATA)
    whole, cut_short = client.read, iter([True])

    def read(name: str, start: int, length: int) -> ObjectRange:
        found = whole(name, start, length)
        if start == 30 and next(cut_short, False):
            return ObjectRange(found.data[:-1], found.object_bytes)
        return found

    monkeypatch.setattr(client, "read", read)
    digest = await manager.download(
        "a/1", tmp_path / "target", ignore_bytes, max_bytes=MAX_FILE_BYTES
    )
    assert digest == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.asyncio
async def test_the_last_manager_closes_the_client_that_all_share(
    client: ObjectsInMemory, rig: ObjectStoreRig
) -> None:
    managers = [rig.manager() for _ in range(3)]
    for manager in managers:
        await manager.init()
    for manager in managers[:2]:
        await manager.close()
        await manager.close()
    assert client.closed_count == 0
    await managers[2].close()
    assert client.closed_count == 1
    with pytest.raises(BackendClosedError):
        await managers[2].get("a/1")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(100, 8 << 20, id="small"),
        pytest.param(10_000 * (8 << 20), 8 << 20, id="just fits"),
        pytest.param(10_000 * (8 << 20) + 1, 9 << 20, id="one byte more"),
        pytest.param(5 << 40, 525 << 20, id="5 TiB"),
    ],
)
def test_parts_grow_with_a_blob_that_would_need_too_many(size: int, expected: int) -> None:
    part_bytes = fitting_part_bytes(size, 8 << 20, PartLimits(5 << 20, 10_000))
    assert part_bytes == expected
    assert -(-size // part_bytes) <= 10_000


def test_parts_cover_a_blob_without_gap_or_overlap() -> None:
    parts = cut(95, 10, start=7)
    assert [part.number for part in parts] == list(range(9))
    assert parts[0].start == 7
    assert all(a.start + a.size == b.start for a, b in pairwise(parts))
    assert parts[-1].start + parts[-1].size == 95


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [5, 95], ids=["whole", "in parts"])
async def test_a_temporary_blob_is_tagged_until_it_may_stay(
    client: ObjectsInMemory, size: int
) -> None:
    rig = ObjectStoreRig(client, SerialExecutor(), uncommitted_tags=TAGS)
    blobs = rig.manager()
    await blobs.init()
    await blobs.put("record", b"1", METADATA)
    await blobs.put("state", CONTENT[:size], replace(METADATA, is_temporary=True))
    assert client.tags == {"record": {}, "state": TAGS}
    await blobs.remove_ttl("state")
    assert client.tags["state"] == {}
    await blobs.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_file", [False, True], ids=["bytes", "file"])
@pytest.mark.parametrize("size", [5, 95], ids=["whole", "in parts"])
async def test_a_temporary_blob_that_landed_unheard_may_be_put_again(
    client: ObjectsInMemory, tmp_path: Path, size: int, *, is_file: bool
) -> None:
    rig = ObjectStoreRig(client, SerialExecutor(), uncommitted_tags=TAGS)
    blobs = rig.manager()
    await blobs.init()
    request = "complete" if is_file and size > rig.part_bytes else "put"
    client.after = Failing(request, RetriableError("no answer"))
    (tmp_path / "state").write_bytes(CONTENT[:size])
    content = tmp_path / "state" if is_file else CONTENT[:size]
    await blobs.put("state", content, replace(METADATA, is_temporary=True))
    assert client.requests.count(request) == 2
    assert client.objects == {"state": CONTENT[:size]}
    assert client.uploads == {}
    with pytest.raises(BlobExistsError):
        await blobs.put("state", content, replace(METADATA, is_temporary=True), if_absent=True)
    await blobs.close()


@pytest.mark.asyncio
async def test_a_put_that_lands_late_does_not_tag_a_blob_again_that_may_stay() -> None:
    client = LatePut()
    blobs = ObjectStoreRig(client, SerialExecutor(), uncommitted_tags=TAGS).manager()
    await blobs.init()
    await blobs.put("state", b"1", replace(METADATA, is_temporary=True))
    await blobs.remove_ttl("state")
    assert client.late is not None
    with pytest.raises(BlobExistsError):
        client.late()
    assert client.tags == {"state": {}}
    await blobs.close()


class LatePut(ObjectsInMemory):
    """Its first put gets no answer, and lands when ``late`` is called."""

    late: Callable[[], None] | None = None

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        if self.late is None:
            self.late = partial(super().put, name, data, stamps, if_absent=if_absent)
            raise RetriableError("no answer")
        super().put(name, data, stamps, if_absent=if_absent)


@pytest.mark.asyncio
async def test_without_a_tag_nothing_is_asked_for(
    client: ObjectsInMemory, rig: ObjectStoreRig
) -> None:
    blobs = rig.manager()
    await blobs.init()
    await blobs.put("state", b"1", replace(METADATA, is_temporary=True))
    await blobs.remove_ttl("state")
    assert "remove tags" not in client.requests
    await blobs.close()

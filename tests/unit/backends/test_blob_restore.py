"""Blob restore: no file is fetched that is here, and no file is used before its checksum is compared."""

import asyncio
import dataclasses
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import pytest
import pytest_asyncio
from encoded_kit import full_index
from typing_extensions import override

from statekeep.backends.blob.index import (
    SCHEMA_VERSION,
    DirIndex,
    FileBlob,
    FileIndex,
    SnapshotIndex,
    encode_index,
)
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, Marker
from statekeep.errors import (
    BlobNotFoundError,
    CheckpointCorruptError,
    RetriableError,
    UnknownFormatError,
)
from statekeep.testing.backend_harness import STORE, BackendHarness, Commit
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, faulty_blob_factory

FIRST = {"CURRENT": b"1", "a.sst": b"a" * 100, "sub/deep/b.sst": b"b" * 100, "empty": b""}
P = ParamSpec("P")
T = TypeVar("T")
METADATA = BlobMetadata(None, None, "x")
UNPACKED = {"pack.max.file.bytes": "0"}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    forget_root(str(tmp_path))


@pytest.fixture
def blobs(root: str) -> MemoryBlobStoreManager:
    return MemoryBlobStoreManager(root, SerialExecutor())


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest_asyncio.fixture
async def task(root: str, plan: FaultPlan, tmp_path: Path) -> AsyncIterator[BackendHarness]:
    factory = faulty_blob_factory(root, plan, UNPACKED)
    harness = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await harness.start()
    yield harness
    await harness.close()


async def index_of(blobs: MemoryBlobStoreManager, commit: Commit) -> SnapshotIndex:
    return full_index(await blobs.get(commit.markers[STORE]), where="test")


async def with_index(
    blobs: MemoryBlobStoreManager, commit: Commit, index: SnapshotIndex
) -> CheckpointV2:
    """Store a hand-made index and return a checkpoint that names it."""
    data = encode_index(index)
    name = f"kit-job/x/1-1/aa-snapshot-index-{hashlib.sha256(data).hexdigest()}.json"
    marker = Marker(await blobs.put(name, data, METADATA))
    return CheckpointV2(commit.checkpoint.checkpoint_id, {}, {BackendName("blob"): {STORE: marker}})


@pytest.mark.asyncio
async def test_an_identical_local_version_is_linked_and_no_byte_is_fetched(
    task: BackendHarness, plan: FaultPlan
) -> None:
    version = task.seal(FIRST)
    commit = await task.commit(version)
    plan.calls.clear()
    restored = await task.restore(commit.checkpoint, reusable=[version])
    assert restored.content == {STORE: FIRST}
    assert (restored.total_bytes, restored.fetched_bytes) == (0, 0)
    assert not plan.called("download")
    here, there = (
        (directory / "a.sst").stat().st_ino
        for directory in (version.store_directory(STORE), restored.directories[STORE])
    )
    assert here == there


@pytest.mark.asyncio
async def test_only_what_differs_from_a_local_version_is_fetched(
    task: BackendHarness, plan: FaultPlan
) -> None:
    older = task.seal(FIRST)
    changed = {**FIRST, "CURRENT": b"2", "new.sst": b"n" * 50}
    commit = await task.commit(task.seal(changed))
    plan.calls.clear()
    restored = await task.restore(commit.checkpoint, reusable=[older])
    assert restored.content == {STORE: changed}
    assert restored.total_bytes == restored.fetched_bytes == 51
    assert len(plan.called("download")) == 2


@pytest.mark.asyncio
async def test_a_local_file_that_was_damaged_after_the_seal_is_not_linked(
    task: BackendHarness,
) -> None:
    version = task.seal(FIRST)
    commit = await task.commit(version)
    (version.store_directory(STORE) / "sub/deep/b.sst").write_bytes(b"B" * 100)
    restored = await task.restore(commit.checkpoint, reusable=[version])
    assert restored.content == {STORE: FIRST}
    assert restored.fetched_bytes == 100


@pytest.mark.asyncio
async def test_a_local_file_with_the_same_size_and_crc32_but_other_bytes_is_not_linked(
    task: BackendHarness,
) -> None:
    commit = await task.commit(task.seal({"f": colliding(b"one")}))
    impostor = task.seal({"f": colliding(b"two")})
    assert impostor.store_files(STORE)[0].crc32 == zlib.crc32(colliding(b"one"))
    restored = await task.restore(commit.checkpoint, reusable=[impostor])
    assert restored.content == {STORE: {"f": colliding(b"one")}}


def colliding(head: bytes) -> bytes:
    """Return bytes that begin with ``head`` and have the CRC32 of every other such text."""
    table = [zlib.crc32(bytes([b])) for b in range(256)]
    # CRC32 is affine: four bytes after the head can bring it to any value.
    wanted, have = 0x12345678 ^ 0xFFFFFFFF, zlib.crc32(head) ^ 0xFFFFFFFF
    plain = [(t ^ table[0]) for t in table]
    by_top = {value >> 24: (byte, value) for byte, value in enumerate(plain)}
    indexes: list[int] = []
    rest = wanted
    for _ in range(4):
        byte, value = by_top[rest >> 24]
        indexes.append(byte)
        rest = ((rest ^ value) << 8) & 0xFFFFFFFF
    tail = bytearray()
    for index in reversed(indexes):
        tail.append((have ^ index) & 0xFF)
        have = plain[index] ^ (have >> 8)
    return head + bytes(tail)


@pytest.mark.asyncio
async def test_a_local_version_that_was_swept_meanwhile_is_fetched_instead(
    task: BackendHarness,
) -> None:
    version = task.seal(FIRST)
    commit = await task.commit(version)
    for path in version.store_directory(STORE).rglob("*"):
        if path.is_file():
            path.unlink()
    restored = await task.restore(commit.checkpoint, reusable=[version])
    assert restored.content == {STORE: FIRST}


@pytest.mark.asyncio
async def test_blobs_of_one_file_are_put_together_in_order_of_offset(
    task: BackendHarness, blobs: MemoryBlobStoreManager
) -> None:
    commit = await task.commit(task.seal({"letters": bytes(range(97, 123))}))
    for number in range(26):
        await blobs.put(f"part-{number}", bytes([97 + number]), METADATA)
    parts = tuple(FileBlob(blob_id=f"part-{n}", offset=n) for n in reversed(range(26)))
    checkpoint = await with_index(blobs, commit, await split(blobs, commit, parts))
    restored = await task.restore(checkpoint)
    assert restored.content == {STORE: {"letters": b"abcdefghijklmnopqrstuvwxyz"}}
    assert restored.fetched_bytes == 26
    assert [p.name for p in restored.directories[STORE].parent.iterdir()] == ["db"]


@pytest.mark.asyncio
@pytest.mark.parametrize("offsets", [(0, 2), (0, 0), (1, 2)], ids=["gap", "overlap", "late"])
async def test_blobs_that_do_not_make_up_the_file_are_refused(
    task: BackendHarness, blobs: MemoryBlobStoreManager, offsets: tuple[int, int]
) -> None:
    commit = await task.commit(task.seal({"f": b"ab"}))
    await blobs.put("part-a", b"a", METADATA)
    await blobs.put("part-b", b"b", METADATA)
    parts = (
        FileBlob(blob_id="part-a", offset=offsets[0]),
        FileBlob(blob_id="part-b", offset=offsets[1]),
    )
    checkpoint = await with_index(blobs, commit, await split(blobs, commit, parts))
    with pytest.raises(CheckpointCorruptError):
        await task.restore(checkpoint)


async def split(
    blobs: MemoryBlobStoreManager, commit: Commit, parts: tuple[FileBlob, ...]
) -> SnapshotIndex:
    index = await index_of(blobs, commit)
    file = msgspec.structs.replace(index.dir_index.files_present[0], blobs=parts)
    return replaced(index, (file,))


def replaced(index: SnapshotIndex, files: tuple[FileIndex, ...]) -> SnapshotIndex:
    root: DirIndex = msgspec.structs.replace(index.dir_index, files_present=files)
    return msgspec.structs.replace(index, dir_index=root)


@pytest.mark.asyncio
@pytest.mark.parametrize("stored", [b"abc", b"abd"], ids=["whole", "damaged"])
async def test_a_file_without_sha_256_is_proven_by_its_crc32(
    task: BackendHarness, blobs: MemoryBlobStoreManager, stored: bytes
) -> None:
    commit = await task.commit(task.seal({"f": b"abc"}))
    index = await index_of(blobs, commit)
    file = msgspec.structs.replace(index.dir_index.files_present[0], sha256=None)
    checkpoint = await with_index(blobs, commit, replaced(index, (file,)))
    await blobs.put(file.blobs[0].blob_id, stored, METADATA)
    if stored != b"abc":
        with pytest.raises(CheckpointCorruptError):
            await task.restore(checkpoint)
    else:
        assert (await task.restore(checkpoint)).content == {STORE: {"f": b"abc"}}


@pytest.mark.asyncio
async def test_an_index_under_a_name_with_another_digest_is_refused(
    task: BackendHarness, blobs: MemoryBlobStoreManager
) -> None:
    commit = await task.commit(task.seal(FIRST))
    marker = commit.markers[STORE]
    await blobs.put(marker, (await blobs.get(marker)).replace(b'"1"', b'"2"'), METADATA)
    with pytest.raises(CheckpointCorruptError, match="differs from its digest"):
        await task.restore(commit.checkpoint)


@pytest.mark.asyncio
async def test_an_index_of_another_store_or_task_is_refused(
    task: BackendHarness, blobs: MemoryBlobStoreManager
) -> None:
    commit = await task.commit(task.seal(FIRST))
    index = await index_of(blobs, commit)
    for change in ({"store_name": "s2"}, {"task_name": "Partition 9"}):
        metadata = msgspec.structs.replace(index.snapshot_metadata, **change)
        other = msgspec.structs.replace(index, snapshot_metadata=metadata)
        with pytest.raises(CheckpointCorruptError, match="another store"):
            await task.restore(await with_index(blobs, commit, other))


@pytest.mark.asyncio
async def test_an_index_of_a_newer_version_is_no_damage_and_the_next_upload_is_full(
    task: BackendHarness, blobs: MemoryBlobStoreManager
) -> None:
    commit = await task.commit(task.seal(FIRST))
    index = await index_of(blobs, commit)
    newer = msgspec.structs.replace(index, schema_version=SCHEMA_VERSION + 1)
    checkpoint = await with_index(blobs, commit, newer)
    with pytest.raises(UnknownFormatError):
        await task.restore(checkpoint)
    marker = checkpoint.markers_of(BackendName("blob"))[STORE]
    task.commits[-1] = dataclasses.replace(commit, checkpoint=checkpoint, markers={STORE: marker})
    full = await task.commit(task.seal(FIRST))
    assert (await index_of(blobs, full)).prev_snapshot_index_blob_id is None
    assert (await task.restore(full.checkpoint)).content == {STORE: FIRST}


@pytest.mark.asyncio
async def test_a_download_that_arrives_damaged_once_is_fetched_again(
    task: BackendHarness, blobs: MemoryBlobStoreManager, plan: FaultPlan
) -> None:
    commit = await task.commit(task.seal({"f": b"abc"}))
    blob_id = (await index_of(blobs, commit)).dir_index.files_present[0].blobs[0].blob_id
    await blobs.put(blob_id, b"abd", METADATA)

    def mend() -> None:
        blobs._blobs[blob_id] = b"abc"

    fault = Fault("download", skip=1, times=1, make_error=lambda: _after(mend))
    plan.add(fault)
    restored = await task.restore(commit.checkpoint)
    assert restored.content == {STORE: {"f": b"abc"}}
    assert restored.fetched_bytes == 3


def _after(action: Callable[[], None]) -> Exception:
    action()
    return RetriableError("the service was mended meanwhile")


@pytest.mark.asyncio
async def test_every_operation_of_a_restore_is_retried(
    task: BackendHarness, plan: FaultPlan
) -> None:
    commit = await task.commit(task.seal(FIRST))
    plan.add(Fault("get", times=4))
    plan.add(Fault("download", times=4))
    assert (await task.restore(commit.checkpoint)).content == {STORE: FIRST}


@pytest.mark.asyncio
async def test_a_lost_blob_fails_at_once_and_names_it(
    task: BackendHarness, blobs: MemoryBlobStoreManager, plan: FaultPlan
) -> None:
    commit = await task.commit(task.seal(FIRST))
    blob_id = (await index_of(blobs, commit)).dir_index.files_present[0].blobs[0].blob_id
    await blobs.delete(blob_id)
    plan.calls.clear()
    with pytest.raises(BlobNotFoundError) as caught:
        await task.restore(commit.checkpoint)
    assert caught.value.blob_id == blob_id
    assert plan.called("download").count(blob_id) == 1


@pytest.mark.asyncio
async def test_a_restore_writes_through_no_link_into_a_local_version(
    task: BackendHarness,
) -> None:
    version = task.seal(FIRST)
    first = await task.commit(version)
    second = await task.commit(task.seal({**FIRST, "a.sst": b"A" * 100}))
    await task.restore(second.checkpoint, reusable=[version])
    version.verify()
    assert (await task.restore(first.checkpoint, reusable=[version])).total_bytes == 0


@pytest.mark.asyncio
async def test_one_executor_thread_is_enough_for_many_files(tmp_path: Path, root: str) -> None:
    executor = OneCallAtATime()
    harness = BackendHarness(
        faulty_blob_factory(root, FaultPlan(), {"max.in.flight": "2"}),
        executor,
        FakeClock(),
        tmp_path,
    )
    await harness.start()
    content = {f"{n}.sst": b"%d" % n for n in range(50)}
    commit = await harness.commit(harness.seal(content))
    assert (await harness.restore(commit.checkpoint)).content == {STORE: content}
    assert executor.most == 1
    await harness.close()


class OneCallAtATime(SerialExecutor):
    """An executor with one thread's worth of places."""

    def __init__(self) -> None:
        super().__init__()
        self._place = asyncio.Lock()
        self.now = self.most = 0

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._place:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                return await super().run(call, *args, **kwargs)
            finally:
                self.now -= 1


def test_the_colliding_texts_do_collide() -> None:
    one, two = colliding(b"one"), colliding(b"two")
    assert one != two
    assert zlib.crc32(one) == zlib.crc32(two)
    assert len(one) == len(two)

"""Small files share a blob: few requests, exact ranges, and nothing left when none is needed."""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath

import pytest
import pytest_asyncio
from encoded_kit import full_index
from hypothesis import given, settings
from hypothesis import strategies as st

from statekeep.backends.blob.content_writer import _PACK_BYTES, _packs
from statekeep.backends.blob.diff import LocalFile
from statekeep.backends.blob.index import SnapshotIndex
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.testing.backend_harness import STORE, BackendHarness, Commit
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, faulty_blob_factory
from statekeep.testing.sealed_files import StoreContent

MANY = {f"{number:06}.sst": b"%d" % number * 50 for number in range(300)}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    forget_root(str(tmp_path))


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest_asyncio.fixture
async def task(root: str, plan: FaultPlan, tmp_path: Path) -> AsyncIterator[BackendHarness]:
    harness = BackendHarness(
        faulty_blob_factory(root, plan), SerialExecutor(), FakeClock(), tmp_path
    )
    await harness.start()
    plan.calls.clear()
    yield harness
    await harness.close()


def blobs_of(root: str) -> dict[str, bytes]:
    return MemoryBlobStoreManager(root, SerialExecutor())._blobs


def index_of(root: str, commit: Commit) -> SnapshotIndex:
    return full_index(blobs_of(root)[commit.markers[STORE]], where="test")


@pytest.mark.asyncio
async def test_a_commit_of_many_small_files_is_one_blob_and_its_index(
    task: BackendHarness, plan: FaultPlan
) -> None:
    commit = await task.commit(task.seal(MANY))
    pack, index = plan.called("put")
    assert pack.endswith("-small-files.pack")
    assert "snapshot-index" in index
    plan.calls.clear()
    assert (await task.restore(commit.checkpoint)).content == {STORE: MANY}
    assert plan.called("get_range") == [pack]
    assert not plan.called("download")


@pytest.mark.asyncio
async def test_files_above_the_bound_have_blobs_of_their_own(
    task: BackendHarness, plan: FaultPlan
) -> None:
    content = {**MANY, "large.sst": bytes(256 << 10), "larger.sst": bytes((256 << 10) + 1)}
    commit = await task.commit(task.seal(content))
    names = [name.rpartition("-")[2] for name in plan.called("put")]
    assert "larger.sst" in names
    assert "large.sst" not in names
    assert (await task.restore(commit.checkpoint)).content == {STORE: content}


@pytest.mark.asyncio
async def test_a_pack_is_bounded(task: BackendHarness, root: str) -> None:
    content = {f"{number}.sst": bytes([number]) * (200 << 10) for number in range(50)}
    commit = await task.commit(task.seal(content))
    packs = [len(blob) for name, blob in blobs_of(root).items() if name.endswith(".pack")]
    assert len(packs) == 3
    assert max(packs) <= 4 << 20
    assert (await task.restore(commit.checkpoint)).content == {STORE: content}


@pytest.mark.asyncio
async def test_a_pack_stays_until_no_retained_commit_needs_any_of_it(
    task: BackendHarness, root: str
) -> None:
    first = await task.commit(task.seal({"a": b"a", "b": b"b"}))
    second = await task.commit(task.seal({"b": b"b", "c": b"c"}))
    (pack,) = index_of(root, first).blob_ids()
    task.release(first)
    await task.clean_up()
    assert pack in blobs_of(root)
    assert (await task.restore(second.checkpoint)).content == {STORE: {"b": b"b", "c": b"c"}}
    await task.commit(task.seal({"c": b"c"}))
    task.release(second)
    await task.clean_up()
    assert pack not in blobs_of(root)


@pytest.mark.asyncio
async def test_only_the_stretch_that_is_missing_here_is_fetched(
    task: BackendHarness, plan: FaultPlan, root: str
) -> None:
    older = task.seal({"a": b"a" * 1000, "b": b"b" * 1000})
    commit = await task.commit(task.seal({"a": b"a" * 1000, "b": b"new", "c": b"c" * 1000}))
    plan.calls.clear()
    restored = await task.restore(commit.checkpoint, reusable=[older])
    assert restored.content == {STORE: {"a": b"a" * 1000, "b": b"new", "c": b"c" * 1000}}
    assert restored.total_bytes == restored.fetched_bytes == 1003


@pytest.mark.asyncio
async def test_a_damaged_pack_is_fetched_once_more_and_then_refused(
    task: BackendHarness, plan: FaultPlan, root: str
) -> None:
    commit = await task.commit(task.seal({"a": b"a", "b": b"b"}))
    (pack,) = index_of(root, commit).blob_ids()
    blobs_of(root)[pack] = b"aX"
    plan.calls.clear()
    with pytest.raises(CheckpointCorruptError, match="stored bytes differ from their digest"):
        await task.restore(commit.checkpoint)
    assert plan.called("get_range") == [pack, pack]


@pytest.mark.asyncio
async def test_a_file_that_is_not_what_was_sealed_is_not_packed(
    task: BackendHarness, plan: FaultPlan
) -> None:
    version = task.seal({"a": b"a", "b": b"b"})
    (version.store_directory(STORE) / "b").write_bytes(b"B")
    with pytest.raises(VersionDamagedError):
        await task.upload(task.open_attempt(version))
    assert not plan.called("put")


@pytest.mark.asyncio
async def test_a_pack_whose_put_failed_leaves_no_index(
    task: BackendHarness, plan: FaultPlan
) -> None:
    plan.add(Fault("put", "*.pack", times=-1, make_error=lambda: PermissionError("denied")))
    with pytest.raises(PermissionError):
        await task.upload(task.open_attempt(task.seal(MANY)))
    assert not [name for name in plan.called("put") if "snapshot-index" in name]


@pytest.mark.parametrize("max_file_bytes", [1, _PACK_BYTES, 3 * _PACK_BYTES])
def test_no_pack_is_empty_whatever_the_sizes_are(max_file_bytes: int) -> None:
    sizes = [2 * _PACK_BYTES, 1, 0, _PACK_BYTES + 1, 1]
    files = [LocalFile(PurePosixPath(f"{n}"), size, 0) for n, size in enumerate(sizes)]
    packs = list(_packs(enumerate(files), max_file_bytes))
    assert all(packs)
    assert sorted(number for pack in packs for number, _ in pack) == list(range(len(sizes)))


CONTENTS = st.dictionaries(
    st.sampled_from([f"{directory}{letter}" for directory in ("", "sub/") for letter in "abcdef"]),
    st.binary(max_size=30),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(contents=st.lists(CONTENTS, min_size=1, max_size=6), bound=st.sampled_from([0, 10, 20, 100]))
def test_any_history_of_packed_commits_restores_and_leaves_exactly_what_is_reached(
    contents: list[StoreContent], bound: int
) -> None:
    asyncio.run(play(contents, bound))


async def play(contents: list[StoreContent], bound: int) -> None:
    root = uuid.uuid4().hex
    factory = faulty_blob_factory(root, FaultPlan(), {"pack.max.file.bytes": str(bound)})
    with tempfile.TemporaryDirectory() as directory:
        task = BackendHarness(factory, SerialExecutor(), FakeClock(), Path(directory))
        await task.start()
        kept: list[tuple[Commit, StoreContent]] = []
        for content in contents:
            kept.append((await task.commit(task.seal(content)), content))
            if len(kept) > 2:
                task.release(kept.pop(0)[0])
            await task.clean_up()
            reached = {str(marker) for commit, _ in kept for marker in commit.markers.values()}
            for commit, _ in kept:
                reached |= index_of(root, commit).blob_ids()
            assert set(blobs_of(root)) == reached
        for commit, content in kept:
            assert (await task.restore(commit.checkpoint)).content == {STORE: content}
        await task.close()
    forget_root(root)

"""Blob backup: what is uploaded, in which order, on which base, and what a failure leaves."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from encoded_kit import full_index

from statekeep.backends.base import TaskIdentity
from statekeep.backends.blob.index import SnapshotIndex
from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import Marker
from statekeep.errors import CheckpointCorruptError, RetriableError
from statekeep.testing.backend_harness import STORE, BackendHarness, Commit
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.faults import Fault, FaultPlan, faulty_blob_factory

FIRST = {"CURRENT": b"1", "a.sst": b"a" * 100, "sub/b.sst": b"b" * 100, "empty": b""}
SECOND = {**FIRST, "CURRENT": b"2", "c.sst": b"c" * 100}
UNPACKED = {"pack.max.file.bytes": "0"}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path)
    forget_root(str(tmp_path))


@pytest.fixture
def plan() -> FaultPlan:
    return FaultPlan()


@pytest_asyncio.fixture
async def task(root: str, plan: FaultPlan, tmp_path: Path) -> AsyncIterator[BackendHarness]:
    factory = faulty_blob_factory(root, plan, UNPACKED)
    harness = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await harness.start()
    plan.calls.clear()
    yield harness
    plan.clear()
    await harness.close()


async def index_of(root: str, commit: Commit) -> SnapshotIndex:
    blobs = MemoryBlobStoreManager(root, SerialExecutor())
    return full_index(await blobs.get(commit.markers[STORE]), where="test")


def put_files(plan: FaultPlan) -> list[str]:
    """Return the file names of the blobs that were put, without their uid and number."""
    return sorted(name.rpartition("/")[2].split("-", 2)[2] for name in plan.called("put"))


@pytest.mark.asyncio
async def test_the_first_upload_is_full_and_the_next_one_only_what_is_new(
    task: BackendHarness, plan: FaultPlan, root: str
) -> None:
    first = await task.commit(task.seal(FIRST))
    assert put_files(plan)[:3] == ["CURRENT", "a.sst", "b.sst"]
    plan.calls.clear()
    second = await task.commit(task.seal(SECOND))
    assert put_files(plan)[:2] == ["CURRENT", "c.sst"]
    assert len(plan.called("put")) == 3
    index = await index_of(root, second)
    assert index.prev_snapshot_index_blob_id == first.markers[STORE]
    assert [file.file_name for file in index.dir_index.removed_files()] == ["CURRENT"]


@pytest.mark.asyncio
async def test_an_unchanged_version_uploads_its_index_alone(
    task: BackendHarness, plan: FaultPlan
) -> None:
    version = task.seal(FIRST)
    await task.commit(version)
    plan.calls.clear()
    await task.commit(version)
    assert len(plan.called("put")) == 1


@pytest.mark.asyncio
async def test_the_index_is_put_after_every_file_and_its_ttl_lifted_last(
    task: BackendHarness, plan: FaultPlan
) -> None:
    await task.commit(task.seal(FIRST))
    operations = [operation for operation, _ in plan.calls]
    assert operations == ["put"] * 4 + ["remove_ttl"] * 4
    assert "snapshot-index" in plan.called("put")[-1]
    assert sorted(plan.called("remove_ttl")) == sorted(plan.called("put"))


@pytest.mark.asyncio
async def test_a_failed_put_of_any_file_leaves_no_index(
    task: BackendHarness, plan: FaultPlan
) -> None:
    for skip in range(3):
        plan.calls.clear()
        plan.clear()
        plan.add(Fault("put", skip=skip, times=-1, make_error=lambda: PermissionError("denied")))
        with pytest.raises(PermissionError):
            await task.upload(task.open_attempt(task.seal(FIRST)))
        assert not [name for name in plan.called("put") if "snapshot-index" in name]


@pytest.mark.asyncio
async def test_a_failed_upload_does_not_stand_in_the_way_of_the_next(
    task: BackendHarness, plan: FaultPlan, root: str
) -> None:
    first = await task.commit(task.seal(FIRST))
    failed = task.open_attempt(task.seal({**FIRST, "lost.sst": b"l"}))
    plan.add(Fault("put", times=1, make_error=lambda: PermissionError("denied")))
    with pytest.raises(PermissionError):
        await task.upload(failed)
    task.abort(failed)
    second = await task.commit(task.seal(SECOND))
    assert (await index_of(root, second)).prev_snapshot_index_blob_id == first.markers[STORE]
    assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}


@pytest.mark.asyncio
async def test_an_upload_that_was_never_committed_is_no_base(
    task: BackendHarness, root: str
) -> None:
    first = await task.commit(task.seal(FIRST))
    uploaded = task.open_attempt(task.seal(SECOND))
    await task.upload(uploaded)
    task.abort(uploaded)
    second = await task.commit(task.seal(SECOND))
    index = await index_of(root, second)
    assert index.prev_snapshot_index_blob_id == first.markers[STORE]
    attempt = f"/{uploaded.epoch}-{uploaded.attempt}/"
    assert not [blob_id for blob_id in index.blob_ids() if attempt in blob_id]


@pytest.mark.asyncio
async def test_reading_the_base_is_retried(task: BackendHarness, plan: FaultPlan) -> None:
    await task.commit(task.seal(FIRST))
    await task.start()
    plan.add(Fault("get", "*snapshot-index*", times=4))
    await task.commit(task.seal(SECOND))
    assert len(plan.called("get")) == 5


@pytest.mark.asyncio
async def test_a_service_that_stays_away_fails_the_upload_as_retriable(
    task: BackendHarness, plan: FaultPlan
) -> None:
    plan.add(Fault("put", times=-1))
    with pytest.raises(RetriableError) as caught:
        await task.upload(task.open_attempt(task.seal(FIRST)))
    assert any("gave up" in note for note in caught.value.__notes__)


@pytest.mark.asyncio
async def test_a_damaged_base_makes_the_upload_full_and_is_reported(
    task: BackendHarness, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = await task.commit(task.seal(FIRST))
    await MemoryBlobStoreManager(root, SerialExecutor()).put(
        first.markers[STORE], b"{}", BlobMetadata(None, None, "x")
    )
    await task.start()
    with caplog.at_level(logging.WARNING, "statekeep.backends.blob.backup"):
        second = await task.commit(task.seal(SECOND))
    assert (await index_of(root, second)).prev_snapshot_index_blob_id is None
    assert "the upload is full" in caplog.text
    assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}


@pytest.mark.asyncio
async def test_a_base_of_another_job_is_not_built_on(
    task: BackendHarness, root: str, tmp_path: Path
) -> None:
    theirs = BackendHarness(
        faulty_blob_factory(root, FaultPlan()), SerialExecutor(), FakeClock(), tmp_path / "theirs"
    )
    theirs.task = TaskIdentity("other-job", "kit-operator", task.task.task_name)
    await theirs.start()
    savepoint = await theirs.commit(theirs.seal(FIRST))
    task.commits.append(savepoint)
    commit = await task.commit(task.seal(SECOND, parent=savepoint.context.version))
    index = await index_of(root, commit)
    assert index.prev_snapshot_index_blob_id is None
    assert all(blob_id.startswith("kit-job/") for blob_id in index.blob_ids())
    await theirs.close()


@pytest.mark.asyncio
async def test_names_say_whose_and_which_attempt_and_are_never_used_twice(
    task: BackendHarness, plan: FaultPlan
) -> None:
    context = task.open_attempt(task.seal(FIRST))
    for _ in range(3):
        await task.upload(context)
    names = plan.called("put")
    assert len(set(names)) == len(names)
    prefix = f"kit-job/state-77aa/blob/kit-operator/Partition_0/s1/1-{context.attempt}/"
    assert all(name.startswith(prefix) for name in names)


@pytest.mark.asyncio
async def test_the_index_says_whose_snapshot_of_what_it_is(task: BackendHarness, root: str) -> None:
    commit = await task.commit(task.seal(FIRST))
    blobs = MemoryBlobStoreManager(root, SerialExecutor())
    written = json.loads(await blobs.get(commit.markers[STORE]))
    assert written["snapshot-metadata"] == {
        "checkpoint-id": commit.checkpoint.checkpoint_id.serialize(),
        "job-name": "kit-job",
        "job-id": "1",
        "task-name": "Partition 0",
        "store-name": "s1",
    }
    assert written["version"] == str(commit.context.version.id)
    assert written["creation-time-millis"] == 1_700_000_000_000


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("crash_at", range(11))
async def test_a_crash_at_any_operation_leaves_the_old_state_or_the_new_and_no_leak(
    task: BackendHarness, plan: FaultPlan, root: str, crash_at: int, moment: str
) -> None:
    first = await task.commit(task.seal(FIRST))
    context = task.open_attempt(task.seal(SECOND))
    plan.add(
        Fault("*", skip=crash_at, times=1, moment=moment, make_error=SystemError)  # type: ignore[arg-type]  # one of the two literals
    )
    try:
        task.record(context, await task.upload(context))
    except SystemError:
        task.abort(context)
    plan.clear()
    for commit, content in zip(task.commits, (FIRST, SECOND), strict=False):
        assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    assert task.commits[0] is first
    last = await task.commit(task.seal(SECOND))
    while len(task.commits) > 1:
        task.release(task.commits[0])
    await task.clean_up()
    index = await index_of(root, last)
    blobs = MemoryBlobStoreManager(root, SerialExecutor())
    assert set(await blobs.list("")) == {last.markers[STORE], *index.blob_ids()}


@pytest.mark.asyncio
async def test_clean_up_deletes_nothing_when_a_retained_index_cannot_be_read(
    task: BackendHarness, root: str
) -> None:
    first = await task.commit(task.seal(FIRST))
    await task.commit(task.seal(SECOND))
    task.release(first)
    blobs = MemoryBlobStoreManager(root, SerialExecutor())
    before = await blobs.list("")
    known = task.log_snapshot()
    foreign = {STORE: Marker(task.commits[0].markers[STORE] + "x")}
    with pytest.raises(CheckpointCorruptError):
        await task.manager.clean_up([*known.retained, foreign], known.closed_attempts)
    assert await blobs.list("") == before


@pytest.mark.asyncio
async def test_clean_up_deletes_indexes_before_the_files_that_they_name(
    task: BackendHarness, plan: FaultPlan
) -> None:
    first = await task.commit(task.seal(FIRST))
    await task.commit(task.seal({"other": b"x"}))
    task.release(first)
    plan.calls.clear()
    await task.clean_up()
    deleted = plan.called("delete")
    assert len(deleted) == 4
    assert "snapshot-index" in deleted[0]
    assert not [name for name in deleted[1:] if "snapshot-index" in name]


@pytest.mark.asyncio
async def test_clean_up_goes_on_where_a_failed_one_ended(
    task: BackendHarness, plan: FaultPlan, root: str
) -> None:
    first = await task.commit(task.seal(FIRST))
    last = await task.commit(task.seal({"other": b"x"}))
    task.release(first)
    plan.add(Fault("delete", skip=2, times=1, make_error=SystemError))
    with pytest.raises(SystemError):
        await task.clean_up()
    await task.clean_up()
    blobs = MemoryBlobStoreManager(root, SerialExecutor())
    index = await index_of(root, last)
    assert set(await blobs.list("")) == {last.markers[STORE], *index.blob_ids()}


@pytest.mark.asyncio
async def test_clean_up_without_closed_attempts_asks_the_store_nothing(
    task: BackendHarness, plan: FaultPlan
) -> None:
    await task.commit(task.seal(FIRST))
    plan.calls.clear()
    await task.clean_up()
    assert not plan.calls

"""What killed uploads leave on HDFS and S3: found by clean-up once their attempts are closed."""

from pathlib import Path
from unittest.mock import AsyncMock, patch

import pytest
from fake_hdfs_kit import FakeHdfs
from hdfs_task_kit import upload_of
from object_store_kit import Failing, ObjectsInMemory, ObjectStoreRig

from statekeep.backends.base import CommitContext, GarbageScope
from statekeep.backends.blob.clean_up import CLEAN_UPS_A_LOOK
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.hdfs.backup import HdfsBackupManager
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.backends.storage.hdfs import client as hdfs_client
from statekeep.backends.storage.names import temporary_path, unfinished_name
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.errors import ConfigError, RetriableError
from statekeep.testing.backend_harness import STORE, BackendHarness, Commit
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness

URI = "hdfs://namenode:8020/place"
FACTORIES = {"blob": BlobBackendFactory, "hdfs": HdfsBackendFactory}


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> FakeHdfs:
    made = FakeHdfs()
    monkeypatch.setattr(hdfs_client, "_connected_client", lambda url, options: made)
    return made


async def started(kind: str, root: Path, **settings: str) -> KeyValueHarness:
    factory = FACTORIES[kind](BackendName(kind), {"uri": URI, **settings})
    task = KeyValueHarness(factory, SerialExecutor(), FakeClock(), root)
    await task.start()
    return task


def unfinish(hdfs: FakeHdfs, path: str) -> str:
    """Leave a file as a put that was killed before the rename does."""
    temporary = temporary_path(path, "ab12")
    hdfs.files[temporary] = hdfs.files.pop(path, b"half")
    return temporary


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", FACTORIES)
async def test_a_clean_up_removes_what_killed_uploads_of_closed_attempts_have_left(
    hdfs: FakeHdfs, tmp_path: Path, kind: str
) -> None:
    task = await started(kind, tmp_path)
    await task.commit(task.seal({"k": b"1"}))
    committed = dict(hdfs.files)
    context = task.open_attempt(task.seal({"k": b"2"}))
    await task.upload(context)
    left = {unfinish(hdfs, path) for path in hdfs.files.keys() - committed.keys()}
    assert left
    await task.clean_up()
    assert hdfs.files.keys() == committed.keys() | left
    task.abort(context)
    await task.clean_up()
    assert hdfs.files == committed
    await task.close()


def snapshot_of(commit: Commit) -> str:
    """Return where a snapshot beside the upload of a commit lies, or is to lie."""
    prefix = commit.markers[STORE].rpartition("/")[0]
    return f"/place/{prefix}/{upload_of(commit)}.snapshot"


@pytest.mark.asyncio
async def test_any_process_spares_a_snapshot_in_the_making_as_long_as_it_may_be_of_use(
    hdfs: FakeHdfs, tmp_path: Path
) -> None:
    task = await started("hdfs", tmp_path, **{"min.deltas.for.snapshot": "2"})
    driver = await started("hdfs", tmp_path / "driver")
    commits = [await task.commit(task.seal({"k": b"%d" % number})) for number in range(2)]
    making = temporary_path(snapshot_of(commits[1]), "ab12")
    hdfs.files[making] = b"half"
    with patch.object(HdfsBackupManager, "_see_to_snapshot", AsyncMock()):
        commits.append(await task.commit(task.seal({"k": b"2"})))
    for commit in commits[:2]:
        task.release(commit)
    await driver.clean_up(task.log_snapshot())
    assert making in hdfs.files
    later = await task.commit(task.seal({"k": b"3"}))
    assert isinstance(task.manager, HdfsBackupManager)
    await task.manager.finish_snapshots()
    await driver.clean_up(task.log_snapshot())
    assert snapshot_of(later) in hdfs.files
    assert making in hdfs.files  # a retained commit still reads the delta of its upload
    await task.commit(task.seal({"k": b"4"}))  # it is the first that names the snapshot
    await driver.clean_up(task.log_snapshot())
    assert making in hdfs.files
    task.release(commits[2])
    task.release(later)
    await driver.clean_up(task.log_snapshot())
    assert making not in hdfs.files
    await task.close()
    await driver.close()


@pytest.fixture
def objects() -> ObjectsInMemory:
    return ObjectsInMemory()


@pytest.fixture
def in_objects(objects: ObjectsInMemory) -> BlobBackendFactory:
    return BlobBackendFactory(
        BackendName("blob"),
        {"uri": "elsewhere", "part.bytes": "1MiB"},
        make_manager=lambda _, executor: ObjectStoreRig(
            objects, executor, part_bytes=1 << 20, buffer_bytes=4 << 20
        ).manager(),
    )


async def killed_in_parts(task: BackendHarness, objects: ObjectsInMemory) -> CommitContext:
    """Begin a commit whose process is killed before the end of an upload in parts."""

    def die(request: str) -> None:
        if request in {"complete", "abort"}:
            raise ConfigError("killed")

    objects.before = die
    context = task.open_attempt(task.seal({"large.sst": bytes(3 << 19)}))
    with pytest.raises(ConfigError):
        await task.upload(context)
    objects.before = lambda request: None
    assert objects.uploads
    return context


@pytest.mark.asyncio
async def test_a_clean_up_drops_the_parts_of_closed_attempts_alone(
    objects: ObjectsInMemory, in_objects: BlobBackendFactory, tmp_path: Path
) -> None:
    task = BackendHarness(in_objects, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    first = await task.commit(task.seal({"a.sst": b"1"}))
    await task.commit(task.seal({"a.sst": b"2"}))
    task.release(first)
    context = await killed_in_parts(task, objects)
    await task.clean_up()
    assert objects.uploads
    task.abort(context)
    for _ in range(CLEAN_UPS_A_LOOK):
        await task.clean_up()
    assert objects.uploads == {}
    await task.close()


@pytest.mark.asyncio
async def test_an_upload_whose_beginning_got_no_answer_goes_though_its_commit_stays(
    objects: ObjectsInMemory, in_objects: BlobBackendFactory, tmp_path: Path
) -> None:
    task = BackendHarness(in_objects, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    objects.after = Failing("begin", RetriableError("answer lost"))
    content = {"large.sst": bytes(3 << 19)}
    commit = await task.commit(task.seal(content))
    assert len(objects.uploads) == 1
    task.abort(task.open_attempt(task.seal(content)))
    await task.clean_up()
    assert objects.uploads == {}
    assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    await task.close()


@pytest.mark.asyncio
async def test_the_garbage_collector_drops_parts_when_it_deletes_and_not_when_it_looks(
    objects: ObjectsInMemory, in_objects: BlobBackendFactory, tmp_path: Path
) -> None:
    task = BackendHarness(in_objects, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    context = await killed_in_parts(task, objects)
    closed = (context.epoch, context.attempt)
    collector = in_objects.garbage_collector(SerialExecutor(), FakeClock())
    assert collector is not None
    names = await collector.find(
        GarbageScope(task.task.job_name, task.task.job_uid, frozenset(), closed)
    )
    assert objects.uploads
    await collector.delete(names)
    assert (objects.objects, objects.uploads) == ({}, {})
    await collector.close()
    await task.close()


def test_a_temporary_file_says_what_it_was_to_become() -> None:
    assert unfinished_name(temporary_path("/d/3-5/0c-1-a.sst", "ab")) == "/d/3-5/0c-1-a.sst"
    assert unfinished_name("/d/3-5/0c-1-a.sst") is None
    assert unfinished_name("/d/3-5/.tmp-ab") == "/d/3-5/"
    assert len(Path(temporary_path(f"/d/{'n' * 255}", "a" * 32)).name) < 255

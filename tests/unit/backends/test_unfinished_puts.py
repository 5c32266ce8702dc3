"""What killed uploads leave on HDFS: found by clean-up once their attempts are closed."""

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest
from fake_hdfs_kit import FakeHdfs

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.managers import hdfs_client
from statekeep.backends.blob.names import temporary_path, unfinished_name
from statekeep.backends.hdfs.backup import HdfsBackupManager
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.testing.backend_harness import STORE
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
    task.void(context)
    await task.clean_up()
    assert hdfs.files == committed
    await task.close()


@pytest.mark.asyncio
async def test_a_snapshot_that_is_being_made_is_left_alone_though_its_commit_is_released(
    hdfs: FakeHdfs, tmp_path: Path
) -> None:
    task = await started("hdfs", tmp_path, **{"min.deltas.for.snapshot": "1"})
    first = await task.commit(task.seal({"k": b"1"}))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(manager: HdfsBackupManager, upload: object) -> int:
        begun.set()
        await go_on.wait()
        return 0

    with patch.object(HdfsBackupManager, "_upload_snapshot", wait):
        second = await task.commit(task.seal({"k": b"2"}))
        await begun.wait()
        await task.commit(task.seal({"k": b"3"}))
        for commit in (first, second):
            task.release(commit)
        making = unfinish(hdfs, f"/place/{second.markers[STORE]}.snapshot")
        await task.clean_up()
        assert making in hdfs.files
        go_on.set()
        assert isinstance(task.manager, HdfsBackupManager)
        await task.manager.finish_snapshots()
        await task.clean_up()
        assert making not in hdfs.files
    await task.close()


def test_a_temporary_file_says_what_it_was_to_become() -> None:
    assert unfinished_name(temporary_path("/d/3-5/0c-1-a.sst", "ab")) == "/d/3-5/0c-1-a.sst"
    assert unfinished_name("/d/3-5/0c-1-a.sst") is None
    assert unfinished_name("/d/3-5/.tmp-ab") == "/d/3-5/"
    assert len(Path(temporary_path(f"/d/{'n' * 255}", "a" * 32)).name) < 255

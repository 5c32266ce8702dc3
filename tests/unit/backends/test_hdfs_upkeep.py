"""What the HDFS backend does beside its commits: snapshots that are late, lineages that are long."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hdfs_kit import header_of
from hdfs_task_kit import Task, upgrade
from outage_kit import WaitingClock

from statekeep.backends.hdfs import store_files
from statekeep.backends.hdfs.backup import HdfsBackupManager
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.backends.hdfs.local_work import WrittenFile
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.errors import BlobNotFoundError, ConfigError, UnknownFormatError
from statekeep.testing.backend_harness import STORE
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness


@pytest_asyncio.fixture
async def task(tmp_path: Path) -> AsyncIterator[Task]:
    made = Task(tmp_path / "place", tmp_path / "local")
    await made.start()
    yield made
    await made.close()


@pytest.mark.asyncio
async def test_a_header_that_is_longer_than_what_is_fetched_first_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "_START_BYTES", 512)
    task = Task(tmp_path / "p", tmp_path / "l", **{"min.deltas.for.snapshot": "100"})
    await task.start()
    for number in range(20):
        await task.commit_next(a=bytes([number]))
    commit = task.commits[-1]
    assert len(header_of(task.file(commit, "delta").read_bytes())["lineage"]) == 19
    assert (await task.restore(commit.checkpoint)).content == {STORE: task.content}
    await task.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_waited_for", [False, True])
async def test_a_program_that_ends_after_each_commit_makes_a_full_upload_where_a_snapshot_is_due(
    tmp_path: Path, *, is_waited_for: bool
) -> None:
    task = Task(tmp_path / "p", tmp_path / "l", WaitingClock())
    for number in range(10):
        await task.start()
        await task.commit(task.seal({"a": bytes([number])}))
        if is_waited_for:  # its digest is lost with the program
            await task.finish_snapshots()
        await task.close()
    full = [commit.markers[STORE].partition(";")[0].endswith("snapshot") for commit in task.commits]
    assert [number for number, is_full in enumerate(full) if is_full] == [0, 4, 8]
    for number, commit in enumerate(task.commits):
        assert (await task.restore(commit.checkpoint)).content == {STORE: {"a": bytes([number])}}


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ConfigError("the disk quota is used up"), ValueError("a bug")])
async def test_a_snapshot_that_fails_fails_no_commit_however_long_the_lineage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    task = Task(tmp_path / "p", tmp_path / "l")
    await task.start()
    await task.commit_next(a=b"first")

    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(HdfsBackupManager, "_upload_snapshot", fail)
    for number in range(66):
        await task.commit_next(a=bytes([number]))
    assert caplog.text.count("snapshot failed") == 64
    assert (await task.restore(task.commits[-1].checkpoint)).content == {STORE: {"a": bytes([65])}}
    await task.close()


@pytest.mark.asyncio
async def test_a_snapshot_that_hangs_holds_a_commit_up_for_a_minute_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WaitingClock()
    task = Task(tmp_path / "p", tmp_path / "l", clock)
    await task.start()
    await task.commit_next(a=b"first")

    async def hang(*_: object) -> None:
        if len(task.commits) < 64:
            raise ConfigError("the disk quota is used up")
        await asyncio.Event().wait()

    monkeypatch.setattr(HdfsBackupManager, "_upload_snapshot", hang)
    for number in range(63):
        await task.commit_next(a=bytes([number]))
    begun = asyncio.create_task(task.commit(task.seal({"a": b"last"})))
    while not clock.sleeper_count:
        await asyncio.sleep(0)
    clock.pass_time(59)
    await asyncio.sleep(0)
    assert not begun.done()
    clock.pass_time(1)
    await begun
    await task.close()


@pytest.mark.asyncio
async def test_snapshots_of_many_stores_are_made_one_after_the_other_while_commits_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"uri": f"file://{tmp_path}/place", "min.deltas.for.snapshot": "2"}
    factory = HdfsBackendFactory(BackendName("hdfs"), settings)
    stores = [StoreName(name) for name in "abc"]
    task = KeyValueHarness(factory, SerialExecutor(), FakeClock(), tmp_path, stores=stores)
    await task.start()
    await task.commit(task.seal({name: {"k": b"0"} for name in stores}))
    upload_snapshot, go_on = HdfsBackupManager._upload_snapshot, asyncio.Event()
    under_way, most_under_way, made = 0, 0, 0

    async def wait(self: HdfsBackupManager, upload: Any, *changed_bytes: int) -> WrittenFile:
        nonlocal under_way, most_under_way, made
        under_way += 1
        most_under_way = max(most_under_way, under_way)
        await go_on.wait()
        written = await upload_snapshot(self, upload, *changed_bytes)
        under_way, made = under_way - 1, made + 1
        return written

    monkeypatch.setattr(HdfsBackupManager, "_upload_snapshot", wait)
    commits = [
        await task.commit(task.seal({name: {"k": bytes([number])} for name in stores}))
        for number in range(1, 6)
    ]
    assert (under_way, made) == (1, 0)
    go_on.set()
    assert isinstance(task.manager, HdfsBackupManager)
    await task.manager.finish_snapshots()
    assert (most_under_way, made) == (1, 3)
    assert (await task.restore(commits[-1].checkpoint)).content == {
        name: {"k": bytes([5])} for name in stores
    }
    await task.close()


@pytest.mark.asyncio
async def test_bytes_are_counted_from_the_snapshot_also_where_it_took_longer_than_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(
        tmp_path / "p",
        tmp_path / "l",
        **{"min.deltas.for.snapshot": "99", "max.delta.bytes": "6000"},
    )
    await task.start()
    upload_snapshot, slow, go_on = HdfsBackupManager._upload_snapshot, list[int](), asyncio.Event()

    async def wait(self: HdfsBackupManager, upload: Any, *changed_bytes: int) -> WrittenFile:
        if upload.commit.base is not None:
            slow.append(len(task.commits))
            await go_on.wait()
        return await upload_snapshot(self, upload, *changed_bytes)

    monkeypatch.setattr(HdfsBackupManager, "_upload_snapshot", wait)
    for number in range(30):
        await task.commit(task.seal({"a": bytes([number]) * 600}))
        await asyncio.sleep(0)
        if slow and len(task.commits) > slow[-1] + 3:
            assert isinstance(task.manager, HdfsBackupManager)
            go_on.set()
            await task.manager.finish_snapshots()
            go_on.clear()
    to_first, *between = [after - before for before, after in pairwise([0, *slow])]
    assert between == [to_first] * 3
    await task.close()


@pytest.mark.asyncio
async def test_a_store_that_cannot_be_cleaned_up_is_named_and_keeps_no_other_from_it(
    tmp_path: Path,
) -> None:
    factory = HdfsBackendFactory(BackendName("hdfs"), {"uri": f"file://{tmp_path}/place"})
    stores = [StoreName(name) for name in ("bad", "good")]
    task = KeyValueHarness(factory, SerialExecutor(), FakeClock(), tmp_path, stores=stores)
    await task.start()
    await task.commit(task.seal({name: {"a": b"0"} for name in stores}))
    commit = await task.commit(task.seal({name: {"a": b"1"} for name in stores}))
    aborted = task.open_attempt(task.seal({name: {"a": b"aborted"} for name in stores}))
    markers = await task.upload(aborted)
    task.abort(aborted)
    (tmp_path / "place" / commit.markers[stores[0]].partition(";")[0]).unlink()
    with pytest.raises(BlobNotFoundError) as raised:
        await task.clean_up()
    assert raised.value.__notes__[-1] == "task=Partition 0 backend=hdfs store=bad"
    files = [markers[name].partition(";")[0] for name in stores]
    left = [(tmp_path / "place" / file).exists() for file in files]
    assert left == [True, False]
    await task.close()


@pytest.mark.asyncio
async def test_a_snapshot_of_a_newer_release_is_not_passed_over_for_an_older_one(
    task: Task,
) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(5)]
    upgrade(task.file(commits[3], "snapshot"))
    with pytest.raises(UnknownFormatError, match=r"version=2 .*\.snapshot"):
        await task.restore(commits[4].checkpoint)


@pytest.mark.asyncio
async def test_clean_up_deletes_nothing_behind_a_snapshot_of_a_newer_release(task: Task) -> None:
    commits = [await task.commit_next(a=bytes([n])) for n in range(5)]
    upgrade(task.file(commits[3], "snapshot"))
    for commit in commits[:4]:
        task.release(commit)
    before = task.files()
    with pytest.raises(UnknownFormatError, match="version=2") as raised:
        await task.clean_up()
    assert raised.value.__notes__[-1] == "task=Partition 0 backend=hdfs store=s1"
    assert task.files() == before


@pytest.mark.asyncio
async def test_a_base_of_a_newer_release_makes_the_upload_full(task: Task) -> None:
    base = await task.commit_next(a=b"0")
    upgrade(task.file(base, "snapshot"))
    commit = await task.commit_next(a=b"1")
    assert task.file(commit, "snapshot").exists()
    assert (await task.restore(commit.checkpoint)).content == {STORE: task.content}

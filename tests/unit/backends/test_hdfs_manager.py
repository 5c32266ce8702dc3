"""Blobs on HDFS, by a client that may wait without end or answer late."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fake_hdfs_kit import FakeHdfs, FakeWriter, Status

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata
from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.backends.storage.hdfs import client as hdfs_client
from statekeep.backends.storage.hdfs.client import HdfsClient
from statekeep.backends.storage.hdfs.manager import HdfsBlobStoreManager
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.backends.storage.names import temporary_path
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    RetriableError,
    VersionDamagedError,
)
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

METADATA = BlobMetadata(None, None, "test")
URI = "hdfs://namenode:8020/place"
QUICK = {hdfs_client.SOCKET_TIMEOUT_OPTION: "10"}


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHdfs]:
    made = FakeHdfs()
    monkeypatch.setattr(hdfs_client, "_connected_client", lambda url, options: made)
    monkeypatch.setattr(hdfs_client, "_GIVE_UP_S", 0.02)
    yield made
    assert not [path for path in made.files if ".tmp-" in path]


async def ready(options: dict[str, str] | None = None) -> HdfsBlobStoreManager:
    manager = HdfsBlobStoreManager(URI, HdfsClient(URI, options or {}), SerialExecutor())
    await manager.init()
    return manager


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["create", "write", "close", "info", "rename"])
async def test_a_put_that_waits_without_end_is_given_up_and_may_be_repeated(
    hdfs: FakeHdfs, step: str
) -> None:
    manager = await ready(QUICK)
    hdfs.stuck = {step}
    with pytest.raises(RetriableError, match="did not answer"):
        await manager.put("a", b"content", METADATA)
    assert hdfs.abandoned
    assert await manager.list("") == []
    hdfs.stuck = set()
    await manager.put("a", b"content", METADATA)
    assert await manager.get("a") == b"content"


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["read", "read_range"])
async def test_a_download_that_waits_without_end_is_given_up(
    hdfs: FakeHdfs, tmp_path: Path, step: str
) -> None:
    manager = await ready(QUICK)
    await manager.put("a", b"content", METADATA)
    hdfs.stuck = {step}
    with pytest.raises(RetriableError, match="did not answer"):
        await manager.download("a", tmp_path / "a", lambda _: None, max_bytes=MAX_FILE_BYTES)


@pytest.mark.asyncio
async def test_a_rename_that_lands_after_it_was_given_up_changes_nothing(hdfs: FakeHdfs) -> None:
    manager = await ready(QUICK)
    hdfs.stuck = {"rename"}
    with pytest.raises(RetriableError):
        await manager.put("a", b"content", METADATA, if_absent=True)
    hdfs.stuck = set()
    await manager.put("a", b"another", METADATA, if_absent=True)
    late = "/place/.tmp-late"
    hdfs.add(late, b"content")
    with pytest.raises(FileExistsError):
        await hdfs.rename(late, "/place/a", overwrite=False)
    assert await manager.get("a") == b"another"
    assert await manager.list("") == ["a"]
    del hdfs.files[late]


@pytest.mark.asyncio
async def test_a_listing_below_a_file_is_empty(hdfs: FakeHdfs) -> None:
    manager = await ready()
    await manager.put("a/b", b"content", METADATA)
    assert await manager.list("a/b/") == await manager.list("a/b/c/") == []
    hdfs.errors["list"] = RuntimeError(
        'RPCError("org.apache.hadoop.security.AccessControlException"'
    )
    with pytest.raises(ConfigError, match="access denied"):
        await manager.list("a/b/")


@pytest.mark.asyncio
async def test_a_put_whose_answer_was_lost_may_be_repeated(hdfs: FakeHdfs) -> None:
    manager = await ready()
    for _ in range(2):
        await manager.put("a", b"content", METADATA)
    with pytest.raises(BlobExistsError):
        await manager.put("a", b"other content", METADATA)
    with pytest.raises(BlobExistsError):
        await manager.put("a", b"content", METADATA, if_absent=True)
    assert hdfs.files == {"/place/a": b"content"}


@pytest.mark.asyncio
async def test_a_put_that_is_cancelled_lets_the_write_end_and_leaves_nothing(
    hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def write(writer: FakeWriter, data: bytes) -> None:
        begun.set()
        await go_on.wait()
        ended.append("write")

    monkeypatch.setattr(FakeWriter, "write", write)
    monkeypatch.setattr(hdfs_client, "_GIVE_UP_S", 60)
    manager = await ready()
    put = asyncio.create_task(manager.put("a", b"content", METADATA))
    await begun.wait()
    put.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert ended == ["write"]
    assert hdfs.files == {}


@pytest.mark.asyncio
async def test_a_cancel_does_not_wait_for_what_never_ends(hdfs: FakeHdfs) -> None:
    manager = await ready()
    hdfs.stuck = {"write"}
    put = asyncio.create_task(manager.put("a", b"content", METADATA))
    await hdfs.is_waiting.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert hdfs.abandoned


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("hdfs.protocol.DSQuotaExceededException", ConfigError, "quota"),
        ("security.AccessControlException", ConfigError, "access denied"),
        ("server.namenode.SafeModeException", RetriableError, "safe mode"),
        ("io.IOException: no leader", RetriableError, "did not answer"),
    ],
    ids=["quota", "denied", "safe mode", "unknown"],
)
async def test_java_exceptions_are_classified_by_what_they_mean(
    hdfs: FakeHdfs, text: str, error: type[Exception], message: str
) -> None:
    manager = await ready()
    hdfs.errors["rename"] = RuntimeError(f'RPCError("org.apache.hadoop.{text}"')
    with pytest.raises(error, match=message):
        await manager.put("a", b"x", METADATA)
    assert hdfs.files == {}


@pytest.mark.asyncio
async def test_a_file_that_arrived_short_gets_no_name(
    hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(writer: FakeWriter, data: bytes) -> None:
        """Write nothing."""

    manager = await ready()
    with monkeypatch.context() as patch:
        patch.setattr(FakeWriter, "write", lose)
        with pytest.raises(RetriableError, match="short write"):
            await manager.put("a", b"content", METADATA)
    assert hdfs.files == {}


@pytest.mark.asyncio
async def test_what_is_missing_is_named(hdfs: FakeHdfs, tmp_path: Path) -> None:
    manager = await ready()
    with pytest.raises(BlobNotFoundError):
        await manager.get("a")
    with pytest.raises(VersionDamagedError):
        await manager.put("a", tmp_path / "none", METADATA)
    await manager.delete("a")


@pytest.mark.asyncio
async def test_temporary_names_are_no_blobs(hdfs: FakeHdfs) -> None:
    manager = await ready()
    await manager.put("d/a", b"x", METADATA)
    hdfs.add("/place/d/.tmp-1", b"half")
    assert await manager.list("d/") == ["d/a"]
    with pytest.raises(BlobNotFoundError):
        await manager.get("d/.tmp-1")
    del hdfs.files["/place/d/.tmp-1"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("start", "size", "expected"),
    [(0, 3, b"con"), (2, 3, b"nte"), (5, 9, b"nt"), (7, 1, b""), (0, 99, b"content")],
)
async def test_a_part_of_a_blob_is_read_alone_however_the_manager_is_wrapped(
    hdfs: FakeHdfs, start: int, size: int, expected: bytes
) -> None:
    factory = BlobBackendFactory(BackendName("blob"), {"uri": URI})
    manager = factory.blob_store_manager(SerialExecutor(), FakeClock())
    await manager.init()
    await manager.put("a", b"content", METADATA)
    assert await manager.get_range("a", start, size) == expected
    assert hdfs.bytes_read == len(expected)


@pytest.mark.asyncio
async def test_the_start_of_a_blob_is_read_alone(hdfs: FakeHdfs) -> None:
    manager = await ready()
    await manager.put("a", b"content", METADATA)
    assert await manager.get_start("a", 3) == b"con"
    assert hdfs.bytes_read == 3


@pytest.mark.asyncio
async def test_what_a_killed_put_has_left_is_removed_by_the_name_that_it_was_to_have(
    hdfs: FakeHdfs,
) -> None:
    manager = await ready(QUICK)
    killed = {f"{place}/7_ab.delta" for place in ("here", "here/below", "elsewhere")}
    for name in killed | {"here/8_cd.delta"}:
        hdfs.stuck = {"write", "delete"}  # nothing is tidied up
        with pytest.raises(RetriableError):
            await manager.put(name, b"half", METADATA)
    hdfs.stuck = set()
    await manager.put("here/7_ef.delta", b"whole", METADATA)
    told: list[str] = []

    def is_closed(name: str) -> bool:
        told.append(name)
        return name in killed

    await manager.remove_unfinished("here/", is_closed)
    assert sorted(told) == ["here/7_ab.delta", "here/8_cd.delta", "here/below/7_ab.delta"]
    left = [path.split(".tmp-")[0] for path in hdfs.files]
    assert sorted(left) == ["/place/elsewhere/", "/place/here/", "/place/here/7_ef.delta"]
    await manager.remove_unfinished("", lambda name: True)
    assert hdfs.files == {"/place/here/7_ef.delta": b"whole"}


@pytest.mark.asyncio
async def test_a_directory_goes_with_the_last_file_in_it_but_not_the_root(hdfs: FakeHdfs) -> None:
    manager = await ready()
    for name in ["a/b/1", "a/b/2", "a/c/3"]:
        await manager.put(name, b"x", METADATA)
    await manager.delete("a/b/1")
    assert hdfs.below("/place") == ["/place/a", "/place/a/b", "/place/a/c"]
    await manager.delete("a/b/2")
    assert hdfs.below("/place") == ["/place/a", "/place/a/c"]
    await manager.delete("a/c/3")
    assert (hdfs.below("/place"), "/place" in hdfs.directories) == ([], True)


@pytest.mark.asyncio
async def test_a_put_that_fails_leaves_no_directory(hdfs: FakeHdfs) -> None:
    manager = await ready()
    hdfs.errors["rename"] = RuntimeError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException")
    with pytest.raises(ConfigError, match="quota"):
        await manager.put("a/b/1", b"x", METADATA)
    assert (hdfs.below("/place"), hdfs.files) == ([], {})


@pytest.mark.asyncio
@pytest.mark.parametrize("is_sweep", [False, True], ids=["by a delete", "by a sweep"])
async def test_a_directory_that_is_filled_while_it_is_to_go_stays(
    hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch, *, is_sweep: bool
) -> None:
    manager = await ready()
    await manager.put("a/1", b"x", METADATA)
    delete = hdfs.delete

    async def delete_late(path: str, *, recursive: bool) -> bool:
        if path == "/place/a":
            await manager.put("a/2", b"y", METADATA)
        return await delete(path, recursive=recursive)

    if is_sweep:
        del hdfs.files["/place/a/1"]
    monkeypatch.setattr(hdfs, "delete", delete_late)
    await (manager.remove_unfinished("", lambda _: True) if is_sweep else manager.delete("a/1"))
    assert hdfs.files == {"/place/a/2": b"y"}


@pytest.mark.asyncio
async def test_a_blob_that_stands_where_a_directory_is_meant_is_not_deleted(hdfs: FakeHdfs) -> None:
    manager = await ready()
    await manager.put("a", b"x", METADATA)
    with pytest.raises(ConfigError, match="a file stands where a directory is needed"):
        await manager.delete("a/b")
    assert hdfs.files == {"/place/a": b"x"}


@pytest.mark.asyncio
async def test_a_directory_that_goes_while_a_listing_is_read_hides_nothing_else(
    hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = await ready()
    for name in ["p/a/1", "p/b/1", "p/c/1"]:
        await manager.put(name, b"x", METADATA)
    listed = hdfs.list_status
    going = ["p/b/1"]

    async def list_late(path: str) -> AsyncIterator[Status]:
        entries = [entry async for entry in listed(path)]
        if path == "/place/p" and going:  # the delete lists it too
            await manager.delete(going.pop())
        for entry in entries:
            yield entry

    monkeypatch.setattr(hdfs, "list_status", list_late)
    assert await manager.list("p/") == ["p/a/1", "p/c/1"]


@pytest.mark.asyncio
async def test_directories_that_a_crash_has_left_empty_go_with_what_is_unfinished(
    hdfs: FakeHdfs,
) -> None:
    manager = await ready()
    await manager.put("here/kept/1", b"x", METADATA)
    hdfs.directories |= {"/place/here/a", "/place/here/a/b", "/place/elsewhere"}
    await manager.remove_unfinished("here/", lambda name: True)
    assert hdfs.below("/place") == ["/place/elsewhere", "/place/here", "/place/here/kept"]
    await manager.remove_unfinished("none/at/all/", lambda name: True)
    assert "/place" in hdfs.directories


@pytest.mark.asyncio
async def test_a_put_whose_temporary_file_was_swept_may_be_repeated(
    hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = await ready()
    rename = hdfs.rename

    async def rename_late(source: str, target: str, *, overwrite: bool) -> None:
        await manager.remove_unfinished("", lambda name: True)
        await rename(source, target, overwrite=overwrite)

    with monkeypatch.context() as patch:
        patch.setattr(hdfs, "rename", rename_late)
        with pytest.raises(RetriableError, match="temporary file is gone"):
            await manager.put("a", b"x", METADATA, if_absent=True)
    await manager.put("a", b"x", METADATA, if_absent=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["write", "close"])
async def test_a_put_whose_temporary_file_is_swept_before_the_rename_may_be_repeated(
    hdfs: FakeHdfs, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    manager = await ready()
    take_step = getattr(FakeWriter, step)

    async def take_late(writer: FakeWriter, *args: bytes) -> None:
        await take_step(writer, *args)
        await manager.remove_unfinished("", lambda name: True)
        if step == "write":
            raise FileNotFoundError

    monkeypatch.setattr(FakeWriter, step, take_late)
    with pytest.raises(RetriableError, match="temporary file is gone"):
        await manager.put("a", b"x", METADATA)


@pytest.mark.asyncio
async def test_a_trim_removes_what_killed_writers_left_of_positions_below_the_floor(
    hdfs: FakeHdfs,
) -> None:
    log = BlobJobLog(await ready(), "job")
    for position in range(4):
        await log.append(position, b"x")
    left = {n: temporary_path(f"/place/job/log/{n:020d}.json", f"ab{n}") for n in (0, 1, 3, 4)}
    for path in left.values():
        hdfs.add(path, b"half")
    await log.trim(2)
    # Of the others a writer may be alive, and is to find out by its rename who has the position.
    assert [path for path in hdfs.files if ".tmp-" in path] == [left[3], left[4]]
    assert [position for position, _ in await log.read(2)] == [2, 3]
    await log.append(4, b"x")
    await log.trim(3)
    assert [path for path in hdfs.files if ".tmp-" in path] == [left[3], left[4]]
    await log.trim(4)
    assert [path for path in hdfs.files if ".tmp-" in path] == [left[4]]
    await log.trim(5)


@pytest.mark.asyncio
async def test_the_end_of_an_attempt_leaves_nothing_of_its_checkpoints(hdfs: FakeHdfs) -> None:
    store = BlobCheckpointStore(await ready(), "job")
    for attempt in ("1-1", "1-2"):
        await store.write(attempt, TaskName("Partition 0"), b"x")
        hdfs.add(f"/place/job/checkpoints/{attempt}/Partition 1/.tmp-ab-000000", b"half")
    await store.delete("1-1")
    assert len(await store.read("1-2")) == 1
    assert not [path for path in (*hdfs.files, *hdfs.directories) if "/1-1" in path]
    await store.delete("1-2")
    assert hdfs.below("/place") == []


def test_a_time_out_that_is_no_number_is_refused_by_name() -> None:
    options = {f"storage.options.{hdfs_client.SOCKET_TIMEOUT_OPTION}": "soon"}
    factory = BlobBackendFactory(BackendName("blob"), {"uri": URI, **options})
    with pytest.raises(ConfigError) as raised:
        factory.blob_store_manager(SerialExecutor(), FakeClock())
    assert raised.value.key == "backends.blob.storage.options"

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import fsspec  # type: ignore[import-untyped]  # it ships no types
import pytest
import pytest_asyncio
from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped]  # as above
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # as above
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]  # as above
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # as above
from gcsfs.retry import HttpError  # type: ignore[import-untyped]  # as above
from log_kit import InlineExecutor

from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata, BlobStoreManager
from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage import local as local_files
from statekeep.backends.storage.client import ObjectRange, SharedClient, StorageClient
from statekeep.backends.storage.fsspec_client import FsspecClient
from statekeep.backends.storage.local import LocalClient
from statekeep.backends.storage.manager import StorageManager
from statekeep.backends.storage.requests import Requests, TransferLimits
from statekeep.errors import (
    BackendClosedError,
    BlobExistsError,
    BlobNotFoundError,
    ConfigError,
    VersionDamagedError,
)
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.storage import bare_manager

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")
CONTENT = bytes(range(256)) * 5


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.fixture(params=["directory", "file-uri", "memory"])
def root_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root = tmp_path / "root"
    return {"directory": str(root), "file-uri": root.as_uri(), "memory": f"memory:/{root}"}[
        request.param
    ]


@pytest_asyncio.fixture
async def blobs(root_uri: str) -> BlobStoreManager:
    manager = bare_manager(root_uri, {}, InlineExecutor())
    await manager.init()
    return manager


@pytest.mark.asyncio
@pytest.mark.parametrize("is_path", [False, True], ids=["bytes", "file"])
@pytest.mark.parametrize("if_absent", [False, True], ids=["put", "create"])
async def test_blob_is_read_back(
    blobs: BlobStoreManager, tmp_path: Path, *, is_path: bool, if_absent: bool
) -> None:
    source = tmp_path / "source"
    source.write_bytes(CONTENT)

    blob_id = await blobs.put(
        "a/b/c", source if is_path else CONTENT, METADATA, if_absent=if_absent
    )

    assert await blobs.get(blob_id) == CONTENT


@pytest.mark.asyncio
async def test_name_that_is_taken_is_refused_and_kept(blobs: BlobStoreManager) -> None:
    await blobs.put("a/b", b"first", METADATA, if_absent=True)

    with pytest.raises(BlobExistsError):
        await blobs.put("a/b", b"second", METADATA, if_absent=True)

    assert await blobs.get("a/b") == b"first"


@pytest.mark.asyncio
async def test_missing_blob_is_named(blobs: BlobStoreManager, tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError) as caught:
        await blobs.get("a/none")
    assert caught.value.blob_id == "a/none"
    with pytest.raises(BlobNotFoundError):
        await blobs.download(
            "a/none", tmp_path / "target", lambda _: None, max_bytes=MAX_FILE_BYTES
        )


@pytest.mark.asyncio
async def test_delete_is_idempotent(blobs: BlobStoreManager) -> None:
    await blobs.put("a/b", b"x", METADATA)
    await blobs.delete("a/b")
    await blobs.delete("a/b")
    await blobs.delete("never/there")

    assert await blobs.list("") == []


@pytest.mark.asyncio
async def test_list_gives_names_by_prefix_not_by_directory(blobs: BlobStoreManager) -> None:
    for name in ("a/b/2", "a/b/1", "a/bc", "ab", "b/b/1"):
        await blobs.put(name, b"x", METADATA)

    assert await blobs.list("a/b") == ["a/b/1", "a/b/2", "a/bc"]
    assert await blobs.list("a/b/") == ["a/b/1", "a/b/2"]
    assert await blobs.list("") == ["a/b/1", "a/b/2", "a/bc", "ab", "b/b/1"]
    assert await blobs.list("none/") == []


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 4096], ids=str)
async def test_download_goes_by_parts_and_returns_the_digest(
    root_uri: str, tmp_path: Path, size: int
) -> None:
    blobs = bare_manager(root_uri, {}, InlineExecutor(), part_bytes=1024)
    await blobs.init()
    content = os.urandom(size)
    await blobs.put("a/b", content, METADATA)
    reported: list[int] = []

    digest = await blobs.download(
        "a/b", tmp_path / "target", reported.append, max_bytes=MAX_FILE_BYTES
    )

    assert digest == hashlib.sha256(content).hexdigest()
    assert (tmp_path / "target").read_bytes() == content
    assert sum(reported) == size
    assert max(reported, default=0) <= 1024


@pytest.mark.asyncio
async def test_download_does_not_write_over_a_file(blobs: BlobStoreManager, tmp_path: Path) -> None:
    await blobs.put("a/b", b"x", METADATA)
    (tmp_path / "target").write_bytes(b"mine")

    with pytest.raises(ConfigError):
        await blobs.download("a/b", tmp_path / "target", lambda _: None, max_bytes=MAX_FILE_BYTES)

    assert (tmp_path / "target").read_bytes() == b"mine"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a\\b", "a\nb", "a/.tmp-1"], ids=repr
)
async def test_names_that_lead_astray_are_refused(
    blobs: BlobStoreManager, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="not a blob name"):
        await blobs.put(name, b"x", METADATA)
    await blobs.delete(name)  # there is none
    for call in (
        blobs.get(name),
        blobs.get_range(name, 0, 1),
        blobs.download(name, tmp_path / "target", lambda _: None, max_bytes=MAX_FILE_BYTES),
    ):
        with pytest.raises(BlobNotFoundError):
            await call


@pytest.mark.asyncio
async def test_file_to_store_that_is_gone_is_damage_of_its_version(
    blobs: BlobStoreManager, tmp_path: Path
) -> None:
    with pytest.raises(VersionDamagedError):
        await blobs.put("a/b", tmp_path / "gone", METADATA)


@pytest.mark.asyncio
async def test_closed_manager_refuses(blobs: BlobStoreManager) -> None:
    await blobs.close()
    await blobs.close()

    with pytest.raises(BackendClosedError):
        await blobs.get("a/b")
    with pytest.raises(BackendClosedError):
        await blobs.init()


@pytest.mark.asyncio
@pytest.mark.parametrize("uri", ["", "nosuch://place", "a file"], ids=repr)
async def test_root_that_is_no_location_is_a_config_error(uri: str, tmp_path: Path) -> None:
    if uri == "a file":
        (tmp_path / "file").write_bytes(b"")
        uri = str(tmp_path / "file")

    with pytest.raises(ConfigError):
        await bare_manager(uri, {}, InlineExecutor()).init()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_fsync_failing", [False, True], ids=["write", "fsync"])
async def test_failed_put_leaves_nothing(
    local: BlobStoreManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_fsync_failing: bool,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    await local.put("a/other", b"x", METADATA)
    if is_fsync_failing:
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(local_files, "_write", fail)

    for if_absent in (False, True):
        with pytest.raises(ConfigError, match="no space left"):
            await local.put("a/b", b"x", METADATA, if_absent=if_absent)

    assert files_below(tmp_path / "root") == ["a/other"]


@pytest.mark.asyncio
async def test_repeated_put_gives_the_same_blob(local: BlobStoreManager, tmp_path: Path) -> None:
    await local.put("a/b", b"first", METADATA)
    await local.put("a/b", b"again", METADATA)

    assert await local.get("a/b") == b"again"
    assert files_below(tmp_path / "root") == ["a/b"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from statekeep.backends.storage import local as local_files
def die(descriptor): os.kill(os.getpid(), signal.SIGKILL)
local_files.os.fsync = die
local_files.LocalClient(Path(sys.argv[1])).write("log/0", b"half", if_absent=True)
"""


@pytest.mark.slow
def test_process_killed_in_a_put_leaves_no_blob(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()

    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)

    assert ended.returncode == -9
    assert LocalClient(tmp_path).list("") == []
    unnamed = local_files._open_unnamed(tmp_path)
    if unnamed is not None:
        unnamed.close()
        assert files_below(tmp_path) == []


@pytest.mark.asyncio
async def test_temporary_files_are_not_listed(local: BlobStoreManager, tmp_path: Path) -> None:
    await local.put("a/b", b"x", METADATA)
    (tmp_path / "root/a/.tmp-0").write_bytes(b"half")

    assert await local.list("a/") == ["a/b"]


def test_what_a_killed_put_left_where_files_need_a_name_goes_with_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "_open_unnamed", lambda _: None)
    place = LocalClient(tmp_path)
    place.write("job/1-1/kept", b"x", if_absent=False)
    (tmp_path / "job/1-2").mkdir()
    killed = [place._temporary(tmp_path / name) for name in ("job/1-1/blob", "job/1-2/blob")]
    for put in killed:
        put.__enter__()  # and not left
    told: list[str] = []

    def is_closed(name: str) -> bool:
        told.append(name)
        return name.startswith("job/1-1/")

    for each in place.unfinished("job/"):
        if is_closed(each.name):
            place.abort(each.name, each.upload)

    assert sorted(told) == ["job/1-1/blob", "job/1-2/blob"]
    assert [path.parent.name for path in tmp_path.rglob(".tmp-*")] == ["1-2"]
    assert place.list("") == ["job/1-1/kept"]


@pytest.mark.asyncio
async def test_empty_directories_go_with_their_last_blob(
    local: BlobStoreManager, tmp_path: Path
) -> None:
    await local.put("a/b/c", b"x", METADATA)
    await local.put("a/d", b"x", METADATA)
    await local.delete("a/b/c")

    assert sorted(p.name for p in (tmp_path / "root/a").iterdir()) == ["d"]


@pytest.mark.asyncio
async def test_filesystem_whose_create_looks_first_is_refused(tmp_path: Path) -> None:
    class LookingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "looking"
        pipe_file = fsspec.AbstractFileSystem.pipe_file

    fsspec.register_implementation("looking", LookingFileSystem, clobber=True)
    manager = bare_manager(f"looking:/{tmp_path}", {}, InlineExecutor())
    await manager.init()

    with pytest.raises(ConfigError, match="no atomic create"):
        await manager.put("a", b"x", METADATA, if_absent=True)


class RefusingFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Refuses to list one of its directories; its walk would leave that out."""

    protocol = "refusing"
    find = fsspec.AbstractFileSystem.find

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> object:  # noqa: FBT001, FBT002  # as in fsspec
        if path.endswith("refused"):
            raise OSError(errno.EIO, "no answer")
        return super().ls(path, detail=detail, **kwargs)


class RefusingAsyncFileSystem(AsyncFileSystem):  # type: ignore[misc]  # as above
    """The same, for a client whose calls are coroutines."""

    async def _ls(self, path: str, detail: bool = True, **kwargs: object) -> object:  # noqa: FBT001, FBT002  # as above
        return RefusingFileSystem().ls(path, detail)

    async def _info(self, path: str, **kwargs: object) -> object:
        return RefusingFileSystem().info(path)


@pytest.mark.parametrize("kind", [RefusingFileSystem, RefusingAsyncFileSystem])
def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, kind: type[AbstractFileSystem]
) -> None:
    RefusingFileSystem().pipe_file(f"{tmp_path}/place/a/listed/1", b"x")
    place = FsspecClient(kind(), f"{tmp_path}/place")
    assert place.list("a/") == ["a/listed/1"]
    RefusingFileSystem().pipe_file(f"{tmp_path}/place/a/refused/2", b"x")
    assert place.list("a/listed/") == ["a/listed/1"]
    with pytest.raises(OSError, match="no answer"):
        place.list("a/")


def test_filesystem_with_no_way_of_its_own_to_write_bytes_is_given_its_directories(
    tmp_path: Path,
) -> None:
    filesystem = LocalFileSystem(auto_mkdir=False)
    assert type(filesystem).pipe_file is fsspec.AbstractFileSystem.pipe_file

    for content in (b"1", b"2"):
        FsspecClient(filesystem, str(tmp_path)).write("a/b/c", content, if_absent=False)

    assert (tmp_path / "a/b/c").read_bytes() == b"2"


def test_what_begins_at_the_end_of_a_blob_is_nothing_also_where_http_refuses_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    filesystem = MemoryFileSystem()
    place = FsspecClient(filesystem, str(tmp_path))
    place.write("a", b"0123", if_absent=False)
    whole = filesystem.cat_file

    def cat_file(path: str, start: int | None = None, end: int | None = None) -> bytes:
        if start is not None and start >= 4:
            raise HttpError({"code": 416, "message": "not satisfiable"})
        return bytes(whole(path, start=start, end=end))

    monkeypatch.setattr(filesystem, "cat_file", cat_file)
    assert (place.read("a", 2, 9).data, place.read("a", 4, 9).data) == (b"23", b"")
    with pytest.raises(HttpError):
        place.read("a", 5, 9)


def on_client(client: StorageClient) -> StorageManager:
    """Return a manager that moves 10 bytes a request."""
    limits = TransferLimits("near", max_in_flight=4, task_max_in_flight=4, buffer_bytes=100)
    requests = Requests(limits, SerialExecutor(), FakeClock(), RetryPolicy())
    return StorageManager(
        SharedClient(lambda: client), "near", requests, part_bytes=10, uncommitted_tags={}
    )


@pytest.mark.asyncio
async def test_a_part_of_a_file_that_fails_is_read_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, begun = LocalClient(tmp_path / "root"), list[int]()
    read = client.read

    def read_late(name: str, start: int, length: int) -> ObjectRange:
        begun.append(start)
        if start == 20 and begun.count(20) == 1:
            raise OSError(errno.EIO, "no answer")
        return read(name, start, length)

    monkeypatch.setattr(client, "read", read_late)
    blobs = on_client(client)
    await blobs.init()
    await blobs.put("a", CONTENT[:45], METADATA)

    await blobs.download("a", tmp_path / "target", lambda _: None, max_bytes=MAX_FILE_BYTES)

    assert (tmp_path / "target").read_bytes() == CONTENT[:45]
    assert sorted(begun) == [0, 10, 20, 20, 30, 40]


@pytest.mark.asyncio
async def test_a_first_part_that_is_cut_off_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem = MemoryFileSystem()
    blobs = on_client(FsspecClient(filesystem, str(tmp_path)))
    await blobs.init()
    await blobs.put("a", CONTENT[:25], METADATA)
    whole, cut_off = filesystem.cat_file, iter([True])

    def cat_file(path: str, start: int | None = None, end: int | None = None) -> bytes:
        data = bytes(whole(path, start=start, end=end))
        return data[:-1] if next(cut_off, False) else data

    monkeypatch.setattr(filesystem, "cat_file", cat_file)
    await blobs.download("a", tmp_path / "target", lambda _: None, max_bytes=MAX_FILE_BYTES)

    assert (tmp_path / "target").read_bytes() == CONTENT[:25]

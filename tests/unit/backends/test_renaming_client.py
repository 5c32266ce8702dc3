"""Blobs that get their name by a rename, on a filesystem that can be made to fail."""

import errno
import io
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from fsspec.implementations.webhdfs import WebHDFS  # type: ignore[import-untyped]
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from typing_extensions import override

from statekeep.backends.storage import fsspec_client
from statekeep.backends.storage.client import ObjectRange
from statekeep.backends.storage.fsspec_client import RenamingClient, renames_atomically
from statekeep.backends.storage.names import temporary_path
from statekeep.errors import RetriableError
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.storage import bare_manager

RENAME = "mv"
QUOTA = 'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace'
DENIED = 'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied'
NOT_FOUND = b'{"RemoteException": {"exception": "FileNotFoundException", "message": "gone"}}'
SAFE_MODE = 'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot'


class FakeHdfs(MemoryFileSystem):  # type: ignore[misc]  # as its import
    """Renames as HDFS does; one call may raise, before or after it is done."""

    protocol = "hdfs"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012  # fsspec keeps the files of a class here
    pseudo_dirs: list[str] = [""]  # noqa: RUF012  # and its directories here

    def __init__(self) -> None:
        super().__init__()
        self.store.clear()
        self.pseudo_dirs[:] = [""]
        self.failures: dict[str, tuple[BaseException, bool]] = {}
        self.is_silent = False

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        error, is_done = self.failures.pop(RENAME, (None, False))
        if error is not None and not is_done:
            raise error
        if self.exists(path2):
            if self.is_silent:
                return
            raise FileExistsError(path2)
        if path1 not in self.store:
            raise FileNotFoundError(path1)
        self.store[path2] = self.store.pop(path1)
        if error is not None:
            raise error

    def rm_file(self, path: str) -> None:
        if self.exists(path):
            super().rm_file(path)


@pytest.fixture
def fs() -> FakeHdfs:
    return FakeHdfs()


@pytest.fixture
def place(fs: FakeHdfs) -> RenamingClient:
    return RenamingClient(fs, "/place")


def remove_unfinished(place: RenamingClient, prefix: str, is_closed: Callable[[str], bool]) -> None:
    for each in place.unfinished(prefix):
        if is_closed(each.name):
            place.abort(each.name, each.upload)


def test_it_is_for_filesystems_that_rename_as_hdfs_does(fs: FakeHdfs) -> None:
    assert renames_atomically(fs)
    assert not renames_atomically(MemoryFileSystem())


def test_what_a_killed_put_has_left_is_removed_by_the_name_that_it_was_to_have(
    place: RenamingClient, fs: FakeHdfs
) -> None:
    names = ["a/b", "a/below/b", "c/b"]
    for name in names:
        fs.pipe_file(temporary_path(f"/place/{name}", "ab12"), b"half")
    place.write("a/whole", b"whole", if_absent=False)
    told: list[str] = []

    def is_closed(name: str) -> bool:
        told.append(name)
        return name == "a/b"

    remove_unfinished(place, "a/", is_closed)
    assert sorted(told) == ["a/b", "a/below/b"]
    remove_unfinished(place, "", lambda name: name == "c/b")
    assert set(fs.store) == {"/place/a/whole", temporary_path("/place/a/below/b", "ab12")}


def test_a_directory_goes_with_the_last_file_in_it(place: RenamingClient, fs: FakeHdfs) -> None:
    fs.makedirs("/place/a/b")
    for name in ["a/b/1", "a/b/2", "a/3"]:
        place.write(name, b"x", if_absent=True)
    place.delete("a/b/1")
    assert fs.isdir("/place/a/b")
    place.delete("a/b/2")
    assert sorted(fs.ls("/place/a", detail=False)) == ["/place/a/3"]


def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("a/b/1", b"x", if_absent=True)
    assert list(place.list("none/")) == []
    listed = fs.ls

    def ls(path: str, detail: bool = True) -> Any:  # noqa: FBT001, FBT002  # fsspec's
        if path == "/place/a/b":
            raise ConnectionResetError
        return listed(path, detail=detail)

    monkeypatch.setattr(fs, "ls", ls)
    with pytest.raises(ConnectionResetError):
        place.list("a/")


def test_a_put_whose_temporary_file_was_swept_may_be_repeated(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = fs.mv

    def rename_late(path1: str, path2: str) -> None:
        remove_unfinished(place, "", lambda name: True)
        rename(path1, path2)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "mv", rename_late)
        with pytest.raises(RetriableError, match="temporary file is gone"):
            place.write("a", b"x", if_absent=True)
    assert list(place.list("")) == []
    place.write("a", b"x", if_absent=True)


def test_a_put_whose_temporary_file_is_swept_before_the_rename_may_be_repeated(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = fs.info

    def look_late(path: str) -> Any:
        remove_unfinished(place, "", lambda name: True)
        return look(path)

    monkeypatch.setattr(fs, "info", look_late)
    with pytest.raises(RetriableError, match="temporary file is gone"):
        place.write("a", b"x", if_absent=False)


@pytest.mark.parametrize("is_silent", [False, True], ids=["raises", "says nothing"])
@pytest.mark.parametrize("other", [b"theirs", b"longer than ours"], ids=["same size", "longer"])
def test_a_name_that_another_took_while_the_temporary_file_was_swept_is_not_ours(
    place: RenamingClient,
    fs: FakeHdfs,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    other: bytes,
    *,
    is_silent: bool,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"ours! ")
    rename = fs.mv

    def rename_late(path1: str, path2: str) -> None:
        monkeypatch.setattr(fs, "mv", rename)
        place.write("a", other, if_absent=True)
        remove_unfinished(place, "", lambda name: True)
        if not is_silent:
            raise FileNotFoundError(path1)

    for content in (b"ours! ", path):
        monkeypatch.setattr(fs, "mv", rename_late)
        with pytest.raises(FileExistsError):
            place.write("a", content, if_absent=True)
        assert place.read("a", 0, 99).data == other
        place.delete("a")


def test_a_name_that_goes_again_at_once_may_be_tried_for_again(
    place: RenamingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = place.read

    def read_late(name: str, start: int, length: int) -> ObjectRange:
        place.delete(name)
        return read(name, start, length)

    monkeypatch.setattr(place, "read", read_late)
    with pytest.raises(RetriableError, match="is gone"):
        place.write("a", b"x", if_absent=True)


def test_a_rename_of_which_nothing_is_known_is_no_success(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("a", b"first", if_absent=True)
    fs.is_silent = True
    real_info = fs.info
    monkeypatch.setattr(fs, "exists", lambda path: False)

    def info(path: str) -> Any:
        if ".tmp-" in path and len(seen) > 0:
            raise ConnectionResetError
        seen.append(path)
        return real_info(path)

    seen: list[str] = []
    monkeypatch.setattr(fs, "info", info)
    with pytest.raises(ConnectionResetError):
        place.write("a", b"later", if_absent=True)


def test_what_comes_in_place_of_the_bytes_is_not_passed_on(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(io.BytesIO):
        size = 7

    monkeypatch.setattr(fs, "open", lambda path, mode: Answer(b"a page"))
    with pytest.raises(RetriableError, match="short read"):
        place.read("a", 0, 9)


class WebServers(BaseAdapter):
    """A NameNode that knows one file, and a DataNode that it sends to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, tuple[int, bytes]] = {"GET": (200, b"content")}
        self.missing: set[str] = set()

    @override
    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        answer = Response()
        answer.request = request
        answer.url = url = request.url or ""
        if url.startswith("http://datanode"):
            answer.status_code, body = self.answers[request.method or ""]
        elif any(f"op={op}" in url for op in self.missing):
            answer.status_code, body = 404, NOT_FOUND
        elif "op=GETFILESTATUS" in url:
            answer.status_code, body = 200, b'{"FileStatus": {"type": "FILE", "length": 7}}'
        else:
            answer.status_code, body = 307, b""
            answer.headers["Location"] = "http://datanode/file?delegation=secret"
        answer.raw = io.BytesIO(body)
        return answer

    @override
    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def servers() -> WebServers:
    return WebServers()


@pytest.fixture
def web(servers: WebServers) -> RenamingClient:
    fs = WebHDFS("namenode", skip_instance_cache=True)
    fs.session.mount("http://", servers)
    return RenamingClient(fs, "/place")


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_an_error_page_is_not_taken_for_the_bytes_of_a_blob(
    web: RenamingClient, servers: WebServers, status: int
) -> None:
    assert web.read("a", 0, 9).data == b"content"
    servers.answers["GET"] = (status, b"<html>a page that is longer than the blob</html>")
    with pytest.raises(RetriableError, match=f"status={status}") as raised:
        web.read("a", 0, 9)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("gone_at", ["append", "post"])
def test_a_put_whose_temporary_file_is_swept_before_it_is_written_may_be_repeated(
    web: RenamingClient, servers: WebServers, gone_at: str
) -> None:
    servers.answers |= {"PUT": (201, b""), "POST": (404, b"<html>gone</html>")}
    servers.missing = {"DELETE", "LISTSTATUS"} | ({"APPEND"} if gone_at == "append" else set())
    with pytest.raises(RetriableError, match="temporary file is gone") as raised:
        web.write("a", b"content", if_absent=False)
    assert "secret" not in "".join(traceback.format_exception(raised.value))


def test_a_file_to_store_that_is_gone_is_not_taken_for_a_swept_one(
    place: RenamingClient, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        place.write("a", tmp_path / "none", if_absent=False)


def test_bytes_and_files_are_stored_whole(
    place: RenamingClient, fs: FakeHdfs, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"of a file")
    place.write("a/b", b"bytes", if_absent=True)
    place.write("a/c", path, if_absent=False)
    assert place.read("a/b", 0, 9).data == b"bytes"
    assert place.read("a/c", 3, 3).data == b"a f"
    assert sorted(fs.store) == ["/place/a/b", "/place/a/c"]


@pytest.mark.parametrize("is_silent", [False, True], ids=["raises", "says nothing"])
def test_a_name_that_is_taken_meanwhile_stays_as_it_is(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
) -> None:
    fs.is_silent = is_silent
    place.write("a", b"first", if_absent=True)
    real_exists = fs.exists
    answers = iter([False])
    monkeypatch.setattr(fs, "exists", lambda path: next(answers, None) or real_exists(path))
    with pytest.raises(FileExistsError):
        place.write("a", b"later", if_absent=True)
    assert {path: file.getvalue() for path, file in fs.store.items()} == {"/place/a": b"first"}


def test_a_put_whose_answer_was_lost_may_be_repeated(place: RenamingClient, fs: FakeHdfs) -> None:
    fs.failures[RENAME] = (TimeoutError(), True)
    with pytest.raises(TimeoutError):
        place.write("a", b"content", if_absent=False)
    place.write("a", b"content", if_absent=False)
    assert sorted(fs.store) == ["/place/a"]


def test_another_content_under_a_name_that_is_taken_is_an_error(place: RenamingClient) -> None:
    place.write("a", b"content", if_absent=False)
    with pytest.raises(FileExistsError):
        place.write("a", b"longer content", if_absent=False)


def test_temporary_names_are_not_listed(place: RenamingClient, fs: FakeHdfs) -> None:
    place.write("a/b", b"", if_absent=False)
    fs.pipe_file("/place/a/.tmp-1", b"half")
    assert list(place.list("a/")) == ["a/b"]


@pytest.mark.parametrize(
    ("text", "number"),
    [(QUOTA, errno.EDQUOT), (DENIED, errno.EACCES), ("connection refused", errno.EIO)],
    ids=["quota", "denied", "unknown"],
)
def test_java_exceptions_become_what_they_mean(
    place: RenamingClient, fs: FakeHdfs, text: str, number: int
) -> None:
    fs.failures[RENAME] = (RuntimeError(text), False)
    with pytest.raises(OSError) as raised:  # noqa: PT011  # the number is what is looked at
        place.write("a", b"x", if_absent=False)
    assert raised.value.errno == number
    assert not fs.store


def test_safe_mode_is_named(place: RenamingClient, fs: FakeHdfs) -> None:
    fs.failures[RENAME] = (RuntimeError(SAFE_MODE), False)
    with pytest.raises(RetriableError, match="safe mode"):
        place.write("a", b"x", if_absent=False)


def test_a_file_that_could_not_be_written_is_not_closed(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = BrokenFile()
    monkeypatch.setattr(fs, "open", lambda path, mode: file)
    with pytest.raises(ConnectionRefusedError):
        place.write("a", b"content", if_absent=False)
    file.close()
    assert not file.is_closed


class BrokenFile:
    """Cannot be written; its close would wait without end."""

    def __init__(self) -> None:
        self.is_closed = False

    def write(self, data: bytes) -> int:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    def close(self) -> None:
        self.is_closed = True


def test_a_file_that_arrived_short_gets_no_name(
    place: RenamingClient, fs: FakeHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fs, "info", lambda path: {"size": 3})
    with pytest.raises(RetriableError, match="short write"):
        place.write("a", b"content", if_absent=False)
    assert not fs.store


@pytest.mark.asyncio
async def test_a_web_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec_client, "_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and answers nothing
        port = silent.getsockname()[1]
        uri = f"webhdfs://127.0.0.1:{port}/place"
        manager = bare_manager(uri, {"use_ssl": False}, SerialExecutor())
        with pytest.raises(RetriableError, match="did not answer"):
            await manager.init()

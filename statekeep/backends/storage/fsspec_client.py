"""Blobs on any filesystem that fsspec knows; a directory of this machine has a client of its own."""

import io
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

import fsspec.core  # type: ignore[import-untyped]  # it ships no types
from fsspec.asyn import AsyncFileSystem  # type: ignore[import-untyped]  # as above
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # as above
from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # as above
from typing_extensions import override

from statekeep.backends.plain_text import warn_of_plain_url
from statekeep.backends.storage.client import (
    FileClient,
    ObjectRange,
    StorageClient,
    UnfinishedUpload,
)
from statekeep.backends.storage.file_errors import explained_reach_errors
from statekeep.backends.storage.hdfs.errors import explained_java_errors, explained_sweep
from statekeep.backends.storage.local import LocalClient
from statekeep.backends.storage.locations import Location
from statekeep.backends.storage.names import temporary_path
from statekeep.checkpoint.log_session import random_nonce
from statekeep.errors import ConfigError, RetriableError

_RENAMING: Final = frozenset({"hdfs", "viewfs", "webhdfs"})
_COPY_BYTES: Final = 1 << 20
_ANSWER_S: Final = 120.0
"""How long an HTTP server may be silent: as long as a DataNode may (`storage.hdfs.client`)."""

_url_to_fs: Callable[..., tuple[AbstractFileSystem, str]] = cast("Any", fsspec.core).url_to_fs
_generic_pipe_file = cast("Any", AbstractFileSystem).pipe_file
_generic_find = cast("Any", AbstractFileSystem).find
_generic_async_find = cast("Any", AsyncFileSystem)._find  # noqa: SLF001  # what its `find` is made of


def open_client(location: Location) -> StorageClient:
    """Build a client of a directory, or of what fsspec reaches; see the table of stores."""
    root = location.shown_uri
    if not location.uri:
        msg = "the root of a blob store is empty"
        raise ConfigError(msg)
    if not location.options.get("use_https"):  # of WebHDFS, which has no scheme of its own for it
        warn_of_plain_url(location.uri, "take a scheme with TLS; with WebHDFS, set use_https")
    with explained_reach_errors(root):
        filesystem, path = _url_to_fs(location.uri, **location.options)
    if isinstance(filesystem, LocalFileSystem):
        return LocalClient(Path(path), shown_root=root)
    if renames_atomically(filesystem):
        return RenamingClient(filesystem, path, root)
    return FsspecClient(filesystem, path, root)


def renames_atomically(filesystem: AbstractFileSystem) -> bool:
    """Return whether a filesystem is one of those that `RenamingClient` is for."""
    protocol = cast("Any", filesystem).protocol
    names: Sequence[str] = (protocol,) if isinstance(protocol, str) else protocol
    return not _RENAMING.isdisjoint(names)


class FsspecClient(FileClient):
    """Files below one path of an fsspec filesystem.

    Whether a blob is there whole or not at all is up to the filesystem: object stores keep to it.
    ``if_absent`` needs a filesystem with a ``mode="create"`` of its own, since fsspec's generic one
    looks first and writes then.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str, shown_root: str = "") -> None:
        super().__init__(shown_root or root)
        # fsspec declares no types.
        self._fs = cast("Any", filesystem)
        self._root = root.rstrip("/")

    @override
    def reach(self) -> None:
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.ls(self._root, detail=False)

    @override
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        path = self._path(name)
        if if_absent:
            # What is created is small: log records, not files of a store.
            self._create(path, content if isinstance(content, bytes) else content.read_bytes())
        elif isinstance(content, bytes):
            if self._is_generic():
                # It opens a file, where the filesystem's put_file makes the directories too.
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, content)
        else:
            self._fs.put_file(str(content), path)

    @override
    def size(self, name: str) -> int:
        self._fs.invalidate_cache()
        return int(self._fs.info(self._path(name))["size"])

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        end = start + length
        try:
            data = self._fs.cat_file(self._path(name), start=start or None, end=end)
        except FileNotFoundError:
            raise
        except Exception:
            # HTTP has no answer for the nothing that stands behind the end.
            if self.size(name) == start:
                return ObjectRange(b"", start)
            raise
        return ObjectRange(bytes(data), None)

    @override
    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    @override
    def files(self, prefix: str) -> Sequence[str]:
        if not _has_own_find(self._fs):
            return self._listed_by_level(prefix)
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return self._names(cast("list[str]", self._fs.find(self._directory(prefix))), prefix)
        return []

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        directory = self._directory(prefix)
        with suppress(FileNotFoundError, NotADirectoryError):
            return _folders(self._entries(directory), directory)
        return []

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        return ()  # what an unfinished write leaves is the filesystem's

    def _listed_by_level(self, prefix: str) -> Sequence[str]:
        """List one directory after the other: fsspec's own `find` takes one that cannot be for empty."""
        waiting = [self._directory(prefix)]
        paths: list[str] = []
        while waiting:
            directory = waiting.pop()
            # It has gone meanwhile, was never there, or lies below a file.
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in self._entries(directory):
                    name = str(entry["name"])
                    if name.rstrip("/") == directory:
                        continue  # itself, or a file of that name
                    if entry["type"] == "directory":
                        waiting.append(name)
                    else:
                        paths.append(name)
        return self._names(paths, prefix)

    def _directory(self, prefix: str) -> str:
        return self._path(prefix.rpartition("/")[0]).rstrip("/") or "/"

    def _names(self, paths: Sequence[str], prefix: str) -> Sequence[str]:
        names = [path.removeprefix(f"{self._root}/") for path in paths]
        return [name for name in names if name.startswith(prefix)]

    def _entries(self, directory: str) -> Sequence[Mapping[str, Any]]:
        self._fs.invalidate_cache()
        return cast("Sequence[Mapping[str, Any]]", self._fs.ls(directory, detail=True))

    def _is_generic(self) -> bool:
        """Return whether the filesystem has no way of its own to write a small file."""
        return getattr(self._fs.pipe_file, "__func__", None) is _generic_pipe_file

    def _create(self, path: str, data: bytes) -> None:
        if self._is_generic():
            msg = f"no atomic create on this kind of filesystem: kind={type(self._fs).__name__}"
            raise ConfigError(msg)
        self._fs.pipe_file(path, data, mode="create")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class RenamingClient(FsspecClient):
    """Files on HDFS, by WebHDFS: a blob is written under a temporary name and then renamed.

    The rename fails if the name is taken, so a blob is there whole or not at all, and of racing
    creates one succeeds. What a crash leaves has a temporary name and is no blob. Directories below
    the root go with the last file in them.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        root: str,
        shown_root: str = "",
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        super().__init__(filesystem, root, shown_root)
        self._new_uid = new_uid
        # Clients over HTTP share a session of requests, which by default waits without a limit.
        session = getattr(self._fs, "session", None)
        if session is not None:
            session.request = partial(session.request, timeout=_ANSWER_S)
            # With this one WebHDFS reads a DataNode's answer, without a look at its status.
            session.get = partial(_get, session.request)

    @override
    def reach(self) -> None:
        with explained_java_errors(self._root):
            super().reach()

    @override
    def _entries(self, directory: str) -> Sequence[Mapping[str, Any]]:
        with explained_java_errors(self._root):
            return super()._entries(directory)

    @override
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        target = self._path(name)
        temporary = temporary_path(target, self._new_uid())
        with explained_java_errors(self._root):
            if if_absent and self._fs.exists(target):
                raise FileExistsError(name)
            try:
                self._write(temporary, content)
                self._rename(temporary, target)
                if if_absent:
                    self._check_won(name, content)
            except BaseException as exc:
                with suppress(OSError, RuntimeError):
                    self._delete(temporary)
                # Without if_absent a name is used by one writer: it was here before, and its
                # answer was lost.
                is_ours = isinstance(exc, FileExistsError) and not if_absent
                if not (is_ours and int(self._fs.info(target)["size"]) == _size(content)):
                    raise

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        with explained_java_errors(self._root), self._fs.open(self._path(name), "rb") as file:
            if start:
                file.seek(start)
            size = int(file.size)
            expected = max(min(length, size - start), 0)
            data = bytes(file.read(expected)) if expected else b""
        # Over HTTP, what a DataNode says instead of the bytes comes in their place.
        if len(data) != expected:
            msg = f"short read: name={name} expected_bytes={expected} actual_bytes={len(data)}"
            raise RetriableError(msg)
        return ObjectRange(data, size)

    @override
    def delete(self, name: str) -> None:
        with explained_java_errors(self._root):
            self._delete(self._path(name))

    @override
    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        return FileClient.unfinished(self, prefix)

    @override
    def files(self, prefix: str) -> Sequence[str]:
        with explained_java_errors(self._root):
            return self._listed_by_level(prefix)

    def _delete(self, path: str) -> None:
        """Delete a file, and the directories that are empty by that, up to the root."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)
        directory = path.rpartition("/")[0]
        with suppress(
            OSError, RuntimeError
        ):  # whatever is wrong with a directory, the file is gone
            while directory.rstrip("/") != self._root and not self._entries(directory):
                self._fs.rm(directory)  # refused if it is filled by now
                directory = directory.rpartition("/")[0]

    def _write(self, path: str, content: bytes | Path) -> None:
        """Write a new file, and let the filesystem confirm its size."""
        with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
            file = self._fs.open(path, "wb")
            with explained_sweep(path):
                try:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
                    file.close()
                except BaseException:
                    # After a DataNode was lost, the client's close may wait without end; and the
                    # garbage collector calls it too.
                    file.close = _do_nothing
                    raise
                written = int(self._fs.info(path)["size"])
        size = _size(content)
        if written != size:
            msg = f"short write: path={path} expected_bytes={size} actual_bytes={written}"
            raise RetriableError(msg)

    def _rename(self, temporary: str, target: str) -> None:
        with suppress(FileNotFoundError):  # the temporary file was swept: found out below
            self._fs.mv(temporary, target)
        # Over HTTP the client does not pass on the answer of a rename that was refused.
        if self._is_there(temporary):
            raise FileExistsError(target)
        if not self._is_there(target):
            raise RetriableError(f"the temporary file is gone: path={temporary}")

    def _check_won(self, name: str, content: bytes | Path) -> None:
        """Look whose blob has the name: a sweep takes a temporary file as a rename does.

        Raises:
            FileExistsError: Another's.
        """
        # What is created is small: log records, not files of a store.
        created = content if isinstance(content, bytes) else content.read_bytes()
        try:
            found = self.read(name, 0, len(created) + 1).data
        except FileNotFoundError as exc:
            raise RetriableError(f"the blob is gone: name={name}") from exc
        if found != created:
            raise FileExistsError(name)

    def _is_there(self, path: str) -> bool:
        """Return whether there is a file; unlike ``exists``, an unreachable server raises."""
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True


def _folders(entries: Iterable[Mapping[str, Any]], directory: str) -> Sequence[str]:
    """Return the names of what is a directory and not the listed one, which some stores list too."""
    names = (str(entry["name"]).rstrip("/") for entry in entries if entry["type"] == "directory")
    return [name.rpartition("/")[2] for name in names if name != directory]


def _has_own_find(filesystem: object) -> bool:
    """Return whether a filesystem lists in a way of its own: object stores do, in one request."""
    kind = cast("Any", type(filesystem))
    if isinstance(filesystem, AsyncFileSystem):
        return kind._find is not _generic_async_find  # noqa: SLF001  # what `find` is made of
    return kind.find is not _generic_find


def _get(request: Callable[..., Any], url: str, **kwargs: object) -> object:
    """Return an answer that is no error.

    Raises:
        RetriableError: The server answers with an error, of whatever kind: what it means for the
            file, the NameNode answers at the next try.
    """
    answer = request("GET", url, **kwargs)
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        # The URL may hold a token.
        raise RetriableError(f"a DataNode did not answer: status={answer.status_code}")
    return answer


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _do_nothing() -> None:
    """Stand in for the close of a file that was given up."""

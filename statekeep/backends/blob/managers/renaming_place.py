"""Blobs on a filesystem that renames atomically and never onto a name that is taken: HDFS."""

import io
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, cast

from fsspec.spec import AbstractFileSystem  # type: ignore[import-untyped]  # it ships no types
from typing_extensions import override

from statekeep.backends.blob.managers.hadoop_errors import told_if_swept, told_java_errors
from statekeep.backends.blob.managers.remote_place import RemotePlace
from statekeep.backends.blob.names import temporary_path, unfinished_name
from statekeep.checkpoint.log_session import random_nonce
from statekeep.errors import RetriableError

_PROTOCOLS: Final = frozenset({"hdfs", "viewfs", "webhdfs"})
_COPY_BYTES: Final = 1 << 20
_ANSWER_S: Final = 120.0
"""How long an HTTP server may be silent: as long as a DataNode may (`hdfs_client`)."""


def renames_atomically(filesystem: AbstractFileSystem) -> bool:
    """Return whether a filesystem is one of those that `RenamingPlace` is for."""
    protocol = cast("Any", filesystem).protocol
    names: Sequence[str] = (protocol,) if isinstance(protocol, str) else protocol
    return not _PROTOCOLS.isdisjoint(names)


class RenamingPlace(RemotePlace):
    """A `Place` on HDFS: a blob is written under a temporary name and then renamed.

    The rename fails if the name is taken, so a blob is there whole or not at all, and of racing
    creates one succeeds. What a crash leaves has a temporary name and is no blob. Directories below
    the root go with the last file in them.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        root: str,
        *,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        super().__init__(filesystem, root)
        self._new_uid = new_uid
        # Clients over HTTP share a session of requests, which waits for ever where it is not told.
        session = getattr(self._fs, "session", None)
        if session is not None:
            session.request = partial(session.request, timeout=_ANSWER_S)
            # With this one WebHDFS reads a DataNode's answer, without a look at its status.
            session.get = partial(_get, session.request)

    @override
    def check(self) -> None:
        with told_java_errors(self._root):
            super().check()

    @override
    def put(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        target = self._path(name)
        temporary = temporary_path(target, self._new_uid())
        with told_java_errors(self._root):
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
    def size(self, name: str) -> int:
        with told_java_errors(self._root):
            return super().size(name)

    @override
    def read(self, name: str, start: int, end: int | None) -> bytes:
        with told_java_errors(self._root), self._fs.open(self._path(name), "rb") as file:
            if start:
                file.seek(start)
            size = int(file.size)
            expected = max((size if end is None else min(end, size)) - start, 0)
            data = bytes(file.read(expected)) if expected else b""
        # Over HTTP, what a DataNode says instead of the bytes comes in their place.
        if len(data) != expected:
            msg = f"short read: name={name} expected_bytes={expected} actual_bytes={len(data)}"
            raise RetriableError(msg)
        return data

    @override
    def delete(self, name: str) -> None:
        with told_java_errors(self._root):
            self._delete(self._path(name))

    @override
    def list(self, prefix: str) -> Sequence[str]:
        names = self._files(prefix)
        return [name for name in names if unfinished_name(name) is None]

    @override
    def remove_unfinished(self, prefix: str, is_closed: Callable[[str], bool]) -> None:
        for name in self._files(prefix):
            blob = unfinished_name(name)
            if blob is not None and is_closed(blob):
                self.delete(name)

    def _files(self, prefix: str) -> Sequence[str]:
        with told_java_errors(self._root):
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
            with told_if_swept(path):
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
        # Over HTTP a rename that was refused is told by an answer that the client does not pass on.
        if self._is_there(temporary):
            raise FileExistsError(target)
        if not self._is_there(target):
            raise RetriableError(f"the temporary file is gone: path={temporary}")

    def _check_won(self, name: str, content: bytes | Path) -> None:
        """Look whose blob has the name: a sweep takes a temporary file as a rename does.

        Raises:
            FileExistsError: Another's.
        """
        try:
            found = self.read(name, 0, None)
        except FileNotFoundError as exc:
            raise RetriableError(f"the blob is gone: name={name}") from exc
        # What is created is small: log records, not files of a store.
        if found != (content if isinstance(content, bytes) else content.read_bytes()):
            raise FileExistsError(name)

    def _is_there(self, path: str) -> bool:
        """Return whether there is a file; unlike ``exists`` not False where nobody answers."""
        try:
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True


def _get(request: Callable[..., Any], url: str, **kwargs: object) -> object:
    """Return an answer that is no error.

    Raises:
        RetriableError: The server answers with an error, of whatever kind: what it means for the
            file, the NameNode tells who asks again.
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

"""Blobs as files of the local filesystem, durable and whole."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from typing_extensions import override

from statekeep.backends.storage.client import FileClient, ObjectRange
from statekeep.backends.storage.names import temporary_path
from statekeep.checkpoint.log_session import random_nonce
from statekeep.stores.local_files import open_regular, private_opener, sync_directory

_COPY_BYTES: Final = 1 << 20
_MAX_TRIES: Final = 100
"""Of a put whose directory other deletes keep removing; each has to come at one exact moment."""
_OPEN_FILES: Final = Path("/proc/self/fd")
_SHARED_FILE: Final = 0o660
_SHARED_DIRECTORY: Final = 0o2770
_NO_UNNAMED_FILES: Final = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.EPERM}
"""Answers on which a named file is tried. EPERM is ext4's where the directory was removed in the
middle of the call: the named file then fails with what is true of the directory by now."""


class LocalClient(FileClient):
    """Files below one directory.

    A blob is written to a file of its own directory that has no name yet, synced, then linked
    (which fails if the name is taken), and the directory is synced: after a crash at any point the
    blob is there whole or not at all, and nothing else is. Where the filesystem has no unnamed
    files (NFS) a temporary name stands in. Directories that a delete leaves empty are removed.

    What is made here is for this user alone, unless the root is shared with its group
    (``chmod 2770``).
    """

    def __init__(
        self,
        root: Path,
        *,
        shown_root: str | None = None,
        new_uid: Callable[[], str] = random_nonce,
    ) -> None:
        super().__init__(str(root) if shown_root is None else shown_root)
        self._root = root
        self._new_uid = new_uid

    @override
    def reach(self) -> None:
        self._make_directories(self._root)
        with os.scandir(self._root):
            pass

    @override
    def write(self, name: str, content: bytes | Path, *, if_absent: bool) -> None:
        target = self._root / name
        if if_absent and target.exists():
            raise FileExistsError(name)
        for _ in range(_MAX_TRIES):
            try:
                self._put_once(target, content, if_absent=if_absent)
            except FileNotFoundError:
                if isinstance(content, Path) and not content.exists():
                    raise
                continue  # a delete has removed the directory, which was still empty
            return
        raise FileNotFoundError(target.parent)

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        with open_regular(self._root / name) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            # Never more than there is: memory for all that is asked for is taken at once.
            return ObjectRange(file.read(max(min(length, size - start), 0)), size)

    @override
    def delete(self, name: str) -> None:
        path = self._root / name
        path.unlink(missing_ok=True)
        for directory in path.parents:
            if directory == self._root:
                break
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # not empty: whatever else is wrong with it, the blob is gone
                break

    @override
    def list_folders(self, prefix: str) -> Sequence[str]:
        try:
            return [path.name for path in (self._root / prefix).iterdir() if path.is_dir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    @override
    def files(self, prefix: str) -> Sequence[str]:
        directory = self._root / prefix.rpartition("/")[0]
        names = (path.relative_to(self._root).as_posix() for path in _files_below(directory))
        return [name for name in names if name.startswith(prefix)]

    def _put_once(self, target: Path, content: bytes | Path, *, if_absent: bool) -> None:
        self._make_directories(target.parent)
        with self._temporary(target) as (file, path):
            if self._is_shared():
                os.fchmod(file.fileno(), _SHARED_FILE)
            _write(file, content)
            try:
                _link(file, path, target)
            except FileExistsError:
                if if_absent:
                    raise
                # A put that is repeated after an unclear answer.
                beside = self._temporary_path(target)
                _link(file, path, beside)
                beside.replace(target)
        sync_directory(target.parent)

    @contextmanager
    def _temporary(self, target: Path) -> Generator[tuple[BinaryIO, Path]]:
        """Open a new file beside ``target`` and give the path to link it by; it is gone after."""
        unnamed = _open_unnamed(target.parent)
        if unnamed is not None:
            with unnamed:
                yield unnamed, _OPEN_FILES / str(unnamed.fileno())
            return
        path = self._temporary_path(target)
        with open(path, "xb", opener=private_opener) as file:
            try:
                yield file, path
            finally:
                path.unlink(missing_ok=True)

    def _make_directories(self, directory: Path) -> None:
        """Create a directory and what is missing above it, durably."""
        is_shared = self._is_shared()
        missing: list[Path] = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            # Not by exist_ok, which calls a directory that goes at the same moment a file in the way.
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                if is_shared:
                    path.chmod(_SHARED_DIRECTORY)
            sync_directory(path.parent)

    def _is_shared(self) -> bool:
        """Return whether others of the root's group may read and write here, by its mode."""
        try:
            mode = self._root.stat().st_mode
        except FileNotFoundError:
            return False
        return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP)

    def _temporary_path(self, target: Path) -> Path:
        return Path(temporary_path(str(target), self._new_uid()))


def _open_unnamed(directory: Path) -> BinaryIO | None:
    """Open a new file that has no name; None where the filesystem or system has no such thing."""
    if not _OPEN_FILES.exists():
        return None
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as exc:
        if exc.errno in _NO_UNNAMED_FILES:
            return None
        raise
    return os.fdopen(descriptor, "wb")


def _link(file: BinaryIO, path: Path, target: Path) -> None:
    # With a directory given, though an absolute path takes no notice of it, the system call follows
    # the link in /proc that leads to a file without a name.
    os.link(path, target, src_dir_fd=file.fileno(), follow_symlinks=True)


def _write(file: BinaryIO, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        file.write(content)
    else:
        with content.open("rb") as source:
            shutil.copyfileobj(source, file, _COPY_BYTES)
    file.flush()
    os.fsync(file.fileno())


def _files_below(directory: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        # A directory that went since its parent was read has no files; any other error would make
        # the listing silently incomplete.
        # Nothing can lie below what was asked for, if its name is too long or a file has it.
        is_no_directory = error.errno in {
            errno.ENAMETOOLONG,
            errno.ENOTDIR,
        } and error.filename == os.fspath(directory)
        if not isinstance(error, FileNotFoundError) and not is_no_directory:
            raise error

    for parent, _, files in os.walk(directory, onerror=refuse):
        for file in files:
            yield Path(parent, file)

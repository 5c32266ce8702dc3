"""Files on the local disk: errors that name the setting, hard-link clones, durable replacement.

Every function blocks. Nothing here calls fsync but `replace_durably` and `sync_directory`: a version that is not
committed need not survive power loss.
"""

import errno
import os
import shutil
import stat
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from statekeep.errors import (
    CheckpointCorruptError,
    ConfigError,
    StateBackupError,
    VersionDamagedError,
)

LOCAL_DIR_KEY: Final = "job.logged.store.base.dir"
"""The setting that says where local state lives."""
IMMUTABLE_SUFFIXES: Final = frozenset({".sst", ".blob", ".delta"})
"""Files that no store ever writes to again once they are closed: shared by hard link."""

_REASONS: Final = {
    errno.ENOSPC: "the local disk is full",
    errno.EDQUOT: "the quota of the local disk is used up",
    errno.EFBIG: "a local file may not grow any more",
    errno.EACCES: "the local directory is not writable",
    errno.EPERM: "the local directory is not writable",
    errno.EROFS: "the local directory is on a read-only file system",
    errno.ENOTDIR: "a part of the local directory's path is not a directory",
}
_CHUNK_BYTES: Final = 1 << 20
_MAX_DOCUMENT_BYTES: Final = 64 << 20
"""As of what backends keep: a seal manifest has a line for each file."""


@contextmanager
def explained_errors(directory: Path) -> Generator[None]:
    """Turn what the operating system says about a full or closed disk into a `ConfigError`.

    Any other error passes unchanged.

    Raises:
        ConfigError: The disk is full, or the directory cannot be written. Names the directory and
            the setting `LOCAL_DIR_KEY`.
    """
    try:
        yield
    except OSError as exc:
        reason = _REASONS.get(exc.errno or 0)
        if reason is None:
            raise
        raise disk_error(reason, directory) from exc


def disk_error(reason: str, directory: Path) -> StateBackupError:
    """Return the error for a local disk that is full or closed to us."""
    return ConfigError(
        f"{reason}: directory={directory} setting={LOCAL_DIR_KEY}",
        key=LOCAL_DIR_KEY,
        hint=f"make room there, or set {LOCAL_DIR_KEY} to a directory that can be written",
    )


def is_part_of_image(name: str) -> bool:
    """Tell the files of a RocksDB image from what an open database has beside them."""
    return name != "LOCK" and not name.startswith("LOG")


def image_directories(root: Path) -> list[PurePosixPath]:
    """Return the directories of an image, relative to it: an empty one is in no manifest."""
    return [
        PurePosixPath(Path(parent, name).relative_to(root))
        for parent, names, _ in os.walk(root)
        for name in names
    ]


def clone_image(source: Path, target: Path) -> None:
    """Make ``target`` a directory with the image in ``source``, independent of it.

    Files of `IMMUTABLE_SUFFIXES` are shared by hard link, the others (small ones) are copied: a
    store opened on the clone never changes a byte under ``source``. Both lie on one file system.

    Args:
        source: The image; it is not written to.
        target: Does not exist yet; its parent may not either.

    Raises:
        VersionDamagedError: What is in ``source`` is not all files.
    """
    target.mkdir(parents=True)
    with os.scandir(source) as entries:
        for entry in entries:
            if not is_part_of_image(entry.name):
                continue
            if not entry.is_file(follow_symlinks=False):
                raise VersionDamagedError(
                    f"image has an entry that is not a regular file: path={entry.path}"
                )
            if Path(entry.name).suffix in IMMUTABLE_SUFFIXES:
                os.link(entry.path, target / entry.name)
            else:
                shutil.copyfile(entry.path, target / entry.name)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read, and nothing else that may have its name: a pipe would never answer.

    Raises:
        FileNotFoundError: There is no file.
    """
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return file


def read_document(path: Path) -> bytes:
    """Return the bytes of a small file that may be another's than we wrote, within a bound.

    Raises:
        FileNotFoundError: There is no file.
        CheckpointCorruptError: It is larger than what we write.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_DOCUMENT_BYTES:
            raise CheckpointCorruptError(
                f"file is larger than it may be: path={path} bytes={size} "
                f"max_bytes={_MAX_DOCUMENT_BYTES}"
            )
        return file.read(size)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def crc32_of(path: Path) -> int:
    """Return the CRC-32 of a file's bytes, with bounded memory."""
    crc = 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def private_opener(path: str, flags: int) -> int:
    """Open a file for the built-in `open`: new ones for this user alone, links not at all."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def open_temporary(path: Path) -> BinaryIO:
    """Make and open a file that is to be renamed; what a crash has left under its name goes."""
    path.unlink(missing_ok=True)
    return open(path, "xb", opener=private_opener)


def replace_durably(path: Path, data: bytes) -> None:
    """Put ``data`` in place of ``path``: whole or not at all, also after power loss."""
    temporary = path.with_name(f"{path.name}.tmp")
    with open_temporary(temporary) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(directory: Path) -> None:
    """Remove a directory and what is in it; what another process has just removed is no error."""

    def ignore_missing(
        _function: object, _path: str, error: tuple[type, BaseException, object]
    ) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    shutil.rmtree(directory, onerror=ignore_missing)

"""Reading a store's image from a sealed version; every function here blocks, on the local disk."""

import hashlib
import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from statekeep.backends.blob.diff import LocalDir, LocalFile, local_tree
from statekeep.backends.blob.index import FileMetadata
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import VersionDamagedError
from statekeep.stores.local_files import open_regular
from statekeep.stores.version import SealedVersion

_CHUNK_BYTES: Final = 1 << 20


def read_image(version: SealedVersion, store: StoreName) -> LocalDir:
    """Return the tree of a store's image: files as the seal manifest has them, all directories.

    No file is read: sizes and checksums are the manifest's.
    """
    root = version.store_directory(store)
    files = [
        LocalFile(PurePosixPath(entry.path), entry.size, entry.crc32)
        for entry in version.store_files(store)
    ]
    return local_tree(files, image_directories(root))


def image_directories(root: Path) -> list[PurePosixPath]:
    """Return the directories of an image, relative to it: an empty one is in no manifest."""
    return [
        PurePosixPath(Path(parent, name).relative_to(root))
        for parent, names, _ in os.walk(root)
        for name in names
    ]


@dataclass(frozen=True, slots=True)
class FileDigests:
    """What one pass over a file's bytes gives."""

    size: int
    """Bytes."""
    crc32: int
    """Unsigned."""
    sha256: str
    """Hex."""


def digest_file(path: Path) -> FileDigests:
    """Read a file once, with bounded memory."""
    size, crc32, sha256 = 0, 0, hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
            sha256.update(chunk)
    return FileDigests(size, crc32, sha256.hexdigest())


def digest_bytes(data: bytes) -> FileDigests:
    """Return the digests of what would be a file of these bytes."""
    return FileDigests(len(data), zlib.crc32(data), hashlib.sha256(data).hexdigest())


class DigestRun:
    """The digests of bytes that are taken in one piece after the other."""

    def __init__(self) -> None:
        self._size = 0
        self._crc32 = 0
        self._sha256 = hashlib.sha256()

    def update(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._size += len(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        self._sha256.update(data)

    @property
    def digests(self) -> FileDigests:
        """Of all bytes so far."""
        return FileDigests(self._size, self._crc32, self._sha256.hexdigest())


def digest_sealed_file(path: Path, sealed: LocalFile) -> FileDigests:
    """Read a file of a sealed version and compare it with the seal manifest.

    Raises:
        VersionDamagedError: It is gone or no longer what was sealed: it must not become a backup.
    """
    try:
        size = path.stat().st_size
        if size != sealed.size:
            raise VersionDamagedError(
                f"a file differs from the seal manifest: path={path} "
                f"expected_bytes={sealed.size} actual_bytes={size}"
            )
        digests = digest_file(path)
    except FileNotFoundError as exc:
        raise gone(path) from exc
    check_sealed(path, sealed, digests)
    return digests


def read_sealed_file(path: Path, sealed: LocalFile) -> tuple[bytes, FileDigests]:
    """Return the bytes of a small file of a sealed version, compared with the seal manifest.

    Raises:
        VersionDamagedError: As of `digest_sealed_file`.
    """
    try:
        with open_regular(path) as file:
            # One byte more than it was sealed with tells that it has grown.
            data = file.read(sealed.size + 1)
    except FileNotFoundError as exc:
        raise gone(path) from exc
    digests = digest_bytes(data)
    check_sealed(path, sealed, digests)
    return data, digests


def check_sealed(path: Path, sealed: LocalFile, digests: FileDigests) -> None:
    """Compare what was read of a file with the seal manifest.

    Raises:
        VersionDamagedError: It is not what was sealed.
    """
    if (digests.size, digests.crc32) != (sealed.size, sealed.crc32):
        msg = (
            f"a file differs from the seal manifest: path={path} "
            f"expected_bytes={sealed.size} actual_bytes={digests.size} "
            f"expected_crc32={sealed.crc32:08x} actual_crc32={digests.crc32:08x}"
        )
        raise VersionDamagedError(msg)


def gone(path: Path) -> VersionDamagedError:
    """Return the error of a file that a sealed version has lost."""
    return VersionDamagedError(f"a file of the sealed version is gone: path={path}")


def file_metadata(path: Path) -> FileMetadata:
    """Return what the file system says of a file, in Samza's words."""
    status = path.stat()
    return FileMetadata(
        creation_time_millis=status.st_ctime_ns // 1_000_000,
        last_modified_time_millis=status.st_mtime_ns // 1_000_000,
        size=status.st_size,
        owner=str(status.st_uid),
        group=str(status.st_gid),
        permissions=stat.filemode(status.st_mode)[1:],
    )

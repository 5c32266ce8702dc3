"""What a sealed version has to be uploaded, images and changes; every function here blocks, on the local disk."""

import hashlib
import io
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from statekeep.backends.blob.diff import LocalDir, LocalFile, local_tree
from statekeep.backends.blob.index import FileMetadata
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.stores.delta import DeltaHeader, DeltaReader, DeltaWriter
from statekeep.stores.local_files import image_directories, open_regular
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


_MERGE_BYTES: Final = 4 << 20
"""Deltas up to this size together become one blob, in memory: a thread takes some 15 MB meanwhile."""


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """What becomes one blob."""

    parent: str
    version: str
    content: Path | bytes
    """The file, or the bytes."""
    digests: FileDigests


def sealed_files(version: SealedVersion, paths: Sequence[Path]) -> Sequence[LocalFile]:
    """Return files of a version as its seal manifest has them; reads no file.

    The paths are relative to the version's directory.
    """
    sealed = {version.directory / entry.path: entry for entry in version.manifest.files}
    return [
        LocalFile(PurePosixPath(entry.path), entry.size, entry.crc32)
        for entry in (sealed[path] for path in paths)
    ]


def merged_bytes(files: Sequence[LocalFile]) -> int:
    """Return the bytes of deltas that `pack_deltas` makes one of, in memory; 0: it leaves them as they are."""
    total = sum(file.size for file in files)
    return total if len(files) > 1 and total <= _MERGE_BYTES else 0


def pack_deltas(
    version: SealedVersion, store: StoreName, files: Sequence[LocalFile]
) -> Sequence[PackedDelta]:
    """Check deltas against the seal manifest, and merge many small ones into one.

    Args:
        version: Where they lie.
        store: Of which store.
        files: As `sealed_files` returned them.

    Raises:
        VersionDamagedError: One is gone or not what was sealed: it must not become a backup.
    """
    if merged_bytes(files):
        return [_merge(version, store, files)]
    return [_check(version, file) for file in files]


def _check(version: SealedVersion, file: LocalFile) -> PackedDelta:
    path = version.directory / file.path
    digests = digest_sealed_file(path, file)
    try:
        with open_regular(path) as source:
            header = DeltaReader(source, where=f"path={path}").header
    except CheckpointCorruptError as exc:
        raise VersionDamagedError(f"delta of a version is damaged: path={path}") from exc
    return PackedDelta(header.parent, header.version, path, digests)


def _merge(version: SealedVersion, store: StoreName, files: Sequence[LocalFile]) -> PackedDelta:
    """Return the last value of every key, from all deltas, as one."""
    changes: dict[bytes, bytes | None] = {}
    parent = ""
    for file in files:
        path = version.directory / file.path
        try:
            with open_regular(path) as source:
                reader = DeltaReader(source, where=f"path={path}")
                parent = parent or reader.header.parent
                for block in reader.blocks():
                    changes.update(block)
        except FileNotFoundError as exc:
            raise VersionDamagedError(f"delta of a version is gone: path={path}") from exc
        except CheckpointCorruptError as exc:
            raise VersionDamagedError(f"delta of a version is damaged: path={path}") from exc
    target = io.BytesIO()
    header = DeltaHeader(version=str(version.id), parent=parent, store=store)
    writer = DeltaWriter(target, header)
    writer.write(changes)
    writer.finish()
    content = target.getvalue()
    return PackedDelta(header.parent, header.version, content, digest_bytes(content))

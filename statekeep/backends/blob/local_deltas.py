"""The changes of a sealed version, made ready to be blobs; every function here blocks, on the disk."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from statekeep.backends.blob.diff import LocalFile
from statekeep.backends.blob.image import FileDigests, digest_bytes, digest_sealed_file
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.version_id import VersionId
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.stores.delta import DeltaHeader, DeltaReader, DeltaWriter
from statekeep.stores.local_files import open_regular
from statekeep.stores.version import SealedVersion

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


def changes_since(
    version: SealedVersion, store: StoreName, base: VersionId
) -> Sequence[LocalFile] | None:
    """Return the delta files that lead from ``base`` to a version, as its seal manifest has them.

    Reads no file. The paths are relative to the version's directory.

    Returns:
        None where ``base`` is no ancestor or a delta is missing.
    """
    paths = version.changes_since(store, base)
    if paths is None:
        return None
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
        files: As `changes_since` returned them.

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

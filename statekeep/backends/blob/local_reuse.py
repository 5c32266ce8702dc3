"""Finding what local versions have of a snapshot: whole stores by version, files byte for byte."""

import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from statekeep.backends.blob.image import digest_file
from statekeep.backends.blob.index import DeltaBlob, FileIndex, SnapshotIndex
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.local_files import (
    IMMUTABLE_SUFFIXES,
    clone_image,
    crc32_of,
    remove_tree,
)
from statekeep.stores.version import FileEntry, SealedVersion

logger = logging.getLogger(__name__)


class LocalCopies:
    """The files of one store in local versions, by what their seal manifests say of them.

    A version without the store offers nothing. No file is read.
    """

    def __init__(self, versions: Sequence[SealedVersion], store: StoreName) -> None:
        self._paths: dict[tuple[int, int], list[Path]] = {}
        for version in versions:
            root = version.store_directory(store)
            for entry in version.store_files(store):
                self._paths.setdefault((entry.size, entry.crc32), []).append(root / entry.path)

    def candidates(self, file: FileIndex) -> Sequence[Path]:
        """Return the files that have the size and CRC32 of ``file``: not yet a proof."""
        if file.sha256 is None:
            return ()
        return self._paths.get((file.size, file.checksum), ())


def link_equal_file(
    candidates: Sequence[Path], file: FileIndex, target: Path, is_cancelled: threading.Event
) -> bool:
    """Take over the first candidate whose bytes have the sha-256 of ``file``; blocks.

    By hard link where no engine ever writes to such a file, else by copy: a store may be opened on
    the restored image before it is sealed.

    Args:
        candidates: Files that may be equal.
        file: What they are compared with.
        target: Does not exist yet.
        is_cancelled: Ends it before the next candidate; for a file that is no longer needed.

    Returns:
        Whether ``target`` is there now. False also where the candidate was swept meanwhile or lies
        on another file system: the caller downloads it.
    """
    for path in candidates:
        if is_cancelled.is_set():
            return False
        try:
            if digest_file(path).sha256 == file.sha256:
                if path.suffix in IMMUTABLE_SUFFIXES:
                    os.link(path, target)
                else:
                    shutil.copyfile(path, target)
                return True
        except OSError as exc:
            logger.warning("local file is not used again: path=%s error=%s", path, exc)
    return False


def clone_newest(
    versions: Sequence[SealedVersion], store: StoreName, index: SnapshotIndex, target: Path
) -> Sequence[DeltaBlob] | None:
    """Make ``target`` a clone of the newest local version that the deltas of a snapshot pass; blocks.

    A version's name is drawn once, so one of that name has that content once its own seal manifest
    is proven, whatever its files are called.

    Args:
        versions: Local ones.
        store: Whose image is wanted.
        index: Of the snapshot.
        target: Does not exist yet, nor does it if nothing was found.

    Returns:
        The deltas that are still to be applied; None where there is no such version.
    """
    here = {str(version.id): version for version in versions if version.store_files(store)}
    for count in range(len(index.deltas), 0, -1):
        version = here.get(index.deltas[count - 1].version)
        if version is not None and _clone_proven(version, store, target):
            return index.deltas[count:]
    return None


def _clone_proven(version: SealedVersion, store: StoreName, target: Path) -> bool:
    source = version.store_directory(store)
    try:
        clone_image(source, target)
        if all(_is_sealed(target / entry.path, entry) for entry in version.store_files(store)):
            return True
        logger.warning("damaged local version is not used again: path=%s", source)
    except OSError as exc:
        logger.warning("local version is not used again: path=%s error=%s", source, exc)
    if target.exists():
        remove_tree(target)
    return False


def _is_sealed(path: Path, entry: FileEntry) -> bool:
    return path.stat().st_size == entry.size and crc32_of(path) == entry.crc32

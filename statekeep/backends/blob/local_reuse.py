"""Finding files of local versions that are, byte for byte, files of a snapshot."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from statekeep.backends.blob.image import digest_file
from statekeep.backends.blob.index import FileIndex
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.version import SealedVersion

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


def link_equal_file(candidates: Sequence[Path], file: FileIndex, target: Path) -> bool:
    """Hard-link the first candidate whose bytes have the sha-256 of ``file``; blocks.

    Returns:
        Whether ``target`` is there now. False also where the candidate was swept meanwhile or lies
        on another file system: the caller downloads it.
    """
    for path in candidates:
        try:
            if digest_file(path).sha256 == file.sha256:
                os.link(path, target)
                return True
        except OSError as exc:
            logger.warning("local file is not used again: path=%s error=%s", path, exc)
    return False

"""Temporary directories that a later process sweeps if the one that made them was killed."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statekeep.stores.local_files import remove_tree
from statekeep.stores.locks import OwnerLock, has_living_owner

_LOCK_FILE: Final = ".owner"
"""Beside the content: locked by the owner as long as it lives."""


@contextmanager
def temporary_directory(prefix: str, root: Path | None = None) -> Generator[Path]:
    """Make a directory that is gone after the block, and sweep what dead owners left.

    Blocks.

    Args:
        prefix: Begins the name; directories with this prefix are swept, of this user alone.
        root: Where to make it; None: where temporary files go.
    """
    parent = Path(tempfile.gettempdir()) if root is None else root
    sweep_temporary(prefix, parent)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    # Locked before it has its name: a sweep in between would find no owner.
    lock = OwnerLock(directory / f"{_LOCK_FILE}.new")
    (directory / f"{_LOCK_FILE}.new").rename(directory / _LOCK_FILE)
    content = directory / "content"
    content.mkdir()
    try:
        yield content
    finally:
        remove_tree(directory)
        lock.release()


def sweep_temporary(prefix: str, parent: Path) -> None:
    """Remove what dead owners of this user have left below ``parent``, which need not be there. Blocks."""
    # Without a lock file: another program's, or one that is just being made.
    for lock in parent.glob(f"{prefix}*/{_LOCK_FILE}"):
        try:
            is_ours = lock.parent.lstat().st_uid == os.getuid()
        except FileNotFoundError:  # its owner is just removing it
            continue
        if is_ours and not has_living_owner(lock):
            remove_tree(lock.parent)

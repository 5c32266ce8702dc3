"""Directories of this user alone, below one that other users may write to as well.

Another user may have been there first: whatever is in the place of a directory of ours is looked at
before it is used, and without following a link. Every function blocks.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from statekeep.errors import ConfigError
from statekeep.stores.local_files import LOCAL_DIR_KEY

logger = logging.getLogger(__name__)

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private(base: Path, *names: str) -> Path:
    """Make the directories ``names``, one in the other, below ``base``; return the last one.

    Each of them is made for this user alone, or made so if it is this user's already. The base may
    be shared by several users, such as ``/tmp``.

    Args:
        base: Made as well where it is missing. Links on the way to it are followed if no other user
            can have made them.
        names: Parts of a path.

    Raises:
        ConfigError: One of them is another user's, or no directory; or other users may rename what
            lies in the base.
    """
    missing = [path for path in (base, *base.parents) if not path.exists()]
    for path in reversed(missing):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    _check_base(base)
    path = base
    for name in names:
        path = path / name
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        _close_to_others(path)
    return path


def is_private(base: Path, *names: str) -> bool:
    """Return whether what `make_private` makes is there, without making it.

    Raises:
        ConfigError: As of `make_private`.
    """
    path = base
    try:
        _check_base(base)
        for name in names:
            path = path / name
            _close_to_others(path)
    except FileNotFoundError:
        return False
    return True


def require_own(directory: Path) -> os.stat_result:
    """Return what a directory is like that must be this user's.

    For one in a directory where no other user can rename it.

    Raises:
        ConfigError: It is another user's, a link or no directory.
        FileNotFoundError: It is not there.
    """
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _foreign(directory, found)
    return found


def _close_to_others(directory: Path) -> None:
    found = require_own(directory)
    if found.st_mode & _OTHERS:
        directory.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
        logger.warning(
            "directory was open to other users, and is closed now: directory=%s mode=%s",
            directory,
            stat.filemode(found.st_mode),
        )


def _check_base(base: Path) -> None:
    """Check that only this user and root can rename what this user makes in ``base``."""
    trusted = {0, os.geteuid()}
    for part in (base, *base.absolute().parents):
        found = part.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in trusted:
            raise _foreign(part, found)
    found = base.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise _foreign(base, found)
    is_open = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
    if is_open and found.st_uid == os.geteuid():
        # Others may go on to write there, but not rename or remove what is not theirs.
        base.chmod(stat.S_IMODE(found.st_mode) | stat.S_ISVTX)
        logger.warning(
            "other users could rename what lies in the local directory; it has the sticky bit now: "
            "directory=%s mode=%s",
            base,
            stat.filemode(found.st_mode),
        )
    elif is_open or found.st_uid not in trusted:
        raise ConfigError(
            f"other users can replace files in the local directory: {_described(base, found)}",
            key=LOCAL_DIR_KEY,
            hint=f"set {LOCAL_DIR_KEY} to a directory of this user, such as one below it",
        )


def _foreign(path: Path, found: os.stat_result) -> ConfigError:
    return ConfigError(
        f"not a directory of this user: {_described(path, found)}",
        key=LOCAL_DIR_KEY,
        hint=f"run the job as the user that has its local state, remove {path} if it is not needed,"
        f" or set {LOCAL_DIR_KEY} and TMPDIR to directories of this user",
    )


def _described(path: Path, found: os.stat_result) -> str:
    return (
        f"directory={path} owner={found.st_uid} mode={stat.filemode(found.st_mode)} "
        f"user={os.geteuid()}"
    )

"""Errors of the local disk, with the directory they are about."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from statekeep.checkpoint.names import escape_name
from statekeep.errors import ConfigError
from statekeep.stores.local_files import LOCAL_DIR_KEY
from statekeep.stores.task_directory import find_local_dir


def require_directory(directory: Path) -> None:
    """Make sure that nothing but a directory stands where the user wants one; it may be missing.

    Raises:
        ConfigError: A file does, or a link that leads nowhere.
    """
    there = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise ConfigError(
            f"not a directory: directory={directory} path={there}", hint="name another one"
        )


def require_apart(directory: Path, local_dir: Path) -> None:
    """Make sure that no job keeps its local state in a directory, around it or below it.

    A job that starts takes the versions it finds there for its own, and removes old ones.

    Args:
        directory: Where the user wants something; it may be missing.
        local_dir: Of the settings.

    Raises:
        ConfigError: One does: by the settings, or by what lies there.
    """
    target, own = directory.resolve(), local_dir.resolve()
    is_near = target.is_relative_to(own) or own.is_relative_to(target)
    found = own if is_near else find_local_dir(target)
    if found is not None:
        raise ConfigError(
            f"jobs keep their local state there: directory={directory} local_dir={found}",
            hint=f"name a directory that is neither inside {found} nor above it",
        )


def require_no_others(directory: Path, job_name: str) -> None:
    """Make sure that a directory has nothing but what a restore of the same job has put there.

    Raises:
        ConfigError: It has.
    """
    found = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    others = [name for name in found if name != escape_name(job_name)]
    if others:
        raise ConfigError(
            f"the directory has other files: directory={directory} first={others[0]}",
            hint="name one that is empty or does not exist yet",
        )


@contextmanager
def explained_disk(directory: Path, remedy: str) -> Generator[None]:
    """Name a directory of this command where a restore would name the job's local one.

    Raises:
        ConfigError: The disk is full, or refuses for another reason; with ``remedy``.
    """
    try:
        yield
    except ConfigError as exc:
        if exc.key != LOCAL_DIR_KEY:
            raise
        raise ConfigError(
            f"the directory cannot be used: directory={directory}", hint=remedy
        ) from exc


@contextmanager
def explained_temporary_files() -> Generator[None]:
    """Name the directory of temporary files, as `explained_disk` does."""
    with explained_disk(
        Path(tempfile.gettempdir()), "make room there, or set TMPDIR to another directory"
    ):
        yield

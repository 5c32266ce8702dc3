"""Locks between the processes that share a task's local directory."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, *, shared: bool) -> Generator[None]:
    """Hold a lock file, created where it is missing; blocks until the lock is free.

    The operating system gives the lock back when its holder dies, however it dies.

    Args:
        path: The lock file. It is never removed: its name may be locked by somebody else.
        shared: Whether others may hold it too, as long as nobody holds it alone.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class OwnerLock:
    """Marks a directory as in use by this process, until `release` or its death.

    A child that is forked while the lock is held holds it as well.
    """

    def __init__(self, path: Path) -> None:
        """Create the lock file and take the lock.

        Raises:
            BlockingIOError: Another process holds it.
        """
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def has_living_owner(path: Path) -> bool:
    """Tell whether some process holds the `OwnerLock` of ``path``; False where there is none."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

"""Locks between the processes that share a task's local directory."""

import fcntl
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statekeep.errors import RetriableError
from statekeep.stores.local_files import private_opener

TIMEOUT_S: Final = 20.0
"""A holder of the lock only does a few renames: after so long it is stopped, not slow."""
_RETRY_S: Final = 0.01


@contextmanager
def locked(path: Path, *, shared: bool, timeout_s: float = TIMEOUT_S) -> Generator[None]:
    """Hold a lock file, created where it is missing; blocks until the lock is free.

    The operating system gives the lock back when its holder dies, however it dies.

    Args:
        path: The lock file. It is never removed: another process may lock it by its name.
        shared: Whether others may hold it too, as long as no process holds it exclusively.
        timeout_s: How long to wait at most.

    Raises:
        RetriableError: Another process keeps the lock, such as one that was stopped.
    """
    descriptor = private_opener(str(path), os.O_RDWR | os.O_CREAT)
    try:
        _lock(descriptor, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout_s)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, operation: int, timeout_s: float) -> None:
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                error = RetriableError(
                    f"a process does not release a lock: path={path} pids={_holders(descriptor)}"
                )
                error.add_note("hint: continue it (kill -CONT) or end it")
                raise error from None
            pause.wait(_RETRY_S)
        else:
            return


def _holders(descriptor: int) -> str:
    """Return the processes that hold a lock on an open file, according to Linux."""
    inode = f":{os.fstat(descriptor).st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return "unknown"
    fields = (line.split() for line in lines)
    pids = {f[4] for f in fields if len(f) > 5 and f[1] == "FLOCK" and f[5].endswith(inode)}  # noqa: PLR2004 - columns of the kernel's table
    return ",".join(sorted(pids)) or "unknown"


class OwnerLock:
    """Marks a directory as in use by this process, until `release` or its death.

    A child that is forked while the lock is held holds it as well.
    """

    def __init__(self, path: Path) -> None:
        """Create the lock file and take the lock.

        Raises:
            BlockingIOError: Another process holds it.
        """
        self._descriptor: int | None = private_opener(str(path), os.O_RDWR | os.O_CREAT)
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
    """Return whether some process holds the `OwnerLock` of ``path``; False where there is none."""
    try:
        descriptor = private_opener(str(path), os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

"""The lock that makes a sidecar the only one of its directory, and what is left when it goes."""

import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from statekeep.spark.sidecar.outbox import Outbox
from statekeep.spark.sidecar.paths import SidecarPaths
from statekeep.stores.local_files import private_opener, remove_tree
from statekeep.stores.locks import has_living_owner
from statekeep.stores.private_directories import make_private

logger = logging.getLogger(__name__)

_LOG_KEPT_NS: Final = 7 * 24 * 3600 * 1_000_000_000
"""The log of a sidecar that died stays for a week."""
_ENDED: Final = "ended-"
"""Begins the name of an empty file; a driver session that has ended follows."""
_MARKS_KEPT: Final = 16
"""A task does not outlive its query by so many more."""


class SidecarLock:
    """Held by the sidecar of a directory, until `leave` or its death.

    The task that starts a sidecar takes it and passes it on, so that everybody can tell a sidecar
    that boots from none.
    """

    def __init__(self, paths: SidecarPaths, descriptor: int) -> None:
        self._paths = paths
        self.descriptor = descriptor

    def pass_on(self) -> None:
        """Leave the lock to the process that has inherited the descriptor."""
        os.close(self.descriptor)

    def leave(self) -> None:
        """Remove all that a sidecar needs to live, the lock last; its log stays.

        So does an outbox with submissions in it, for a sidecar that comes after; and everything but
        the socket where a task is starting that sidecar already. Nothing is removed where the
        directory was lost and another sidecar has it by now: what lies there is that one's.
        """
        if not self._has_successor():
            self._remove()
        os.close(self.descriptor)

    def _has_successor(self) -> bool:
        try:
            return not os.path.samestat(self._paths.lock.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def _remove(self) -> None:
        paths = self._paths
        paths.socket.unlink(missing_ok=True)
        with _start_lock(paths) as is_free:
            if is_free:
                if paths.outbox.exists() and not any(paths.outbox.iterdir()):
                    paths.outbox.rmdir()
                paths.start_lock.unlink(missing_ok=True)
        paths.lock.unlink(missing_ok=True)


def note_end(paths: SidecarPaths, session: str) -> None:
    """Have no task of a driver session start a sidecar here any more.

    The stage of a query that failed ends before all of its tasks do: one whose worker still boots
    would start a sidecar after the stop, and the sidecar would stay.
    """
    job, name = paths.directory.parent, paths.directory.name
    make_private(job.parent, job.name, name)
    os.close(private_opener(str(_mark(paths, session)), os.O_WRONLY | os.O_CREAT))
    with suppress(FileNotFoundError):  # another slot removes it
        marks = sorted(paths.directory.glob(f"{_ENDED}*"), key=os.path.getmtime)
        for old in marks[:-_MARKS_KEPT]:
            old.unlink()


def has_ended(paths: SidecarPaths, session: str) -> bool:
    """Return whether a driver session has ended here; see `note_end`."""
    return _mark(paths, session).exists()


def _mark(paths: SidecarPaths, session: str) -> Path:
    return paths.directory / f"{_ENDED}{session}"


@contextmanager
def _start_lock(paths: SidecarPaths) -> Generator[bool]:
    """Hold the lock of those who start a sidecar; False if one of them holds it."""
    try:
        with paths.start_lock.open("r") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
    except FileNotFoundError:
        yield True  # this one was never used


def take_lock(paths: SidecarPaths) -> SidecarLock | None:
    """Take the lock of a sidecar's directory; None if a sidecar keeps it, or boots there.

    A lock on a file that its holder has just removed counts for nothing.
    """
    while True:
        descriptor = private_opener(str(paths.lock), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = paths.lock.stat().st_ino
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            found = -1
        if os.fstat(descriptor).st_ino == found:
            return SidecarLock(paths, descriptor)
        os.close(descriptor)


def has_living_holder(job_directory: Path, epoch: int, attempt: int, partition: int) -> bool:
    """Return whether a sidecar of this host has a submission to work on, and lives.

    Args:
        job_directory: The directory in which the sidecars of the job have theirs.
        epoch: Of the driver that submitted.
        attempt: Its attempt.
        partition: Of the task.
    """
    sidecars = map(SidecarPaths, job_directory.glob("container-*"))
    return any(
        Outbox(paths.outbox).holds(epoch, attempt, partition) and has_living_owner(paths.lock)
        for paths in sidecars
    )


def sweep_dead_sidecars(own: SidecarPaths, app_id: str, now_ns: int) -> int:
    """Remove what sidecars of other applications left when they died; return how many had.

    Their submissions count for nothing: the driver that is served here has closed the attempts of all drivers
    before it. Sidecars that live hold their lock and are left alone, and so is every directory of
    this application: a sidecar may be about to begin there.

    Args:
        own: Of the sidecar that sweeps; its neighbours are looked at.
        app_id: Its application.
        now_ns: Wall clock; old logs go.
    """
    count = 0
    for directory in sorted(own.directory.parent.glob("container-*")):
        if directory.name.startswith(f"container-{app_id}-"):
            continue
        try:
            count += _sweep(SidecarPaths(directory), now_ns)
        except OSError as exc:  # another sidecar sweeps too, or the next one will
            logger.warning(
                "the directory of a dead sidecar is not removed: directory=%s error=%s",
                directory,
                exc,
            )
    if count:
        logger.info("directories of dead sidecars removed: count=%d", count)
    return count


def _sweep(paths: SidecarPaths, now_ns: int) -> bool:
    """Sweep one directory; return whether a sidecar died there, or left submissions behind."""
    is_left = paths.lock.exists() or paths.outbox.exists()
    if is_left:
        lock = take_lock(paths)
        if lock is None:
            return False
        remove_tree(paths.outbox)
        lock.leave()
    # Without a log no sidecar was ever started there, and it is from the end of a session.
    newest = paths.log if paths.log.exists() else paths.directory
    if now_ns - newest.stat().st_mtime_ns > _LOG_KEPT_NS:
        remove_tree(paths.directory)
    return is_left

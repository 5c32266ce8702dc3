"""The lock that makes a container the only one of its place, and what is left when it goes."""

import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from statekeep.spark.container.outbox import Outbox
from statekeep.spark.container.place import ContainerPlace
from statekeep.stores.local_files import private_opener, remove_tree
from statekeep.stores.locks import has_living_owner

logger = logging.getLogger(__name__)

_LOG_KEPT_NS: Final = 7 * 24 * 3600 * 1_000_000_000
"""The log of a container that died stays for a week."""


class PlaceLock:
    """Held by the container of a place, until `leave` or its death.

    The task that starts a container takes it and passes it on, so that everybody can tell a container
    that boots from none. The file is empty, unless a stop has come while the container boots.
    """

    def __init__(self, place: ContainerPlace, descriptor: int) -> None:
        self._place = place
        self.descriptor = descriptor

    @property
    def is_wanted(self) -> bool:
        """Whether no stop has come while the container boots."""
        return os.fstat(self.descriptor).st_size == 0

    def pass_on(self) -> None:
        """Leave the lock to the process that has inherited the descriptor."""
        os.close(self.descriptor)

    def leave(self) -> None:
        """Remove all that a container needs to live, the lock last; its log stays.

        So does an outbox with hand-overs in it, for a container that comes after; and everything but
        the socket where a task is starting that container already.
        """
        place = self._place
        place.socket.unlink(missing_ok=True)
        with _start_lock(place) as is_free:
            if is_free:
                if place.outbox.exists() and not any(place.outbox.iterdir()):
                    place.outbox.rmdir()
                place.start_lock.unlink(missing_ok=True)
        place.lock.unlink(missing_ok=True)
        os.close(self.descriptor)


def dismiss(place: ContainerPlace) -> None:
    """Tell a container that boots, and has no socket to be told by, that nobody needs it."""
    with suppress(FileNotFoundError):  # it has left
        os.truncate(place.lock, 1)


@contextmanager
def _start_lock(place: ContainerPlace) -> Generator[bool]:
    """Hold the lock of those who start a container; False if one of them holds it."""
    try:
        with place.start_lock.open("r") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
    except FileNotFoundError:
        yield True  # nobody has ever asked for this one


def take_lock(place: ContainerPlace) -> PlaceLock | None:
    """Take the lock of a container's place; None if a container keeps it, or boots there.

    A lock on a file that its holder has just removed counts for nothing.
    """
    while True:
        descriptor = private_opener(str(place.lock), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = place.lock.stat().st_ino
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            found = -1
        if os.fstat(descriptor).st_ino == found:
            os.truncate(descriptor, 0)  # of a container that was killed
            return PlaceLock(place, descriptor)
        os.close(descriptor)


def has_living_holder(jobs_places: Path, epoch: int, attempt: int, partition: int) -> bool:
    """Tell whether a container of this host has a hand-over to work on, and lives.

    Args:
        jobs_places: The directory in which the containers of the job have their places.
        epoch: Of the driver that handed over.
        attempt: Its attempt.
        partition: Of the task.
    """
    places = map(ContainerPlace, jobs_places.glob("container-*"))
    return any(
        Outbox(place.outbox).holds(epoch, attempt, partition) and has_living_owner(place.lock)
        for place in places
    )


def sweep_dead_places(own: ContainerPlace, app_id: str, now_ns: int) -> int:
    """Remove what containers of other applications left when they died; return how many had.

    Their hand-overs are void: the driver that is served here has closed the attempts of all drivers
    before it. Containers that live hold their lock and are left alone, and so is every place of
    this application: a container may be about to begin there.

    Args:
        own: The place of the container that sweeps; its neighbours are looked at.
        app_id: Its application.
        now_ns: Wall clock; old logs go.
    """
    count = 0
    for directory in sorted(own.directory.parent.glob("container-*")):
        if directory.name.startswith(f"container-{app_id}-"):
            continue
        try:
            count += _sweep(ContainerPlace(directory), now_ns)
        except OSError as exc:  # another container sweeps too, or the next one will
            logger.warning("place is not swept: directory=%s error=%s", directory, exc)
    if count:
        logger.info("places of dead containers swept: count=%d", count)
    return count


def _sweep(place: ContainerPlace, now_ns: int) -> bool:
    """Sweep one place; return whether a container had died there, or left hand-overs to nobody."""
    is_left = place.lock.exists() or place.outbox.exists()
    if is_left:
        lock = take_lock(place)
        if lock is None:
            return False
        remove_tree(place.outbox)
        lock.leave()
    if _is_log_old(place, now_ns):
        remove_tree(place.directory)
    return is_left


def _is_log_old(place: ContainerPlace, now_ns: int) -> bool:
    try:
        return now_ns - place.log.stat().st_mtime_ns > _LOG_KEPT_NS
    except FileNotFoundError:
        return False

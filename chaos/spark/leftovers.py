"""What a job has left on its host although it has ended well: beside its state, only logs may stay."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chaos.spark.places import Places


def leftovers(places: Places, *, has_killed: bool) -> list[Path]:
    """Return work directories, shadow locations, and what containers need to live.

    Args:
        places: Of the schedule; nothing of the job runs.
        has_killed: Processes were killed: what a container leaves then stays until one of another
            application begins. Its lock tells that it did not end by itself.
    """
    found = [*places.local.rglob("work-*"), *places.root.glob("checkpoint-statekeep-shadow-*")]
    containers = list(places.local.glob("*/container-*"))
    newest = max(map(_application_of, containers), default="")
    for container in containers:
        if not (has_killed and (container / "lock").exists()):
            found += _left_by(container, is_newest=_application_of(container) == newest)
    return sorted(found)


def _left_by(container: Path, *, is_newest: bool) -> Iterator[Path]:
    """Tell what may not stay; a submission that failed may, until another application begins."""
    for path in container.iterdir():
        is_kept = is_newest and path.name == "outbox" and any(path.iterdir())
        if not (is_kept or path.name.startswith("container.log")):
            yield path
    socket = socket_of(container)
    if socket.exists():
        yield socket


def _application_of(container: Path) -> str:
    """Return its application's id, which begins with the time of its start."""
    return container.name.removeprefix("container-").rpartition("-")[0]


def socket_of(container: Path) -> Path:
    """Return where the socket of a container's directory is while it lives."""
    name = hashlib.sha256(str(container.resolve()).encode()).hexdigest()[:20]
    return Path(tempfile.gettempdir(), f"statekeep-{os.getuid()}", ".sockets", f"{name}.sock")

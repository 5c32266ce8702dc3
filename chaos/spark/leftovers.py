"""What a job has left on its host although it has ended well: beside its state, only logs may stay."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chaos.spark.places import Places


def leftovers(places: Places, *, has_killed: bool) -> list[Path]:
    """Return work directories, shadow locations, and what sidecars need to live.

    Args:
        places: Of the schedule; nothing of the job runs.
        has_killed: Processes were killed: what a sidecar leaves then stays until one of another
            application begins. Its lock tells that it did not end by itself.
    """
    found = [*places.local.rglob("work-*"), *places.root.glob("checkpoint-statekeep-shadow-*")]
    sidecars = list(places.local.glob("*/container-*"))
    newest = max(map(_application_of, sidecars), default="")
    for sidecar in sidecars:
        if not (has_killed and (sidecar / "lock").exists()):
            found += _left_by(sidecar, is_newest=_application_of(sidecar) == newest)
    return sorted(found)


def _left_by(sidecar: Path, *, is_newest: bool) -> Iterator[Path]:
    """Tell what may not stay; a submission that failed may, until another application begins."""
    for path in sidecar.iterdir():
        is_kept = is_newest and path.name == "outbox" and any(path.iterdir())
        if not (is_kept or path.name.startswith(("container.log", "ended-"))):
            yield path
    socket = socket_of(sidecar)
    if socket.exists():
        yield socket


def _application_of(sidecar: Path) -> str:
    """Return its application's id, which begins with the time of its start."""
    return sidecar.name.removeprefix("container-").rpartition("-")[0]


def socket_of(sidecar: Path) -> Path:
    """Return where the socket of a sidecar's directory is while it lives."""
    name = hashlib.sha256(str(sidecar.resolve()).encode()).hexdigest()[:20]
    return Path(tempfile.gettempdir(), f"statekeep-{os.getuid()}", ".sockets", f"{name}.sock")

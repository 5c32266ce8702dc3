"""A task's checkpoint without the markers that failed their checks."""

from collections.abc import Collection
from dataclasses import replace

from statekeep.checkpoint.checkpoints import CheckpointV2
from statekeep.checkpoint.serde import decode_checkpoint_v2

BadMarkers = Collection[tuple[str, str, str, str]]
"""(backend, task, store, marker)"""


def usable(task: str, raw: bytes, bad: BadMarkers) -> CheckpointV2:
    """Return a committed checkpoint without bad markers.

    A bad marker is never again the base of an increment, which would carry the damage on, nor kept
    by clean-up (R11).
    """
    checkpoint = decode_checkpoint_v2(raw, where=f"commit task={task}")
    markers = {
        backend: {
            store: marker
            for store, marker in stores.items()
            if (backend, task, store, marker) not in bad
        }
        for backend, stores in checkpoint.state_markers.items()
    }
    return replace(checkpoint, state_markers=markers)

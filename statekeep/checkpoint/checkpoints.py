"""What a task's commit is: input offsets and the markers of its stores' backed-up state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from statekeep.checkpoint.checkpoint_id import CheckpointId

TaskName = NewType("TaskName", str)
"""Name of a task, such as ``Partition 3``."""
StoreName = NewType("StoreName", str)
"""Name of a local store, as in ``stores.<name>.backup.factories``."""
BackendName = NewType("BackendName", str)
"""What ``stores.<name>.backup.factories`` lists and state checkpoint markers are keyed by."""
Marker = NewType("Marker", str)
"""State checkpoint marker: by it a backend finds one store's state at one checkpoint."""


@dataclass(frozen=True, order=True, slots=True)
class SystemStreamPartition:
    """One partition of one input stream (ssp)."""

    system: str
    """Name of the source system, without dots: ``kafka``."""
    stream: str
    """Topic or path; may hold dots."""
    partition: int
    """Number of the partition within the stream."""


@dataclass(frozen=True, slots=True)
class CheckpointV2:
    """One task's commit: its id, its input positions, and where each backend holds each store.

    It counts only once a commit record in the job log holds it.

    Source: Samza 1.8 ``CheckpointV2``.
    """

    checkpoint_id: CheckpointId
    input_offsets: Mapping[SystemStreamPartition, str]
    """Last processed offset of each input, as its source writes it."""
    state_markers: Mapping[BackendName, Mapping[StoreName, Marker]] = field(
        default_factory=dict[BackendName, Mapping[StoreName, Marker]]
    )
    """``{backend: {store: marker}}``; a store without an entry was not backed up there."""

    def markers_of(self, backend: BackendName) -> Mapping[StoreName, Marker]:
        """Return ``{store: marker}`` of one backend, empty where it holds nothing."""
        return self.state_markers.get(backend, {})

"""When a commit uploads the files of its version, and when the changes alone."""

from dataclasses import dataclass
from typing import Final

from statekeep.backends.blob.index import SnapshotIndex
from statekeep.config.backend_keys import BLOB_SNAPSHOT_DELTA_RATIO, BLOB_SNAPSHOT_MAX_DELTAS

_FREE_DELTA_BYTES: Final = 4 << 20
"""So much is applied within the time of a few requests, however small the image is."""

MAX_ADDED_DELTAS: Final = 32
"""Deltas that an index adds to a full one, at 400 bytes each: so the indexes of all commits together
take least, and half of the time a commit writes less than 6 KB, however many deltas there are."""
MAX_INDEX_DELTA_BYTES: Final = 64 << 10
"""Of a delta that goes into the index instead of a blob of its own: a request costs as much whatever
it transfers. In JSON a delta takes a third more bytes, which larger ones would feel, and whoever
reads the index again reads the delta too."""


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """Decides by sizes; see `docs/decisions/0008-blob-backend-uploads-changes.md` for the figures.

    Deltas cost a restore time, files cost a commit bytes: most of a file that compaction has
    written was uploaded before. The first is bounded here; within the bound an image is taken
    where it is cheap.
    """

    max_delta_ratio: float = BLOB_SNAPSHOT_DELTA_RATIO.default
    """Bound on the bytes of all deltas, as a part of the image's; 0: no deltas."""
    max_deltas: int = BLOB_SNAPSHOT_MAX_DELTAS.default
    """Bound on their number."""

    def is_image_due(
        self, base: SnapshotIndex, *, new_file_bytes: int, new_delta_bytes: int, new_deltas: int
    ) -> bool:
        """Return whether a commit is to upload its files.

        It is where these are no more than its changes; where the bounds would be passed; and from
        half way to a bound on where the files are no more than the deltas that they replace, so
        that all files together never cost more than all deltas but for those that a bound asks for.

        Args:
            base: What the commit builds on.
            new_file_bytes: Of files that the base's image does not have.
            new_delta_bytes: Of the changes since the base.
            new_deltas: How many blobs they would be.
        """
        if not self.max_delta_ratio:
            return True
        if new_file_bytes <= new_delta_bytes:
            return new_deltas > 0
        delta_bytes = base.delta_bytes() + new_delta_bytes
        most_bytes = max(self.max_delta_ratio * base.image_bytes(), _FREE_DELTA_BYTES)
        filled = max(delta_bytes / most_bytes, (len(base.deltas) + new_deltas) / self.max_deltas)
        return filled > 1 or (filled > 1 / 2 and new_file_bytes <= delta_bytes)

"""Which files give the content of one upload: a snapshot, and the deltas that lead on from it.

Source: Spark's SPARK-49374, whose three examples are tests.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from statekeep.backends.hdfs.names import FileKind, FileName
from statekeep.checkpoint.checkpoints import VersionId
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError

ReadLineage = Callable[[VersionId], Awaitable[Sequence[VersionId]]]
"""Gives the lineage in the header of a delta: the uploads before it, nearest first."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The files to read, in this order."""

    snapshot: VersionId
    deltas: tuple[VersionId, ...]
    """Oldest first; the last one is the upload that was asked for, unless that is the snapshot."""
    leader: VersionId | None = None
    """The delta whose lineage ends at the snapshot; None where none was read."""
    snapshot_sha256: str | None = None
    """The digest that the snapshot must have, where it is known."""

    @property
    def files(self) -> tuple[FileName, ...]:
        """The names of the files."""
        first = FileName(self.snapshot, FileKind.SNAPSHOT)
        return (first, *(FileName(delta, FileKind.DELTA) for delta in self.deltas))

    @property
    def lineage(self) -> tuple[VersionId, ...]:
        """The uploads, nearest first, back to the snapshot."""
        return (*self.deltas[::-1], self.snapshot)


async def plan_load(
    wanted: VersionId,
    files: Collection[FileName],
    read_lineage: ReadLineage,
    proven: Collection[VersionId] | None = None,
) -> LoadPlan:
    """Find the newest snapshot in an upload's lineage and the deltas since.

    A lineage that ends before a snapshot is traced further by that of its oldest delta. Snapshots
    of other lineages count for nothing, whatever their batch.

    Args:
        wanted: The upload.
        files: What there is.
        read_lineage: Called for deltas in ``files`` only.
        proven: Uploads whose snapshots have a known digest. Besides them, only a snapshot at which a
            lineage ends may serve: the header with the lineage has its digest. None: any may serve.

    Raises:
        BlobNotFoundError: A file that is needed is not there: names it.
        CheckpointCorruptError: A lineage leads in a circle, or a header is damaged.
    """
    chain: list[VersionId] = []
    passed: set[VersionId] = set()
    following: deque[VersionId] = deque([wanted])
    leader: VersionId | None = None
    while following:
        step = following.popleft()
        is_end = leader is not None and not following
        may_serve = proven is None or step in proven or is_end
        if may_serve and FileName(step, FileKind.SNAPSHOT) in files:
            return LoadPlan(step, tuple(reversed(chain)), leader)
        name = FileName(step, FileKind.DELTA)
        if name not in files:
            raise BlobNotFoundError(str(name if chain else FileName(step, FileKind.SNAPSHOT)))
        if step in passed:
            raise CheckpointCorruptError(f"lineage contains a cycle: upload={step}")
        passed.add(step)
        chain.append(step)
        if not following:
            leader = step
            following.extend(await read_lineage(step))
    raise BlobNotFoundError(str(FileName(chain[-1], FileKind.SNAPSHOT)))

"""What the backends hold for a commit, as their own descriptions of snapshots have it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statekeep.backends.base import TaskIdentity
from statekeep.backends.optional_powers import DescribesSnapshots, SnapshotNode
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName, TaskName
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord
from statekeep.errors import StateBackupError
from statekeep.inspection.job import InspectedJob


async def snapshot_of(
    job: InspectedJob, commit: CommitRecord, task: TaskName, only: str | None = None
) -> SnapshotNode:
    """Return a task's snapshots in all backends: below the task its stores, below these their parts.

    Args:
        job: Whose commit it is.
        commit: With the markers.
        task: Of the commit.
        only: A store; None: all.

    Raises:
        BlobNotFoundError: A part that describes the others is gone.
        CheckpointCorruptError: A marker, or what it names, cannot be read.
        RetriableError: A service may answer later.
    """
    parts = [
        SnapshotNode(
            copy.store, None, {"backend": copy.backend}, tuple(await _parts(job, commit, copy))
        )
        for copy in _copies(job, commit, task)
        if only in (None, copy.store)
    ]
    return SnapshotNode(task, None, {"version": commit.versions.get(task) or "empty"}, tuple(parts))


def bytes_of(node: SnapshotNode) -> int:
    """Return the size of a node, or that of its parts where it has none of its own."""
    return sum(map(bytes_of, node.parts)) if node.size is None else node.size


async def held_bytes(job: InspectedJob) -> Mapping[str, int | None]:
    """Return how much each backend holds of the newest commit; None: it cannot be told now.

    It is read without a pin: the commit may be released meanwhile.
    """
    _, commit = job.find_commit()
    sizes, unknown = Counter[BackendName](), set[BackendName]()
    for copy in (c for name in commit.checkpoints for c in _copies(job, commit, TaskName(name))):
        try:
            parts = await _parts(job, commit, copy)
        except StateBackupError:
            unknown.add(copy.backend)
            continue
        if not any(map(_has_size, parts)):
            unknown.add(copy.backend)
        sizes[copy.backend] += sum(map(bytes_of, parts))
    return {
        backend: None if backend in unknown else sizes[backend]
        for backend in sorted({*sizes, *unknown})
    }


class _Copy(NamedTuple):
    """A store of a task in a backend."""

    task: TaskName
    backend: BackendName
    store: StoreName
    marker: Marker


def _copies(job: InspectedJob, commit: CommitRecord, task: TaskName) -> list[_Copy]:
    checkpoint = job.checkpoint(commit, task)
    if checkpoint is None:
        return []
    return [
        _Copy(task, backend, store, marker)
        for backend, stores in sorted(checkpoint.state_markers.items())
        for store, marker in sorted(stores.items())
    ]


async def _parts(job: InspectedJob, commit: CommitRecord, copy: _Copy) -> Sequence[SnapshotNode]:
    factory = job.storage.factories.get(copy.backend)
    if factory is None or not isinstance(factory, DescribesSnapshots):
        return [SnapshotNode("marker", None, {"marker": copy.marker})]
    own = commit.identity
    task = TaskIdentity(own.job_name, MAIN_OPERATOR, copy.task, job_uid=own.job_uid)
    return await factory.describe(task, copy.store, copy.marker, job.executor, job.clock)


def _has_size(node: SnapshotNode) -> bool:
    return node.size is not None or any(map(_has_size, node.parts))

"""What the commit record of a job says of each task, and which tasks must upload for it."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.errors import ConfigError, RetriableError
from statekeep.spark.driver.source_offsets import Offsets, by_task, topic_offsets
from statekeep.spark.tasks import STATE_STORE, partition_of, task_name
from statekeep.spark.worker.job_spec import HandOverPlan

logger = logging.getLogger(__name__)

StateMarkers = Mapping[BackendName, Mapping[StoreName, Marker]]


FindOutdated = Callable[
    [Mapping[BackendName, Mapping[StoreName, Collection[Marker]]]], Awaitable[Collection[Marker]]
]
"""Returns the markers of what is not under the current key, though it should be."""


async def none_outdated(
    _markers: Mapping[BackendName, Mapping[StoreName, Collection[Marker]]],
) -> Collection[Marker]:
    """Find nothing: nothing is encrypted."""
    return ()


@dataclass(frozen=True, slots=True)
class Base:
    """What the newest commit holds of a task, without bad markers."""

    version: str
    checkpoint: CheckpointV2


def bases_of(view: LogView) -> dict[int, Base]:
    """Return what the newest commit holds, by partition; nothing for empty state."""
    commit = view.last_commit
    if commit is None:
        return {}
    return {
        partition_of(task): Base(version, checkpoint)
        for task, version in commit.versions.items()
        if version and (checkpoint := view.usable_checkpoint(commit, task)) is not None
    }


def encoded_bases(bases: Mapping[int, Base]) -> dict[int, tuple[str, bytes]]:
    """Return bases as a `HandOverPlan` holds them."""
    return {
        partition: (base.version, encode_checkpoint_v2(base.checkpoint))
        for partition, base in bases.items()
    }


class CommitRecords:
    """Builds commit records from the newest commit and from what was uploaded since."""

    def __init__(
        self,
        writer: LogSession,
        identity: JobIdentity,
        query_state: Callable[[int], Awaitable[QueryState]],
        required_backends: Collection[str],
        optional_backends: Collection[str],
        *,
        find_outdated: FindOutdated,
    ) -> None:
        """Wire it; the arguments are those of `Committer`."""
        self._find_outdated = find_outdated
        self._writer = writer
        self._identity = identity
        self._query_state = query_state
        self._required_backends = tuple(map(BackendName, required_backends))
        self._optional_backends = tuple(map(BackendName, optional_backends))

    def must_upload(
        self, version: str, base: Base | None, outdated: Collection[Marker] = ()
    ) -> bool:
        """Whether a task changed, a backend lacks what it has, or it is under a key of before."""
        if not version or base is None:
            return bool(version)
        if base.version != version:
            return True
        markers = base.checkpoint.state_markers
        if outdated and any(m in outdated for of in markers.values() for m in of.values()):
            return True
        return any(STATE_STORE not in markers.get(name, {}) for name in self._required_backends)

    def without_backup(
        self, versions: Mapping[int, str], uploaded: Collection[int]
    ) -> Sequence[int]:
        """Return the tasks of which a commit would have no backup at all.

        They were to keep what the commit before had, and that was found bad meanwhile.

        Args:
            versions: ``{partition: VersionId}`` of all tasks.
            uploaded: Those that have uploaded for the commit.
        """
        bases = bases_of(self._writer.view)
        return [
            p
            for p, version in versions.items()
            if p not in uploaded
            and self.must_upload(version, bases.get(p))
            and not any(STATE_STORE in found for found in _markers(bases.get(p)).values())
        ]

    def left_out(self) -> Sequence[BackendName]:
        """Return the optional backends that lack the state of some task at the newest commit."""
        if not self._optional_backends:
            return ()
        markers = [base.checkpoint.state_markers for base in bases_of(self._writer.view).values()]
        return [
            name
            for name in self._optional_backends
            if any(STATE_STORE not in found.get(name, {}) for found in markers)
        ]

    async def plan(
        self, checkpoint_id: str, batch: int, versions: Mapping[int, str]
    ) -> HandOverPlan:
        """Return what the tasks hand over for an attempt: those that must upload, and their bases.

        Args:
            checkpoint_id: Of the attempt, whose number is not known yet.
            batch: The batch that is committed.
            versions: ``{partition: VersionId}`` of all tasks.
        """
        bases = bases_of(self._writer.view)
        outdated = await self._outdated(bases)
        uploads = {p: v for p, v in versions.items() if self.must_upload(v, bases.get(p), outdated)}
        record = self._writer.view.batches.get(batch)
        offsets = self._offsets_by_task("" if record is None else record.offsets)
        return HandOverPlan(
            epoch=self._writer.epoch,
            attempt=0,
            checkpoint_id=checkpoint_id,
            batch=batch,
            versions=uploads,
            bases=encoded_bases(bases),
            checkpoints={
                p: self._checkpoint(checkpoint_id, batch, offsets[p], {}) for p in uploads
            },
        )

    async def _outdated(self, bases: Mapping[int, Base]) -> Collection[Marker]:
        try:
            return await self._find_outdated(_markers_by_backend(bases.values()))
        except (ConfigError, RetriableError) as exc:
            # Tasks that upload need the key themselves, and say so; the others can wait.
            logger.warning("the key to encrypt with is not known for now: error=%s", exc)
            return ()

    async def build(
        self,
        key: tuple[int, int],
        batch: int,
        checkpoint_id: str,
        versions: Mapping[int, str],
        uploaded: Mapping[int, bytes],
    ) -> CommitRecord:
        """Return the record of an attempt.

        Args:
            key: (epoch, attempt).
            batch: The batch that is committed.
            checkpoint_id: Of the attempt.
            versions: ``{partition: VersionId}`` of all tasks.
            uploaded: ``{partition: CheckpointV2 in JSON}`` of those that uploaded.
        """
        bases = bases_of(self._writer.view)
        query = await self._query_state(batch)
        offsets = self._offsets_by_task(query.offsets or "")
        checkpoints = {
            str(task_name(p)): msgspec.Raw(
                uploaded[p]
                if p in uploaded
                else self._checkpoint(checkpoint_id, batch, offsets[p], _markers(bases.get(p)))
            )
            for p in versions
        }
        return CommitRecord(
            attempt_epoch=key[0],
            attempt=key[1],
            batch=batch,
            checkpoint_id=checkpoint_id,
            identity=self._identity,
            checkpoints=checkpoints,
            versions={task_name(partition): version for partition, version in versions.items()},
            query=query,
        )

    def _offsets_by_task(self, text: str) -> Mapping[int, Offsets]:
        return by_task(topic_offsets(text), self._identity.partitions)

    def _checkpoint(
        self, checkpoint_id: str, batch: int, offsets: Offsets, markers: StateMarkers
    ) -> bytes:
        """Return a task's checkpoint in JSON."""
        inputs = {
            SystemStreamPartition("spark", self._identity.job_name, 0): str(batch),
            **offsets,
        }
        return encode_checkpoint_v2(
            CheckpointV2(CheckpointId.parse(checkpoint_id), inputs, markers)
        )


def _markers(base: Base | None) -> StateMarkers:
    """Return the markers of a task that had nothing to upload: those of the commit before."""
    return {} if base is None else base.checkpoint.state_markers


def _markers_by_backend(
    bases: Iterable[Base],
) -> Mapping[BackendName, Mapping[StoreName, Collection[Marker]]]:
    found: dict[BackendName, dict[StoreName, list[Marker]]] = {}
    for base in bases:
        for backend, markers in base.checkpoint.state_markers.items():
            for store, marker in markers.items():
                found.setdefault(backend, {}).setdefault(store, []).append(marker)
    return found

"""What the commit record of a job says of each task and of its inputs, and which tasks must upload for it.

Spark keeps a batch's end offsets in one file for the whole query, exclusive; a checkpoint has the
last offset read of each partition of a topic. Each topic partition stands in one task's checkpoint,
as in a job of Samza: partition q in that of task q modulo N. Sources say nothing of their kind in
that file: Kafka's are known by the form ``{topic: {partition: offset}}``.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity, QueryState
from statekeep.checkpoint.serde import decode_checkpoint_v2, encode_checkpoint_v2
from statekeep.errors import CommitFailedError, ConfigError, RetriableError
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.tasks import partition_of, task_name
from statekeep.spark.worker.job_spec import SubmitPlan

logger = logging.getLogger(__name__)

Backends = Mapping[BackendName, Collection[StoreName]]
"""Backends, each with the stores that it gets."""
StateMarkers = Mapping[BackendName, Mapping[StoreName, Marker]]


KAFKA: Final = "kafka"
"""The system that topics belong to."""

Offsets = Mapping[SystemStreamPartition, str]
"""The last offset read of each partition; "-1" where nothing was read yet."""

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
    """Return what the newest commit holds, by partition; nothing for empty state.

    Markers of a store that it does not list are of one that was given up: they are left out, as the
    store would else have its old content again once the settings name it again.
    """
    commit = view.last_commit
    if commit is None:
        return {}
    return {
        partition_of(task): Base(
            version,
            replace(checkpoint, state_markers=_listed(checkpoint.state_markers, commit.identity)),
        )
        for task, version in commit.versions.items()
        if version and (checkpoint := view.usable_checkpoint(commit, task)) is not None
    }


def _listed(markers: StateMarkers, identity: JobIdentity) -> StateMarkers:
    """Return the markers of the stores that a job lists; all where it lists none, as old ones did."""
    listed = {store for stores in identity.stores.values() for store in stores}
    if not listed:
        return markers
    return {
        backend: {store: marker for store, marker in of.items() if store in listed}
        for backend, of in markers.items()
    }


def encoded_bases(bases: Mapping[int, Base]) -> dict[int, tuple[str, bytes]]:
    """Return bases as a `SubmitPlan` holds them."""
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
        required_backends: Backends,
        optional_backends: Backends,
        *,
        find_outdated: FindOutdated,
    ) -> None:
        """Wire it; the arguments are those of `JobCommits`."""
        self._find_outdated = find_outdated
        self._writer = writer
        self._identity = identity
        self._query_state = query_state
        self._required_backends = required_backends
        self._optional_backends = optional_backends
        self._stores = {
            store
            for backends in (required_backends, optional_backends)
            for stores in backends.values()
            for store in stores
        }

    def forget_shares(self) -> None:
        """Name in later commits no more what the job has used of others: it uses nothing of them now."""
        self._identity = msgspec.structs.replace(self._identity, shares=[])

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
        return any(
            store not in markers.get(name, {})
            for name, stores in self._required_backends.items()
            for store in stores
        )

    def without_backup(
        self, versions: Mapping[int, str], uploaded: Collection[int]
    ) -> Sequence[int]:
        """Return the tasks of which a commit would have no backup at all of some store.

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
            and self._lacks_a_store(_markers(bases.get(p)))
        ]

    def _lacks_a_store(self, markers: StateMarkers) -> bool:
        held = {store for found in markers.values() for store in found}
        return not held or not self._stores <= held

    def left_out(self) -> Sequence[BackendName]:
        """Return the optional backends that lack the state of some task at the newest commit."""
        if not self._optional_backends:
            return ()
        markers = [base.checkpoint.state_markers for base in bases_of(self._writer.view).values()]
        return [
            name
            for name, stores in self._optional_backends.items()
            if any(store not in found.get(name, {}) for found in markers for store in stores)
        ]

    async def plan(self, checkpoint_id: str, batch: int, versions: Mapping[int, str]) -> SubmitPlan:
        """Return what the tasks submit for an attempt: those that must upload, and their bases.

        Args:
            checkpoint_id: Of the attempt, whose number is not known yet.
            batch: The batch that is committed.
            versions: ``{partition: VersionId}`` of all tasks.
        """
        bases = bases_of(self._writer.view)
        outdated = await self._outdated(bases)
        uploads = {p: v for p, v in versions.items() if self.must_upload(v, bases.get(p), outdated)}
        record = self._writer.view.batches.get(batch)
        inputs = self._inputs("" if record is None else record.offsets, batch)
        return SubmitPlan(
            epoch=self._writer.epoch,
            attempt=0,
            checkpoint_id=checkpoint_id,
            batch=batch,
            versions=uploads,
            bases=encoded_bases(bases),
            checkpoints={p: _checkpoint(checkpoint_id, inputs[p], {}) for p in uploads},
        )

    async def _outdated(self, bases: Mapping[int, Base]) -> Collection[Marker]:
        try:
            return await self._find_outdated(_markers_by_backend(bases.values()))
        except (ConfigError, RetriableError) as exc:
            # Tasks that upload need the key themselves, and say so; the others can wait.
            logger.warning("the current encryption key cannot be found out: error=%s", exc)
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

        Raises:
            CommitFailedError: A store of the job is in no backend for some task.
        """
        bases = bases_of(self._writer.view)
        self._check_stores(checkpoint_id, versions, bases, uploaded)
        query = await self._query_state(batch)
        inputs = self._inputs(query.offsets or "", batch)
        checkpoints = {
            str(task_name(p)): msgspec.Raw(
                uploaded[p]
                if p in uploaded
                else _checkpoint(
                    checkpoint_id, inputs[p], _listed(_markers(bases.get(p)), self._identity)
                )
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

    def _check_stores(
        self,
        checkpoint_id: str,
        versions: Mapping[int, str],
        bases: Mapping[int, Base],
        uploaded: Mapping[int, bytes],
    ) -> None:
        """Refuse a record of which a restore would find a store nowhere."""
        listed = {store for stores in self._identity.stores.values() for store in stores}
        for partition, version in versions.items():
            markers = _markers(bases.get(partition))
            if partition in uploaded:
                where = f"entry of {task_name(partition)}"
                markers = decode_checkpoint_v2(uploaded[partition], where).state_markers
            lacking = listed.difference(*markers.values())
            if version and lacking:
                raise CommitFailedError(
                    "a store of a task is in no backend:"
                    f" task={task_name(partition)} store={min(lacking)}",
                    checkpoint_id=checkpoint_id,
                    step="upload",
                )

    def _inputs(self, text: str, batch: int) -> Mapping[int, Offsets]:
        return inputs_of_tasks(text, self._identity.job_name, batch, self._identity.partitions)


def inputs_of_tasks(text: str, job_name: str, batch: int, partitions: int) -> Mapping[int, Offsets]:
    """Return the inputs that the checkpoint of each task names, by partition.

    Args:
        text: Of the query's ``offsets/<batch>``.
        job_name: Of the job.
        batch: The batch.
        partitions: How many tasks the job has.
    """
    query = SystemStreamPartition("spark", job_name, 0)
    shares = by_task(topic_offsets(text), partitions)
    return {partition: {query: str(batch), **share} for partition, share in shares.items()}


def _checkpoint(checkpoint_id: str, inputs: Offsets, markers: StateMarkers) -> bytes:
    """Return a task's checkpoint in JSON."""
    return encode_checkpoint_v2(CheckpointV2(CheckpointId.parse(checkpoint_id), inputs, markers))


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


_decoder = msgspec.json.Decoder(dict[str, dict[int, int]])


def query_state(
    location: CheckpointLocation, current: CommitRecord | None, batch: int
) -> QueryState:
    """Return what the commit record of a batch says of the query.

    Args:
        location: The query's.
        current: The commit before it.
        batch: The batch.

    Raises:
        CheckpointLocationError: A file is missing.
    """
    before = None if current is None else current.query
    return QueryState(
        query_id=location.query_id() or "",
        metadata=location.require("metadata"),
        previous_offsets=location.read(f"offsets/{batch - 1}") if batch > 0 else None,
        offsets=location.require(f"offsets/{batch}"),
        commit=location.read(f"commits/{batch}"),
        started_from=None if before is None else before.started_from,
    )


def topic_offsets(text: str) -> Offsets:
    """Return the last offset read of every topic partition, from the text of ``offsets/<batch>``.

    Of a partition that several sources read the lowest counts. Other kinds of sources have no
    offsets by partition and are left out, whatever their lines are like.
    """
    return {ssp: str(min(ends) - 1) for ssp, ends in _ends(text).items()}


def stands_apart(text: str) -> SystemStreamPartition | None:
    """Return a partition that two sources have read up to different offsets; None if there is none.

    One offset for each partition does not say where such a query stands.
    """
    return next((ssp for ssp, ends in _ends(text).items() if len(ends) > 1), None)


def by_task(offsets: Offsets, partitions: int) -> Mapping[int, Offsets]:
    """Return what stands in the checkpoint of each task, ``{partition of the task: offsets}``."""
    shares: dict[int, dict[SystemStreamPartition, str]] = {p: {} for p in range(partitions)}
    for ssp, offset in offsets.items():
        shares[ssp.partition % partitions][ssp] = offset
    return shares


def commit_offsets(commit: CommitRecord) -> Offsets:
    """Return those of all topics, from the checkpoints of all tasks.

    Raises:
        CheckpointCorruptError: A checkpoint in the record cannot be read.
    """
    return {
        ssp: offset
        for task, raw in commit.checkpoints.items()
        for ssp, offset in decode_checkpoint_v2(
            bytes(raw), where=f"task={task}"
        ).input_offsets.items()
        if ssp.system == KAFKA
    }


def starting_offsets(offsets: Offsets) -> str:
    """Return the JSON that the option ``startingOffsets`` of Spark's Kafka source takes."""
    topics: dict[str, dict[str, int]] = {}
    for ssp, last in sorted(offsets.items()):
        topics.setdefault(ssp.stream, {})[str(ssp.partition)] = int(last) + 1
    return json.dumps(topics)


def _ends(text: str) -> Mapping[SystemStreamPartition, set[int]]:
    """Return the end offsets that the lines of a file give for each topic partition."""
    found: dict[SystemStreamPartition, set[int]] = {}
    for topic, partitions in _topics(text):
        for partition, end in partitions.items():
            found.setdefault(SystemStreamPartition(KAFKA, topic, partition), set()).add(end)
    return found


def _topics(text: str) -> Iterator[tuple[str, Mapping[int, int]]]:
    """Yield what each line of the form has; the file's version and metadata are not of it."""
    for line in text.split("\n"):
        try:
            yield from _decoder.decode(line).items()
        except msgspec.DecodeError:
            continue

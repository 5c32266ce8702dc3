"""A committer of the driver over blobs in memory, and what it is given."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from log_kit import driver_on, new_blobs
from typing_extensions import override

from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import (
    JobIdentity,
    QueryState,
)
from statekeep.checkpoint.serde import (
    FinishedTask,
    encode_attempt_entry,
)
from statekeep.checkpoint.version_id import VersionId
from statekeep.commit.committer import CommitSummary
from statekeep.commit.gate import CommitGate
from statekeep.config.load import load_dict
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import HandOverPlan
from statekeep.testing.clock import FakeClock

V0, V1, V2 = "0_0123456789abcdef", "1_0123456789abcdef", "2_0123456789abcdef"
IDENTITY = JobIdentity(job_uid="u", job_name="j", partitions=2)
BLOB, KAFKA = BackendName("blob"), BackendName("kafka")
_LONG_S: Final = 60


class PollingClock(FakeClock):
    """Its short sleeps are over at once, as those between two looks; its long ones never end."""

    @override
    async def sleep(self, seconds: float) -> None:
        if seconds >= _LONG_S:
            await asyncio.Event().wait()
        await super().sleep(seconds)


class Rig:
    """A committer over blobs in memory."""

    def __init__(
        self,
        writer: LogSession,
        checkpoints: BlobCheckpointStore,
        required_backends: tuple[str, ...] = (),
        optional_backends: tuple[str, ...] = (),
    ) -> None:
        self.writer = writer
        self.checkpoints = checkpoints
        self.state_error: Exception | None = None
        self.offsets = "o"
        self.summaries: list[CommitSummary] = []
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.clock = PollingClock()
        settings = load_dict({"job.name": "j", "stores.backup.factories": "blob"})
        self.gate = CommitGate(settings.task)
        self.outdated: set[Marker] = set()
        """What a rotation of keys has left behind."""
        self.key_error: Exception | None = None
        writer._note = self._take_note
        self.committer = JobCommits(
            log=writer,
            checkpoints=checkpoints,
            gate=self.gate,
            clock=self.clock,
            identity=IDENTITY,
            query_state=self._query_state,
            on_commit=self.summaries.append,
            required_backends=required_backends,
            optional_backends=optional_backends,
            find_outdated=self._find_outdated,
            note=self._take_note,
        )

    def _take_note(self, kind: str, **details: Any) -> None:
        self.notes.append((kind, details))

    async def _query_state(self, batch: int) -> QueryState:
        if self.state_error is not None:
            raise self.state_error
        return QueryState(query_id="q", metadata="{}", offsets=self.offsets)

    async def _find_outdated(
        self, markers: Mapping[BackendName, Mapping[StoreName, Collection[Marker]]]
    ) -> Collection[Marker]:
        if self.key_error is not None:
            raise self.key_error
        found = {m for stores in markers.values() for of_store in stores.values() for m in of_store}
        return found & self.outdated

    async def begin(self, batch: int, versions: Mapping[int, str]) -> HandOverPlan:
        plan = await self.committer.prepare(batch, versions, is_forced=True)
        assert plan is not None
        return plan

    async def finish(
        self, plan: HandOverPlan, partition: int, base_id: CheckpointId | None = None
    ) -> None:
        checkpoint = CheckpointV2(
            CheckpointId.parse(plan.checkpoint_id), {}, {BLOB: {STATE_STORE: Marker("m")}}
        )
        version_id = VersionId.parse(plan.versions[partition])
        entry = FinishedTask(checkpoint, version_id, 7, elapsed_ms=30, base_id=base_id)
        await self.enter(plan, partition, encode_attempt_entry(entry))

    async def enter(self, plan: HandOverPlan, partition: int, entry: bytes) -> None:
        name = f"{plan.epoch}-{plan.attempt}"
        await self.checkpoints.write(name, task_name(partition), entry)


async def new_rig(
    required_backends: tuple[str, ...] = (), optional_backends: tuple[str, ...] = ()
) -> Rig:
    blobs = new_blobs()
    writer = await driver_on(blobs)
    return Rig(writer, BlobCheckpointStore(blobs, "job"), required_backends, optional_backends)


async def committed(rig: Rig, versions: Mapping[int, str]) -> None:
    plan = await rig.begin(rig.committer.committed_batch + 1, versions)
    for partition in plan.versions:
        await rig.finish(plan, partition)
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)

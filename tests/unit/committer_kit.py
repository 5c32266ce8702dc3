"""A committer of the driver over blobs in memory, and what it is given."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from log_kit import driver_on, new_blobs
from typing_extensions import override

from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    VersionId,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import (
    JobIdentity,
    QueryState,
)
from statekeep.checkpoint.serde import (
    BackendUpload,
    FinishedTask,
    encode_attempt_entry,
)
from statekeep.commit.gate import CommitGate
from statekeep.config.load import load_dict
from statekeep.events import CommitSummary, Event
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import SubmitPlan
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


Backends = tuple[str, ...] | Mapping[BackendName, Collection[StoreName]]
"""Those of the state, or with their stores."""


def _with_stores(backends: Backends) -> Mapping[BackendName, Collection[StoreName]]:
    if isinstance(backends, Mapping):
        return backends
    return {name: [STATE_STORE] for name in map(BackendName, backends)}


class Rig:
    """A committer over blobs in memory."""

    def __init__(
        self,
        writer: LogSession,
        checkpoints: BlobCheckpointStore,
        required_backends: Backends = (),
        optional_backends: Backends = (),
        identity: JobIdentity = IDENTITY,
        *,
        clock: FakeClock | None = None,
    ) -> None:
        self.writer = writer
        self.checkpoints = checkpoints
        self.state_error: Exception | None = None
        self.offsets = "o"
        self.summaries: list[CommitSummary] = []
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.clock = clock or PollingClock()
        settings = load_dict({"job.name": "j", "stores.backup.factories": "blob"})
        self.gate = CommitGate(settings.task)
        self.outdated: set[Marker] = set()
        """What a rotation of keys has left behind."""
        self.key_error: Exception | None = None
        writer._report = self._take
        self.committer = JobCommits(
            log=writer,
            checkpoints=checkpoints,
            gate=self.gate,
            clock=self.clock,
            identity=identity,
            query_state=self._query_state,
            on_commit=self.summaries.append,
            required_backends=_with_stores(required_backends),
            optional_backends=_with_stores(optional_backends),
            find_outdated=self._find_outdated,
            report=self._take,
        )

    def _take(self, event: Event) -> None:
        if event.is_recorded:
            self.notes.append((event.kind, event.details()))

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

    async def begin(self, batch: int, versions: Mapping[int, str]) -> SubmitPlan:
        plan = await self.committer.prepare(batch, versions, is_forced=True)
        assert plan is not None
        return plan

    def entry(
        self,
        plan: SubmitPlan,
        partition: int,
        base_id: CheckpointId | None = None,
        stores: Collection[StoreName] = (STATE_STORE,),
    ) -> bytes:
        """Return what the container of a task writes once it has uploaded."""
        markers = dict.fromkeys(stores, Marker("m"))
        checkpoint = CheckpointV2(CheckpointId.parse(plan.checkpoint_id), {}, {BLOB: markers})
        return encode_attempt_entry(
            FinishedTask(
                checkpoint,
                VersionId.parse(plan.versions[partition]),
                7,
                elapsed_ms=30,
                base_id=base_id,
                uploads={BackendName("blob"): BackendUpload(bytes=7, elapsed_ms=20)},
                changed_bytes=5,
                state_bytes=4096,
            )
        )

    async def finish(
        self,
        plan: SubmitPlan,
        partition: int,
        base_id: CheckpointId | None = None,
        stores: Collection[StoreName] = (STATE_STORE,),
    ) -> None:
        await self.enter(plan, partition, self.entry(plan, partition, base_id, stores))

    async def enter(self, plan: SubmitPlan, partition: int, entry: bytes) -> None:
        name = f"{plan.epoch}-{plan.attempt}"
        await self.checkpoints.write(name, task_name(partition), entry)


async def new_rig(
    required_backends: Backends = (),
    optional_backends: Backends = (),
    identity: JobIdentity = IDENTITY,
    *,
    clock: FakeClock | None = None,
) -> Rig:
    blobs = new_blobs()
    checkpoints = BlobCheckpointStore(blobs, "job")
    writer = await driver_on(blobs)
    return Rig(writer, checkpoints, required_backends, optional_backends, identity, clock=clock)


async def committed(
    rig: Rig, versions: Mapping[int, str], stores: Collection[StoreName] = (STATE_STORE,)
) -> None:
    plan = await rig.begin(rig.committer.committed_batch + 1, versions)
    for partition in plan.versions:
        await rig.finish(plan, partition, stores=stores)
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)

"""The driver's committer: how attempts end, what is uploaded, what counts against the tolerance."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from log_kit import LosingBlobs, RefusingBlobs, batch_record, driver_on, new_blobs
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types

from statekeep.backends.blob.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointV2,
    Marker,
    SystemStreamPartition,
)
from statekeep.checkpoint.log_writer import LogWriter
from statekeep.checkpoint.records import (
    AttemptRecord,
    BadMarkerRecord,
    CommitRecord,
    JobIdentity,
    QueryState,
)
from statekeep.checkpoint.serde import (
    FailedTask,
    FinishedTask,
    decode_checkpoint_v2,
    encode_attempt_entry,
    encode_checkpoint_v2,
)
from statekeep.checkpoint.version_id import VersionId
from statekeep.commit.gate import CommitGate
from statekeep.config.load import load_dict
from statekeep.errors import (
    CheckpointCorruptError,
    CommitFailedError,
    ConfigError,
    RetriableError,
)
from statekeep.spark.driver.committer import CommitSummary, Committer
from statekeep.spark.driver.gathering import GatheredTasks
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, HandOverPlan
from statekeep.testing.clock import FakeClock

V0, V1, V2 = "0_0123456789abcdef", "1_0123456789abcdef", "2_0123456789abcdef"
IDENTITY = JobIdentity(job_uid="u", job_name="j", partitions=2)
BLOB, KAFKA = BackendName("blob"), BackendName("kafka")
SPARK = SystemStreamPartition("spark", "j", 0)


class Rig:
    """A committer over blobs in memory."""

    def __init__(
        self,
        writer: LogWriter,
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
        self.clock = FakeClock()
        settings = load_dict({"job.name": "j", "stores.backup.factories": "blob"})
        self.gate = CommitGate(settings.task)
        self.committer = Committer(
            writer=writer,
            checkpoints=checkpoints,
            gate=self.gate,
            clock=self.clock,
            identity=IDENTITY,
            query_state=self._query_state,
            on_commit=self.summaries.append,
            required_backends=required_backends,
            optional_backends=optional_backends,
            note=lambda kind, **details: self.notes.append((kind, details)),
        )

    async def _query_state(self, batch: int) -> QueryState:
        if self.state_error is not None:
            raise self.state_error
        return QueryState(query_id="q", metadata="{}", offsets=self.offsets)

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


def clicks(partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("kafka", "page.clicks", partition)


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


@pytest.mark.asyncio
async def test_a_commit_is_durable_once_every_task_has_its_entry() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V0})
    await rig.finish(plan, 0)
    await rig.committer.handed_over(plan, {})
    for _ in range(50):
        await asyncio.sleep(0)
    assert rig.committer.open_batch == 0
    await rig.finish(plan, 1)
    await rig.committer.settle(60)
    assert rig.committer.committed_batch == 0
    assert [summary.tasks_uploaded for summary in rig.summaries] == [2]


@pytest.mark.asyncio
async def test_each_topic_partition_is_in_the_checkpoint_of_one_task_changed_or_not() -> None:
    rig = await new_rig()
    await committed(rig, {0: V0, 1: V0})
    rig.offsets = 'v1\n{}\n{"page.clicks":{"0":5,"1":7,"2":0}}'
    record = msgspec.structs.replace(batch_record(1), offsets=rig.offsets)
    await rig.writer.append(record)
    plan = await rig.begin(1, {0: V1, 1: V0})
    assert plan.versions == {0: V1}
    handed_over = decode_checkpoint_v2(plan.checkpoints[0], where="plan").input_offsets
    assert handed_over == {SPARK: "1", clicks(0): "4", clicks(2): "-1"}
    await rig.finish(plan, 0)
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    commit = rig.writer.view.last_commit
    assert commit is not None
    unchanged = decode_checkpoint_v2(bytes(commit.checkpoints["Partition 1"]), where="commit")
    assert unchanged.input_offsets == {SPARK: "1", clicks(1): "6"}


@pytest.mark.asyncio
async def test_a_commit_tells_which_optional_backends_lack_the_state_of_a_task() -> None:
    rig = await new_rig((BLOB,), ("archive",))
    await committed(rig, {0: V0})
    assert rig.summaries[0].left_out == ["archive"]
    rig = await new_rig((), (BLOB,))
    await committed(rig, {0: V0})
    assert rig.summaries[0].left_out == []


@pytest.mark.asyncio
async def test_a_backup_that_builds_on_the_newest_commit_is_taken() -> None:
    rig = await new_rig()
    await committed(rig, {0: V0})
    newest = CheckpointId.parse(rig.summaries[0].checkpoint_id)
    plan = await rig.begin(1, {0: V1})
    await rig.finish(plan, 0, newest)
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert rig.committer.committed_batch == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("commits", [0, 1], ids=["none before", "one before"])
async def test_a_backup_that_builds_on_another_than_the_newest_commit_is_refused(
    commits: int,
) -> None:
    rig = await new_rig()
    for _ in range(commits):
        await committed(rig, {0: V0})
    plan = await rig.begin(commits, {0: V1})
    await rig.finish(plan, 0, CheckpointId(5, 5))
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert rig.committer.committed_batch == commits - 1
    assert "builds on another commit than the newest" in rig.notes[-1][1]["reason"]


@pytest.mark.asyncio
async def test_an_entry_with_the_checkpoint_of_another_commit_is_refused() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.finish(replace(plan, checkpoint_id="5-5"), 0)
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert "is another commit's" in rig.notes[-1][1]["reason"]


@pytest.mark.asyncio
async def test_a_lost_version_in_flight_leaves_the_commit_owed_and_uncounted() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    await rig.committer.handed_over(plan, {})
    await rig.committer.void_if_lost({0: V0})
    assert rig.committer.open_batch is None
    assert rig.gate.failures == 0
    assert rig.committer.is_due()
    assert (await rig.begin(1, {0: V0, 1: V1})).attempt == 2


@pytest.mark.asyncio
async def test_a_backup_that_is_found_bad_meanwhile_ends_the_commit_that_was_to_keep_it() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0})
    plan = await rig.begin(1, {0: V0})
    assert plan.versions == {}
    await rig.writer.append(
        BadMarkerRecord(
            epoch=0,
            nonce="",
            backend=BLOB,
            task=task_name(0),
            store=STATE_STORE,
            marker="m",
            reason="damaged",
        )
    )
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert rig.committer.committed_batch == 0
    assert rig.gate.failures == 0
    assert "was found bad: task=Partition 0" in rig.notes[-1][1]["reason"]
    assert (await rig.begin(1, {0: V0})).versions == {0: V0}


@pytest.mark.asyncio
async def test_who_waits_for_an_abandoned_commit_goes_on_and_it_is_not_counted() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.committer.handed_over(plan, {})
    waiting = asyncio.ensure_future(rig.committer.settle(1e9))
    await asyncio.sleep(0)
    await rig.committer.abandon("the query was told to stop")
    await waiting
    assert rig.committer.open_batch is None
    assert rig.gate.failures == 0
    assert rig.notes[-1][1]["reason"] == "the query was told to stop"


@pytest.mark.asyncio
async def test_a_hand_over_that_finds_no_version_leaves_the_commit_uncounted() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    await rig.committer.handed_over(plan, {0: f"{VERSION_NOT_HERE}: version={V0}"})
    assert rig.gate.failures == 0
    assert (await rig.begin(1, {0: V0, 1: V1})).attempt == 2


@pytest.mark.asyncio
async def test_an_attempt_whose_batch_was_interrupted_gives_way_to_the_next_uncounted() -> None:
    rig = await new_rig()
    await rig.begin(0, {0: V0, 1: V1})  # rides on a batch that never answers
    again = await rig.begin(0, {0: V0, 1: V1})
    assert again.attempt == 2
    assert (rig.gate.timeouts, rig.gate.failures) == (0, 0)
    assert [details["reason"] for _, details in rig.notes] == ["it was not handed over"]


@pytest.mark.asyncio
async def test_a_hand_over_that_fails_otherwise_counts() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    errors = {0: f"{VERSION_NOT_HERE}: version={V0}", 1: "RetriableError: it does not start"}
    await rig.committer.handed_over(plan, errors)
    with pytest.raises(CommitFailedError, match="it does not start"):
        await rig.begin(1, {0: V0, 1: V1})


@pytest.mark.asyncio
async def test_only_an_attempt_that_is_followed_has_an_open_plan() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    assert open_plan_of(rig) is None
    await rig.committer.handed_over(plan, {})
    assert open_plan_of(rig) is plan
    await rig.finish(plan, 0)
    await rig.committer.settle(60)
    assert open_plan_of(rig) is None


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [
        OSError("namenode hiccup"),
        CheckpointCorruptError("namenode hiccup"),
        ConfigError("namenode hiccup"),
        Py4JError("namenode hiccup"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_follower_fails_the_attempt_with_its_text(error: Exception) -> None:
    rig = await new_rig()
    rig.state_error = error
    plan = await rig.begin(0, {0: ""})
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    with pytest.raises(CommitFailedError, match="namenode hiccup"):
        await rig.begin(1, {0: ""})


@pytest.mark.asyncio
async def test_an_upload_that_hangs_is_given_up_though_no_batch_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V0})
    await rig.finish(plan, 0)
    await rig.committer.handed_over(plan, {})
    monkeypatch.setattr(rig.gate, "is_overdue", lambda _: False)  # the clock itself runs on
    await rig.committer.void_if_overdue()
    assert open_plan_of(rig) is plan
    monkeypatch.setattr(rig.gate, "is_overdue", lambda _: True)
    await rig.committer.void_if_overdue()
    assert rig.committer.open_batch is None
    assert [d["reason"] for kind, d in rig.notes if kind == "void"] == ["timed out"]
    assert rig.committer.final_error is not None
    with pytest.raises(CommitFailedError, match="did not end in time"):
        await rig.committer.prepare(0, {0: V0, 1: V0}, is_forced=True)


@pytest.mark.asyncio
async def test_an_error_that_nobody_foresaw_fails_the_attempt_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await new_rig()
    rig.state_error = LookupError("a bug")
    plan = await rig.begin(0, {0: ""})
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert [r.levelno for r in caplog.records if "follower" in r.message] == [logging.ERROR]
    with pytest.raises(CommitFailedError, match="LookupError: a bug"):
        await rig.begin(1, {0: ""})


@pytest.mark.asyncio
async def test_each_upload_is_told_once_it_is_found() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    await rig.finish(plan, 1)
    await rig.committer.handed_over(plan, {})
    while not rig.notes:
        await asyncio.sleep(0)
    upload = {"task": "Partition 1", "attempt": 1, "batch": 0, "bytes": 7, "elapsed_ms": 30}
    assert rig.notes == [("task-uploaded", upload)]
    assert rig.committer.open_batch == 0
    await rig.finish(plan, 0)
    await rig.committer.settle(60)
    assert [(kind, details["task"]) for kind, details in rig.notes[1:]] == [
        ("task-uploaded", "Partition 0")
    ]


@pytest.mark.asyncio
async def test_a_void_attempt_is_told_with_its_reason() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.committer.handed_over(plan, {0: "RetriableError: it does not start"})
    reason = "hand-over failed: task=Partition 0 RetriableError: it does not start"
    (note,) = rig.notes
    assert note == ("void", {"attempt_epoch": 1, "attempt": 1, "batch": 0, "reason": reason})


@pytest.mark.asyncio
async def test_a_damaged_entry_fails_the_attempt() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.enter(plan, 0, b"nonsense")
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert rig.gate.failures == 1


@pytest.mark.asyncio
async def test_a_task_that_failed_fails_the_attempt_with_its_text() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.enter(plan, 0, encode_attempt_entry(FailedTask("upload", "backend is down")))
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    with pytest.raises(CommitFailedError, match="backend is down"):
        await rig.begin(1, {0: V0})


@pytest.mark.asyncio
async def test_polling_backs_off_and_reads_no_entry_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V0})
    await rig.finish(plan, 0)
    reads: list[str] = []
    get = rig.checkpoints._blobs.get

    async def counted(blob_id: str) -> bytes:
        reads.append(blob_id)
        return await get(blob_id)

    monkeypatch.setattr(rig.checkpoints._blobs, "get", counted)
    await rig.committer.handed_over(plan, {})
    while len(rig.clock.slept) < 6:
        await asyncio.sleep(0)
    await rig.finish(plan, 1)
    await rig.committer.settle(60)
    assert rig.clock.slept[:6] == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert len(reads) == 2


@pytest.mark.asyncio
async def test_a_task_without_change_has_nothing_to_upload() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0, 1: V0})
    plan = await rig.begin(1, {0: V0, 1: V1})
    assert plan.versions == {1: V1}
    assert attempt_of(rig, plan).uploads == ["Partition 1"]


@pytest.mark.asyncio
async def test_a_task_without_change_is_uploaded_to_a_backend_that_lacks_it() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0, 1: ""})
    moved = Rig(rig.writer, rig.checkpoints, (BLOB, KAFKA))
    plan = await moved.begin(1, {0: V0, 1: ""})
    assert plan.versions == {0: V0}
    assert attempt_of(rig, plan).uploads == ["Partition 0"]


@pytest.mark.asyncio
async def test_a_task_whose_marker_is_bad_is_uploaded_again() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0})
    bad = BadMarkerRecord(
        epoch=0,
        nonce="",
        backend=BLOB,
        task=task_name(0),
        store=STATE_STORE,
        marker="m",
        reason="test",
    )
    await rig.writer.append(bad)
    assert (await rig.begin(1, {0: V0})).versions == {0: V0}


@pytest.mark.asyncio
async def test_the_commit_record_keeps_the_checkpoints_of_tasks_without_change() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0, 1: V0})
    await committed(rig, {0: V0, 1: V2})
    commit = rig.writer.view.last_commit
    assert isinstance(commit, CommitRecord)
    assert commit.batch == 1
    assert commit.versions == {"Partition 0": V0, "Partition 1": V2}
    for raw in commit.checkpoints.values():
        markers = msgspec.json.decode(bytes(raw))["state-checkpoint-markers"]
        assert markers == {"blob": {"state": "m"}}


@pytest.mark.asyncio
async def test_an_attempt_of_an_earlier_driver_is_recorded_with_its_versions() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    attempt = attempt_of(rig, plan)
    checkpoint = CheckpointV2(CheckpointId(7, 1), {}, {BLOB: {STATE_STORE: Marker("m")}})
    key = (plan.epoch, plan.attempt)
    summary = await rig.committer.record_now(
        key, attempt, GatheredTasks({0: encode_checkpoint_v2(checkpoint)}, bytes_uploaded=7)
    )
    assert summary.was_rolled_forward
    assert (summary.tasks_uploaded, summary.bytes_uploaded) == (1, 7)
    assert rig.committer.committed_batch == 0


@pytest.mark.asyncio
async def test_a_commit_record_that_landed_without_an_answer_is_a_commit() -> None:
    blobs = new_blobs()
    losing = LosingBlobs(blobs)
    rig = Rig(await driver_on(losing), BlobCheckpointStore(blobs, "job"))
    plan = await rig.begin(0, {0: V0})
    await rig.finish(plan, 0)
    losing.losses["put"] = 1
    await rig.committer.handed_over(plan, {})
    await rig.committer.settle(60)
    assert rig.committer.committed_batch == 0
    assert [summary.batch for summary in rig.summaries] == [0]
    assert (rig.gate.successes, rig.gate.failures) == (1, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("has_landed", [True, False], ids=["landed", "not landed"])
async def test_an_attempt_whose_record_got_no_answer_is_void_before_the_next_one(
    has_landed: bool,  # noqa: FBT001 - parametrized
) -> None:
    blobs = new_blobs()
    losing, refusing = LosingBlobs(blobs), RefusingBlobs(blobs)
    place = losing if has_landed else refusing
    rig = Rig(await driver_on(place), BlobCheckpointStore(blobs, "job"))
    (losing.losses if has_landed else refusing.refusals)["put"] = 1
    with pytest.raises(RetriableError):
        await rig.begin(0, {0: V0})
    again = await rig.begin(0, {0: V0})
    view = rig.writer.view
    assert set(view.open_attempts) == {(again.epoch, again.attempt)}
    assert view.void_attempts == {(again.epoch, again.attempt - 1)}
    assert rig.gate.failures == 0


@pytest.mark.asyncio
async def test_an_attempt_that_nobody_handed_over_is_void_once_the_query_is_idle() -> None:
    rig = await new_rig()
    await rig.begin(0, {0: V0})
    await rig.committer.void_if_overdue()
    assert rig.committer.open_batch is None
    assert rig.committer.is_due()


def open_plan_of(rig: Rig) -> HandOverPlan | None:
    return rig.committer.open_plan


def attempt_of(rig: Rig, plan: HandOverPlan) -> AttemptRecord:
    return rig.writer.view.open_attempts[plan.epoch, plan.attempt]

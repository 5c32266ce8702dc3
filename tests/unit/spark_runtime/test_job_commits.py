"""The driver's committer: what it commits and uploads, for which tasks."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec
import pytest
from committer_kit import BLOB, IDENTITY, KAFKA, V0, V1, V2, Rig, committed, new_rig
from log_kit import LosingBlobs, batch_record, driver_on, new_blobs

from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    SystemStreamPartition,
)
from statekeep.checkpoint.records import (
    AttemptRecord,
    BadMarkerRecord,
    CommitRecord,
)
from statekeep.checkpoint.serde import (
    decode_checkpoint_v2,
    encode_checkpoint_v2,
)
from statekeep.errors import KeyUnavailableError
from statekeep.spark.driver.job_commits import GatheredTasks
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import SubmitPlan

SPARK = SystemStreamPartition("spark", "j", 0)
LARGE = StoreName("large")


def clicks(partition: int) -> SystemStreamPartition:
    return SystemStreamPartition("kafka", "page.clicks", partition)


@pytest.mark.asyncio
async def test_a_commit_is_durable_once_every_task_has_its_entry() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V0})
    await rig.finish(plan, 0)
    await rig.committer.submitted(plan, {})
    for _ in range(50):
        await asyncio.sleep(0)
    assert rig.committer.open_batch == 0
    await rig.finish(plan, 1)
    await rig.committer.resolve(60)
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
    submitted = decode_checkpoint_v2(plan.checkpoints[0], where="plan").input_offsets
    assert submitted == {SPARK: "1", clicks(0): "4", clicks(2): "-1"}
    await rig.finish(plan, 0)
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    commit = rig.writer.view.last_commit
    assert commit is not None
    unchanged = decode_checkpoint_v2(bytes(commit.checkpoints["Partition 1"]), where="commit")
    assert unchanged.input_offsets == {SPARK: "1", clicks(1): "6"}


@pytest.mark.asyncio
async def test_a_commit_reports_which_optional_backends_lack_the_state_of_a_task() -> None:
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
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert rig.committer.committed_batch == 1


@pytest.mark.asyncio
async def test_each_upload_is_reported_once_it_is_found() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    await rig.finish(plan, 1)
    await rig.committer.submitted(plan, {})
    while not rig.notes:
        await asyncio.sleep(0)
    upload = {"task": "Partition 1", "attempt": 1, "batch": 0, "bytes": 7, "elapsed_ms": 30}
    upload |= {
        "uploads": {"blob": {"bytes": 7, "elapsed_ms": 20}},
        "changed_bytes": 5,
        "state_bytes": 4096,
    }
    assert rig.notes == [("task-uploaded", upload)]
    assert rig.committer.open_batch == 0
    await rig.finish(plan, 0)
    await rig.committer.resolve(60)
    assert [(kind, details.get("task")) for kind, details in rig.notes[1:]] == [
        ("task-uploaded", "Partition 0"),
        ("commit", None),
    ]


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
    await rig.committer.submitted(plan, {})
    while len(rig.clock.slept) < 6:
        await asyncio.sleep(0)
    await rig.finish(plan, 1)
    await rig.committer.resolve(60)
    assert rig.clock.slept[:6] == pytest.approx([0.05, 0.15, 0.5, 0.5, 0.5, 0.5])
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
async def test_a_task_without_change_is_uploaded_to_a_backend_that_lacks_one_of_its_stores() -> (
    None
):
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0, 1: ""})
    grown = Rig(rig.writer, rig.checkpoints, {BLOB: [STATE_STORE, LARGE]})
    assert (await grown.begin(1, {0: V0, 1: ""})).versions == {0: V0}


@pytest.mark.asyncio
async def test_a_store_that_was_given_up_and_comes_back_has_nothing_of_before() -> None:
    """The task changes in none of the three sessions: each commit keeps what the one before held."""
    one, both = (
        msgspec.structs.replace(IDENTITY, stores={"main": stores})
        for stores in ([STATE_STORE], [STATE_STORE, LARGE])
    )
    rig = await new_rig({BLOB: [STATE_STORE, LARGE]}, identity=both)
    await committed(rig, {0: V0}, stores=[STATE_STORE, LARGE])
    without = Rig(rig.writer, rig.checkpoints, (BLOB,), identity=one)
    await committed(without, {0: V0})
    assert markers_of(rig, 0) == {"blob": {"state": "m"}}
    back = Rig(rig.writer, rig.checkpoints, {BLOB: [STATE_STORE, LARGE]}, identity=both)
    assert (await back.begin(2, {0: V0})).versions == {0: V0}


@pytest.mark.asyncio
async def test_a_marker_that_a_commit_does_not_list_is_not_taken_over() -> None:
    """As commits of earlier releases have them, of stores that were given up."""
    one, both = (
        msgspec.structs.replace(IDENTITY, stores={"main": stores})
        for stores in ([STATE_STORE], [STATE_STORE, LARGE])
    )
    rig = await new_rig((BLOB,), identity=one)
    await committed(rig, {0: V0}, stores=[STATE_STORE, LARGE])
    assert markers_of(rig, 0) == {"blob": {"state": "m", "large": "m"}}
    back = Rig(rig.writer, rig.checkpoints, {BLOB: [STATE_STORE, LARGE]}, identity=both)
    assert (await back.begin(1, {0: V0})).versions == {0: V0}


def markers_of(rig: Rig, partition: int) -> object:
    """Return the markers that the newest commit has of a task."""
    commit = rig.writer.view.last_commit
    assert commit is not None
    raw = commit.checkpoints[task_name(partition)]
    return json.loads(bytes(raw))["state-checkpoint-markers"]


@pytest.mark.asyncio
async def test_a_backend_that_lacks_one_store_of_a_task_is_reported() -> None:
    rig = await new_rig((), {BLOB: [STATE_STORE, LARGE]})
    await committed(rig, {0: V0})
    assert rig.summaries[0].left_out == [BLOB]


@pytest.mark.asyncio
async def test_a_commit_needs_a_backup_of_each_store_of_a_task() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0})
    for stores, lacking in [([STATE_STORE], []), ([STATE_STORE, LARGE], [0])]:
        moved = Rig(rig.writer, rig.checkpoints, {BLOB: stores, KAFKA: stores})
        assert moved.committer._records.without_backup({0: V0}, []) == lacking


@pytest.mark.asyncio
async def test_no_commit_lists_a_store_that_is_in_no_backend() -> None:
    identity = msgspec.structs.replace(IDENTITY, stores={"main": [STATE_STORE, LARGE]})
    rig = await new_rig((BLOB,), identity=identity)
    plan = await rig.begin(0, {0: V0, 1: ""})
    await rig.finish(plan, 0)  # with a marker of the first store alone
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert rig.committer.committed_batch == -1
    assert rig.writer.view.last_commit is None


@pytest.mark.asyncio
async def test_a_task_whose_marker_is_bad_is_uploaded_again() -> None:
    rig = await new_rig((BLOB,))
    await committed(rig, {0: V0})
    bad = BadMarkerRecord(
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
        markers = json.loads(bytes(raw))["state-checkpoint-markers"]
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
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert rig.committer.committed_batch == 0
    assert [summary.batch for summary in rig.summaries] == [0]
    assert (rig.gate.successes, rig.gate.failures) == (1, 0)


def attempt_of(rig: Rig, plan: SubmitPlan) -> AttemptRecord:
    return rig.writer.view.open_attempts[plan.epoch, plan.attempt]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("outdated", "uploads"), [({Marker("another")}, {0}), ({Marker("m")}, {0, 1})]
)
async def test_a_task_whose_backup_is_under_a_key_of_before_uploads_again_though_unchanged(
    outdated: set[Marker], uploads: set[int]
) -> None:
    rig = await new_rig()
    await committed(rig, {0: V0, 1: V0})
    rig.outdated = outdated
    plan = await rig.begin(1, {0: V1, 1: V0})
    assert set(plan.versions) == uploads


@pytest.mark.asyncio
async def test_a_key_that_is_not_there_keeps_no_commit_from_beginning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await new_rig()
    await committed(rig, {0: V0, 1: V0})
    rig.key_error = KeyUnavailableError("there is no encryption key")
    plan = await rig.begin(1, {0: V1, 1: V0})
    assert set(plan.versions) == {0}
    assert "there is no encryption key" in caplog.text


def _uid(number: int) -> str:
    return f"{number:016x}"


async def _calls_of_a_commit(tasks: int) -> int:
    """Return how many functions of ours the driver calls for a commit in which all tasks upload."""
    rig = await new_rig((BLOB,), identity=msgspec.structs.replace(IDENTITY, partitions=tasks))
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and "/statekeep/" in frame.f_code.co_filename

    @contextmanager
    def counted() -> Iterator[None]:
        sys.setprofile(count)
        try:
            yield
        finally:
            sys.setprofile(None)

    await committed(rig, {task: f"0_{_uid(task)}" for task in range(tasks)})
    base = CheckpointId.parse(rig.summaries[0].checkpoint_id)
    with counted():
        plan = await rig.begin(1, {task: f"1_{_uid(task)}" for task in range(tasks)})
    entries = {task: rig.entry(plan, task, base) for task in plan.versions}
    name = f"{plan.epoch}-{plan.attempt}"
    # In one pack, as a sidecar writes them.
    await rig.checkpoints.write_all(name, {task_name(task): e for task, e in entries.items()})
    with counted():
        await rig.committer.submitted(plan, {})
        await rig.committer.resolve(60)
    assert rig.committer.committed_batch == 1
    assert len(plan.versions) == tasks
    return calls


@pytest.mark.asyncio
async def test_the_work_of_the_driver_grows_with_the_number_of_tasks_and_no_faster() -> None:
    calls = {tasks: await _calls_of_a_commit(tasks) for tasks in (8, 64, 512)}
    each = (calls[64] - calls[8]) / (64 - 8)
    assert each < 200, calls
    assert calls[512] - calls[64] <= 1.1 * each * (512 - 64), calls

"""The driver's committer: attempts that come to no commit, and what counts against the tolerance."""

import asyncio
import logging
from dataclasses import replace

import pytest
from committer_kit import BLOB, V0, V1, Rig, committed, new_rig
from log_kit import LosingBlobs, RefusingBlobs, driver_on, new_blobs
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types

from statekeep.backends.storage.checkpoint_store import BlobCheckpointStore
from statekeep.checkpoint.checkpoints import CheckpointId
from statekeep.checkpoint.records import (
    BadMarkerRecord,
)
from statekeep.checkpoint.serde import (
    FailedTask,
    encode_attempt_entry,
)
from statekeep.errors import (
    CheckpointCorruptError,
    CommitFailedError,
    ConfigError,
    RetriableError,
)
from statekeep.spark.tasks import STATE_STORE, task_name
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE, SubmitPlan


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
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert rig.committer.committed_batch == commits - 1
    assert "builds on another commit than the newest" in rig.notes[-1][1]["reason"]


@pytest.mark.asyncio
async def test_an_entry_with_the_checkpoint_of_another_commit_is_refused() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.finish(replace(plan, checkpoint_id="5-5"), 0)
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert "belongs to another commit" in rig.notes[-1][1]["reason"]


@pytest.mark.asyncio
async def test_a_lost_version_in_flight_leaves_the_commit_owed_and_uncounted() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    await rig.committer.submitted(plan, {})
    await rig.committer.abort_if_lost({0: V0})
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
            backend=BLOB,
            task=task_name(0),
            store=STATE_STORE,
            marker="m",
            reason="damaged",
        )
    )
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert rig.committer.committed_batch == 0
    assert rig.gate.failures == 0
    assert "was found bad: task=Partition 0" in rig.notes[-1][1]["reason"]
    assert (await rig.begin(1, {0: V0})).versions == {0: V0}


@pytest.mark.asyncio
async def test_who_waits_for_an_abandoned_commit_goes_on_and_it_is_not_counted() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.committer.submitted(plan, {})
    waiting = asyncio.ensure_future(rig.committer.resolve(1e9))
    await asyncio.sleep(0)
    await rig.committer.abandon("the query was told to stop")
    await waiting
    assert rig.committer.open_batch is None
    assert rig.gate.failures == 0
    assert rig.notes[-1][1]["reason"] == "the query was told to stop"


@pytest.mark.asyncio
async def test_a_submission_that_finds_no_version_leaves_the_commit_uncounted() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    await rig.committer.submitted(plan, {0: f"{VERSION_NOT_HERE}: version={V0}"})
    assert rig.gate.failures == 0
    assert (await rig.begin(1, {0: V0, 1: V1})).attempt == 2


@pytest.mark.asyncio
async def test_an_attempt_whose_batch_was_interrupted_gives_way_to_the_next_uncounted() -> None:
    rig = await new_rig()
    await rig.begin(0, {0: V0, 1: V1})  # rides on a batch that never answers
    again = await rig.begin(0, {0: V0, 1: V1})
    assert again.attempt == 2
    assert (rig.gate.timeouts, rig.gate.failures) == (0, 0)
    assert [details["reason"] for _, details in rig.notes] == ["it was not submitted"]


@pytest.mark.asyncio
async def test_a_submission_that_fails_otherwise_counts() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V1})
    errors = {0: f"{VERSION_NOT_HERE}: version={V0}", 1: "RetriableError: it does not start"}
    await rig.committer.submitted(plan, errors)
    with pytest.raises(CommitFailedError, match="it does not start"):
        await rig.begin(1, {0: V0, 1: V1})


@pytest.mark.asyncio
async def test_only_an_attempt_that_is_followed_has_an_open_plan() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    assert open_plan_of(rig) is None
    await rig.committer.submitted(plan, {})
    assert open_plan_of(rig) is plan
    await rig.finish(plan, 0)
    await rig.committer.resolve(60)
    assert open_plan_of(rig) is None


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [
        OSError("namenode failure"),
        CheckpointCorruptError("namenode failure"),
        ConfigError("namenode failure"),
        Py4JError("namenode failure"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_follower_fails_the_attempt_with_its_text(error: Exception) -> None:
    rig = await new_rig()
    rig.state_error = error
    plan = await rig.begin(0, {0: ""})
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    with pytest.raises(CommitFailedError, match="namenode failure"):
        await rig.begin(1, {0: ""})


@pytest.mark.asyncio
async def test_an_upload_that_hangs_is_given_up_though_no_batch_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0, 1: V0})
    await rig.finish(plan, 0)
    await rig.committer.submitted(plan, {})
    monkeypatch.setattr(rig.gate, "is_overdue", lambda _: False)  # the clock itself runs on
    await rig.committer.abort_if_overdue()
    assert open_plan_of(rig) is plan
    monkeypatch.setattr(rig.gate, "is_overdue", lambda _: True)
    await rig.committer.abort_if_overdue()
    assert rig.committer.open_batch is None
    assert [d["reason"] for kind, d in rig.notes if kind == "void"] == ["timed out"]
    assert rig.committer.final_error is not None
    with pytest.raises(CommitFailedError, match="did not end in time"):
        await rig.committer.prepare(0, {0: V0, 1: V0}, is_forced=True)


@pytest.mark.asyncio
async def test_an_unexpected_error_fails_the_attempt_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await new_rig()
    rig.state_error = LookupError("a bug")
    plan = await rig.begin(0, {0: ""})
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert [r.levelno for r in caplog.records if "unexpectedly" in r.message] == [logging.ERROR]
    with pytest.raises(CommitFailedError, match="LookupError: a bug"):
        await rig.begin(1, {0: ""})


@pytest.mark.asyncio
async def test_an_aborted_attempt_is_reported_with_its_reason() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.committer.submitted(plan, {0: "RetriableError: it does not start"})
    reason = "submit failed: task=Partition 0 RetriableError: it does not start"
    (note,) = rig.notes
    assert note == ("void", {"attempt_epoch": 1, "attempt": 1, "batch": 0, "reason": reason})


@pytest.mark.asyncio
async def test_a_damaged_entry_fails_the_attempt() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.enter(plan, 0, b"nonsense")
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    assert rig.gate.failures == 1


@pytest.mark.asyncio
async def test_a_task_that_failed_fails_the_attempt_with_its_text() -> None:
    rig = await new_rig()
    plan = await rig.begin(0, {0: V0})
    await rig.enter(plan, 0, encode_attempt_entry(FailedTask("upload", "backend is down")))
    await rig.committer.submitted(plan, {})
    await rig.committer.resolve(60)
    with pytest.raises(CommitFailedError, match="backend is down"):
        await rig.begin(1, {0: V0})


@pytest.mark.asyncio
@pytest.mark.parametrize("has_landed", [True, False], ids=["landed", "not landed"])
async def test_an_attempt_whose_record_got_no_answer_is_aborted_before_the_next_one(
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
    assert view.aborted_attempts == {(again.epoch, again.attempt - 1)}
    assert rig.gate.failures == 0


@pytest.mark.asyncio
async def test_an_attempt_that_was_not_submitted_is_aborted_once_the_query_is_idle() -> None:
    rig = await new_rig()
    await rig.begin(0, {0: V0})
    await rig.committer.abort_if_overdue()
    assert rig.committer.open_batch is None
    assert rig.committer.is_due()


def open_plan_of(rig: Rig) -> SubmitPlan | None:
    return rig.committer.open_plan

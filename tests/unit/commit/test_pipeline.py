"""The commit pipeline: all backends or nothing, and the order of the steps."""

import asyncio
from pathlib import Path

import pytest
from pipeline_kit import F0, F1, ID, INPUT, S0, S1, Rig

from statekeep.checkpoint.checkpoints import (
    CheckpointV2,
    Marker,
)
from statekeep.checkpoint.serde import decode_checkpoint_v2
from statekeep.errors import CommitFailedError, ConfigError, RetriableError, TaskFencedError
from statekeep.fault_points import fault_handler


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {})


@pytest.mark.asyncio
async def test_a_checkpoint_holds_the_markers_of_every_backend_for_every_store(rig: Rig) -> None:
    await rig.pipeline.init()
    checkpoint = await rig.commit()
    assert checkpoint == CheckpointV2(
        ID,
        {INPUT: "41"},
        {
            F0: {S0: Marker("f0-s0"), S1: Marker("f0-s1")},
            F1: {S0: Marker("f1-s0"), S1: Marker("f1-s1")},
        },
    )


@pytest.mark.asyncio
async def test_the_steps_come_in_order_and_the_checkpoint_file_after_every_upload(
    rig: Rig,
) -> None:
    with fault_handler(rig.calls.append):
        await rig.pipeline.init()
        await rig.commit()
    assert rig.calls == [
        *("f0.init", "f1.init"),
        *("snapshot.before", "f0.snapshot", "f1.snapshot", "snapshot.after"),
        *("upload.before", "f0.upload", "f1.upload"),
        *("checkpoint.before_write", "checkpoint.after_write"),
    ]


@pytest.mark.asyncio
async def test_the_bytes_to_send_are_known_before_the_upload_begins(rig: Rig) -> None:
    known: list[int | dict[str, int]] = []

    def note(point: str) -> None:
        if point == "upload.before":
            known.append(rig.metrics.snapshot()["upload-bytes"])

    await rig.pipeline.init()
    with fault_handler(note):
        await rig.commit()
    assert known == [20]  # two stores of 5 bytes, to two backends


@pytest.mark.asyncio
async def test_the_checkpoint_lies_beside_the_version(rig: Rig) -> None:
    await rig.pipeline.init()
    checkpoint = await rig.commit()
    data = rig.version.read_checkpoint()
    assert data is not None
    assert decode_checkpoint_v2(data, "test") == checkpoint


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["snapshot", "upload"])
async def test_a_failing_step_fails_the_commit_and_writes_no_checkpoint(
    rig: Rig, step: str
) -> None:
    await rig.pipeline.init()
    rig.backup(F1).fail[step] = RetriableError("down")
    with pytest.raises(CommitFailedError, match=f"step={step}") as caught:
        await rig.commit()
    assert caught.value.__cause__ is rig.backup(F1).fail[step]
    assert rig.version.read_checkpoint() is None


@pytest.mark.asyncio
async def test_a_checkpoint_that_cannot_be_written_locally_fails_the_commit(rig: Rig) -> None:
    await rig.pipeline.init()
    (rig.version.directory / "CHECKPOINT-V2").mkdir()
    with pytest.raises(CommitFailedError, match="step=checkpoint"):
        await rig.commit()


@pytest.mark.asyncio
async def test_the_first_failed_upload_cancels_the_others(rig: Rig) -> None:
    await rig.pipeline.init()
    rig.backup(F0).hang = True
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError):
        await rig.commit()
    assert "f0.cancelled" in rig.calls


@pytest.mark.asyncio
async def test_the_commit_after_a_failed_one_succeeds(rig: Rig) -> None:
    await rig.pipeline.init()
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError):
        await rig.commit()
    rig.backup(F1).fail.clear()
    assert set((await rig.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_a_cancelled_commit_stops_its_uploads_and_writes_nothing(rig: Rig) -> None:
    await rig.pipeline.init()
    rig.backup(F0).hang = True
    committing = asyncio.create_task(rig.commit())
    while "f0.upload" not in rig.calls:
        await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert "f0.cancelled" in rig.calls
    assert rig.version.read_checkpoint() is None
    with pytest.raises(KeyError):
        rig.backup(F0).context.commit(ID)


@pytest.mark.asyncio
async def test_a_required_backend_is_never_taken_for_away_beforehand(rig: Rig) -> None:
    rig.pipeline.ask_optional_first()
    await rig.pipeline.init()
    assert rig.calls == ["f0.init", "f1.init"]


@pytest.mark.asyncio
async def test_a_failed_commit_names_the_backend_that_it_failed_for(rig: Rig) -> None:
    await rig.pipeline.init()
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError, match="task=Partition 0 backend=f1"):
        await rig.commit()


@pytest.mark.asyncio
async def test_a_backend_that_forgets_a_marker_fails_the_commit(rig: Rig) -> None:
    await rig.pipeline.init()
    rig.backup(F0).markers = {S0: Marker("m")}
    with pytest.raises(CommitFailedError, match="step=upload") as caught:
        await rig.commit()
    assert "stores=s1" in str(caught.value.__cause__)


@pytest.mark.asyncio
async def test_being_fenced_is_not_reported_as_a_failure(rig: Rig) -> None:
    await rig.pipeline.init()
    rig.backup(F1).fail["upload"] = TaskFencedError("moved", own_epoch=1, newer_epoch=2)
    with pytest.raises(TaskFencedError):
        await rig.commit()


@pytest.mark.asyncio
async def test_clean_up_gives_each_backend_its_own_retained_markers(rig: Rig) -> None:
    await rig.pipeline.init()
    checkpoint = await rig.commit()
    await rig.pipeline.clean_up([checkpoint], [(1, 0)])
    assert rig.backup(F1).clean_up_args == ([checkpoint.state_markers[F1]], [(1, 0)])


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["clean_up", "close"])
async def test_clean_up_and_close_try_every_backend_and_then_raise(rig: Rig, step: str) -> None:
    await rig.pipeline.init()
    rig.backup(F0).fail[step] = RetriableError("down")
    with pytest.raises(ExceptionGroup) as caught:
        await (rig.pipeline.clean_up([], []) if step == "clean_up" else rig.pipeline.close())
    assert caught.value.exceptions == (rig.backup(F0).fail[step],)
    assert f"f1.{step}" in rig.calls


@pytest.mark.asyncio
async def test_a_required_backend_that_is_not_ready_fails_the_start(rig: Rig) -> None:
    rig.backup(F0).fail["init"] = ConfigError("no such location")
    with pytest.raises(ConfigError):
        await rig.pipeline.init()


@pytest.mark.asyncio
async def test_clean_up_gets_the_backends_ready_that_are_not(rig: Rig) -> None:
    await rig.pipeline.clean_up([], [(1, 0)])
    assert rig.backup(F0).clean_up_args == ([], [(1, 0)])
    assert rig.backup(F1).clean_up_args == ([], [(1, 0)])
    await rig.pipeline.clean_up([], [(1, 1)])
    assert rig.calls.count("f0.init") == 1


@pytest.mark.asyncio
async def test_clean_up_fails_if_a_required_backend_does_not_get_ready(rig: Rig) -> None:
    rig.backup(F0).fail["init"] = RetriableError("down")
    with pytest.raises(ExceptionGroup) as caught:
        await rig.pipeline.clean_up([], [(1, 0)])
    assert caught.value.exceptions == (rig.backup(F0).fail["init"],)
    assert rig.backup(F0).clean_up_args is None
    assert rig.backup(F1).clean_up_args == ([], [(1, 0)])

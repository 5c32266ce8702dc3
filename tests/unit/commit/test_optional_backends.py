"""The commit pipeline with backends that may fail: loudly left out, and taken in again."""

import asyncio
import logging
from pathlib import Path

import pytest
from pipeline_kit import F0, F1, ID, S0, S1, Rig

from statekeep.checkpoint.checkpoints import (
    CheckpointV2,
    Marker,
)
from statekeep.errors import CommitFailedError, ConfigError, RetriableError


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {})


@pytest.fixture
def lenient(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {S0: ("f1",), S1: ("f1",)})


@pytest.mark.asyncio
async def test_an_optional_backend_that_fails_is_left_out_loudly(
    lenient: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await lenient.pipeline.init()
    lenient.backup(F1).fail["upload"] = RetriableError("down")
    checkpoint = await lenient.commit()
    assert set(checkpoint.state_markers) == {F0}
    assert lenient.metrics.counters["optional-upload-failures"] == 1
    assert [r.levelno for r in caplog.records if "optional backend" in r.message] == [logging.ERROR]


@pytest.mark.asyncio
async def test_a_commit_waits_for_an_optional_backend_no_longer_than_it_may(
    lenient: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await lenient.pipeline.init()
    lenient.backup(F1).hang = True
    checkpoint = await lenient.commit()
    assert set(checkpoint.state_markers) == {F0}
    assert "f1.cancelled" in lenient.calls
    assert "step=timeout" in caplog.text
    lenient.backup(F1).hang = False
    assert set((await lenient.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_an_optional_backend_whose_snapshot_fails_fails_no_commit(lenient: Rig) -> None:
    await lenient.pipeline.init()
    lenient.backup(F1).fail["snapshot"] = RetriableError("no room for the note")
    assert set((await lenient.commit()).state_markers) == {F0}
    lenient.backup(F1).fail.clear()
    assert set((await lenient.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_an_optional_backend_that_is_not_ready_joins_at_a_later_commit(lenient: Rig) -> None:
    lenient.backup(F1).fail["init"] = ConfigError("no such location")
    await lenient.pipeline.init()
    assert set((await lenient.commit()).state_markers) == {F0}
    lenient.backup(F1).fail.clear()
    assert set((await lenient.commit()).state_markers) == {F0, F1}


@pytest.mark.asyncio
async def test_an_optional_backend_that_was_left_out_is_asked_before_it_takes_part_again(
    lenient: Rig,
) -> None:
    await lenient.pipeline.init()
    lenient.backup(F1).fail["upload"] = RetriableError("down")
    lenient.backup(F1).fail["check"] = RetriableError("still down")
    for _ in range(2):
        assert set((await lenient.commit()).state_markers) == {F0}
    assert [call for call in lenient.calls if call.startswith("f1.")] == [
        *("f1.init", "f1.snapshot", "f1.upload"),
        *("f1.create", "f1.check", "f1.check-end"),
    ]
    lenient.backup(F1).fail.clear()
    lenient.calls.clear()
    for _ in range(2):
        assert set((await lenient.commit()).state_markers) == {F0, F1}
    assert [call for call in lenient.calls if call.startswith("f1.")] == [
        *("f1.create", "f1.check", "f1.check-end", "f1.snapshot", "f1.upload"),
        *("f1.snapshot", "f1.upload"),
    ]


@pytest.mark.asyncio
async def test_what_an_optional_backend_lacks_is_created_before_a_process_first_uploads_to_it(
    lenient: Rig,
) -> None:
    lenient.pipeline.ask_optional_first()
    await lenient.pipeline.init()
    assert lenient.calls == ["f0.init"]
    for _ in range(2):
        assert set((await lenient.commit()).state_markers) == {F0, F1}
    assert [call for call in lenient.calls if call.startswith("f1.")] == [
        *("f1.create", "f1.check", "f1.check-end", "f1.init", "f1.snapshot", "f1.upload"),
        *("f1.snapshot", "f1.upload"),
    ]


@pytest.mark.asyncio
async def test_clean_up_leaves_a_backend_alone_that_was_left_out_of_the_commit(
    lenient: Rig,
) -> None:
    await lenient.pipeline.init()
    lenient.backup(F1).fail["upload"] = RetriableError("down")
    checkpoint = await lenient.commit()
    await lenient.pipeline.clean_up([checkpoint], [])
    assert "f0.clean_up" in lenient.calls
    assert "f1.clean_up" not in lenient.calls


@pytest.mark.asyncio
async def test_clean_up_leaves_an_optional_backend_alone_that_a_checkpoint_lacks(
    lenient: Rig,
) -> None:
    checkpoint = CheckpointV2(ID, {}, {F0: {S0: Marker("m")}})
    lenient.pipeline.leave_out(checkpoint)
    await lenient.pipeline.clean_up([checkpoint], [])
    assert "f0.clean_up" in lenient.calls
    assert not [call for call in lenient.calls if call.startswith("f1.")]


@pytest.mark.asyncio
async def test_an_optional_backend_that_was_busy_when_a_commit_was_given_up_is_asked_first(
    lenient: Rig,
) -> None:
    await lenient.pipeline.init()
    lenient.backup(F1).fail["upload"] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await lenient.commit()
    lenient.backup(F1).fail.clear()
    lenient.calls.clear()
    await lenient.commit()
    assert next(call for call in lenient.calls if call.startswith("f1.")) == "f1.create"


@pytest.mark.asyncio
async def test_a_backend_that_is_optional_for_one_store_only_still_fails_the_commit(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, {S0: ("f1",)})
    await rig.pipeline.init()
    rig.backup(F1).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError, match="step=upload"):
        await rig.commit()


@pytest.mark.asyncio
async def test_a_store_that_no_backend_took_fails_the_commit_though_all_are_optional(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, {S0: ("f0", "f1"), S1: ("f0", "f1")})
    await rig.pipeline.init()
    for name in (F0, F1):
        rig.backup(name).fail["upload"] = RetriableError("down")
    with pytest.raises(CommitFailedError, match="no backend took the store"):
        await rig.commit()


@pytest.mark.asyncio
async def test_clean_up_leaves_out_an_optional_backend_that_does_not_get_ready(
    lenient: Rig,
) -> None:
    lenient.backup(F1).fail["init"] = RetriableError("down")
    assert not await lenient.pipeline.clean_up([], [(1, 0)])
    assert lenient.backup(F0).clean_up_args == ([], [(1, 0)])
    assert lenient.backup(F1).clean_up_args is None

"""The restore of a task: local, next backend, older commit, error; never a mixture."""

import asyncio
import dataclasses
import errno
from pathlib import Path

import pytest
from restore_kit import FIRST, NEW, OLD, SECOND, TASK, A, B, Rig, SilentBackendFactory
from secret_kit import SECRET, TEXTS

from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    Marker,
)
from statekeep.config.store_settings import StoreSettings
from statekeep.errors import RestoreFailedError
from statekeep.restore import fetch
from statekeep.restore.manager import LOCAL, RestoreCandidate


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.asyncio
async def test_an_identical_local_version_costs_no_byte(rig: Rig) -> None:
    outcome = await rig.restore(await rig.commit(b"new"))
    assert outcome.sources == {A: LOCAL, B: LOCAL}
    assert outcome.bytes_fetched == 0
    assert rig.content(outcome) == NEW


@pytest.mark.asyncio
async def test_without_the_disk_every_store_comes_from_the_first_backend(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    outcome = await rig.restore(candidate)
    assert outcome.sources == {A: FIRST, B: FIRST}
    assert outcome.version is not None
    assert outcome.version.id == candidate.version
    assert outcome.bytes_fetched > 0
    assert rig.content(outcome) == NEW


@pytest.mark.asyncio
async def test_a_damaged_local_version_is_moved_aside_and_fetched(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.damage_local(rig.versions[0])
    outcome = await rig.restore(candidate)
    assert outcome.sources == {A: FIRST, B: FIRST}
    assert [failure.backend for failure in outcome.failures] == [LOCAL]
    assert rig.content(outcome) == NEW


@pytest.mark.asyncio
async def test_only_the_store_that_a_backend_lost_comes_from_the_next_one(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    rig.lose(FIRST, candidate, B)
    outcome = await rig.restore(candidate)
    assert outcome.sources == {A: FIRST, B: SECOND}
    assert [(f.store, f.backend, f.is_marker_bad) for f in outcome.failures] == [(B, FIRST, True)]
    assert rig.content(outcome) == NEW


@pytest.mark.asyncio
async def test_a_store_that_no_backend_has_takes_all_stores_to_the_older_commit(rig: Rig) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    rig.lose_disk()
    for backend in (FIRST, SECOND):
        rig.lose(backend, new, B)
    outcome = await rig.restore(new, old)
    assert outcome.candidate is old
    assert rig.content(outcome) == OLD
    assert rig.directory.versions() == [old.version]


@pytest.mark.asyncio
async def test_what_a_backend_holds_that_is_not_restored_from_is_no_reason_for_an_older_commit(
    rig: Rig,
) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    assert new.checkpoint is not None
    markers = {SECOND: new.checkpoint.state_markers[SECOND]}
    in_second = dataclasses.replace(
        new, checkpoint=dataclasses.replace(new.checkpoint, state_markers=markers)
    )
    rig.lose_disk()
    rig.stores = {
        name: dataclasses.replace(settings, restore_factories=(FIRST,))
        for name, settings in rig.stores.items()
    }
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(in_second, old)
    told = "".join(caught.value.__notes__)
    assert "it has one of second, which is not in stores.a.restore.factories" in told
    assert rig.directory.versions() == []


@pytest.mark.asyncio
async def test_what_a_program_with_fewer_stores_has_left_here_is_not_the_version(rig: Rig) -> None:
    new = await rig.commit(b"new")
    rig.lose_disk()
    both = rig.stores
    rig.stores = {A: both[A]}
    await rig.restore(new)
    rig.stores = both
    outcome = await rig.restore(new)
    assert outcome.sources == {A: FIRST, B: FIRST}
    assert rig.content(outcome) == NEW
    assert (await rig.restore(new)).sources == {A: LOCAL, B: LOCAL}


@pytest.mark.asyncio
@pytest.mark.parametrize("is_disk_lost", [True, False])
async def test_settings_that_lost_a_list_begin_nothing_empty(
    rig: Rig, *, is_disk_lost: bool
) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    if is_disk_lost:
        rig.lose_disk()
    before = rig.directory.versions()
    rig.stores = {**rig.stores, B: StoreSettings(B, factory="memory")}
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(new, old)
    assert not caught.value.is_for_good
    told = "".join(caught.value.__notes__)
    assert "it has one of first,second, which is not in stores.b.restore.factories" in told
    assert rig.directory.versions() == before


@pytest.mark.asyncio
async def test_a_backend_that_does_not_answer_gives_way_to_the_next_one(rig: Rig) -> None:
    new = await rig.commit(b"new")
    rig.lose_disk()
    rig.silence(FIRST)
    outcome = await rig.restore(new)
    assert outcome.sources == {A: SECOND, B: SECOND}
    assert not any(failure.is_marker_bad for failure in outcome.failures)


@pytest.mark.asyncio
@pytest.mark.parametrize("text", TEXTS)
async def test_what_a_client_says_of_a_failure_is_reported_without_its_secrets(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    monkeypatch.setattr(SilentBackendFactory, "text", text)
    new = await rig.commit(b"new")
    rig.lose_disk()
    rig.silence(FIRST)
    outcome = await rig.restore(new)
    assert [failure.backend for failure in outcome.failures] == [FIRST, FIRST]
    assert all("***" in failure.error for failure in outcome.failures)
    assert SECRET not in f"{outcome.failures} {caplog.text}"


@pytest.mark.asyncio
@pytest.mark.parametrize("is_second_lost", [False, True])
async def test_an_outage_is_an_error_and_never_an_older_commit(
    rig: Rig, *, is_second_lost: bool
) -> None:
    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    rig.lose_disk()
    rig.silence(FIRST)
    if is_second_lost:
        rig.lose(SECOND, new, B)
    else:
        rig.silence(SECOND)
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(new, old)
    assert any("once the backend answers" in hint for hint in caught.value.hints)
    assert rig.directory.versions() == []


@pytest.mark.asyncio
async def test_a_local_disk_that_refuses_between_two_backends_is_no_reason_for_an_older_commit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(directory))

    old, new = await rig.commit(b"old"), await rig.commit(b"new")
    rig.lose_disk()
    rig.lose(FIRST, new, A)
    monkeypatch.setattr(fetch, "_remove", refuse)
    with pytest.raises(RestoreFailedError) as caught:
        await rig.restore(new, old)
    assert any("Directory not empty" in note for note in caught.value.__notes__)
    monkeypatch.undo()
    outcome = await rig.restore(new, old)
    assert outcome.sources == {A: SECOND, B: FIRST}
    assert rig.content(outcome) == NEW


@pytest.mark.asyncio
async def test_nothing_within_reach_is_an_error_that_names_every_failure(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    for backend in (FIRST, SECOND):
        rig.lose(backend, candidate, A)
    with pytest.raises(RestoreFailedError, match="stores=a") as caught:
        await rig.restore(candidate)
    assert [note.split(" marker")[0] for note in caught.value.__notes__] == [
        "store=a backend=first",
        "store=a backend=second",
    ]
    assert rig.directory.versions() == []


@pytest.mark.asyncio
async def test_a_listed_store_without_a_marker_is_never_empty(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    assert candidate.checkpoint is not None
    without_b = {
        backend: {A: markers[A]} for backend, markers in candidate.checkpoint.state_markers.items()
    }
    checkpoint = dataclasses.replace(candidate.checkpoint, state_markers=without_b)
    with pytest.raises(RestoreFailedError, match="stores=b"):
        await rig.restore(dataclasses.replace(candidate, checkpoint=checkpoint))


@pytest.mark.asyncio
async def test_a_marker_known_to_be_bad_is_not_tried(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    assert candidate.checkpoint is not None
    marker = candidate.checkpoint.state_markers[FIRST][A]
    outcome = await rig.restore(candidate, bad_markers=[(FIRST, TASK.task_name, A, marker)])
    assert outcome.sources == {A: SECOND, B: FIRST}
    assert outcome.failures == ()


@pytest.mark.asyncio
async def test_the_empty_candidate_is_always_within_reach(rig: Rig) -> None:
    outcome = await rig.restore(RestoreCandidate(None, None))
    assert outcome.version is None
    assert outcome.sources == {}


@pytest.mark.asyncio
async def test_a_version_that_was_never_backed_up_is_used_only_from_this_disk(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    local_only = RestoreCandidate(None, candidate.version)
    assert (await rig.restore(local_only)).sources == {A: LOCAL, B: LOCAL}
    rig.lose_disk()
    assert (await rig.restore(local_only, candidate)).sources == {A: FIRST, B: FIRST}


@pytest.mark.asyncio
async def test_a_store_that_is_cleaned_on_start_is_fetched_though_it_is_here(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.stores = {
        name: dataclasses.replace(settings, is_cleaned_on_start=True)
        for name, settings in rig.stores.items()
    }
    outcome = await rig.restore(candidate)
    assert outcome.sources == {A: FIRST, B: FIRST}


@pytest.mark.asyncio
async def test_progress_goes_from_nothing_to_all_bytes_and_ends_as_done(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    outcome = await rig.restore(candidate)
    assert rig.reports[0].done_bytes == 0
    assert rig.reports[-1].is_done
    assert rig.reports[-1].done_bytes == rig.reports[-1].total_bytes == outcome.bytes_fetched


@pytest.mark.asyncio
async def test_a_cancelled_restore_leaves_no_version_and_no_work_directory(rig: Rig) -> None:
    candidate = await rig.commit(b"new")
    rig.lose_disk()
    total_turns = 0
    restoring = asyncio.create_task(rig.restore(candidate))
    while not restoring.done():
        await asyncio.sleep(0)
        total_turns += 1
    for turn in range(total_turns):
        rig.lose_disk()
        restoring = asyncio.create_task(rig.restore(candidate))
        for _ in range(turn):
            await asyncio.sleep(0)
        restoring.cancel()
        await asyncio.wait({restoring})
        assert list(rig.root.rglob("work-*")) == []
        for version_id in rig.directory.versions():
            version = rig.directory.find(version_id)
            assert version is not None
            version.verify()
        (rig.root / "local").mkdir(exist_ok=True)


@pytest.mark.asyncio
async def test_a_checkpoint_without_any_marker_and_version_is_empty_state(rig: Rig) -> None:
    checkpoint = CheckpointV2(CheckpointId(1, 1), {}, {FIRST: {A: Marker("gone")}})
    outcome = await rig.restore(RestoreCandidate(checkpoint, None))
    assert outcome.version is None

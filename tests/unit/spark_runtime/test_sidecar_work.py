"""Whatever goes wrong in a backup, the driver finds an entry; what a restore leaves is swept."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from outage_kit import cut_off, plan_of
from secret_kit import SECRET, TEXTS
from sidecar_process_kit import VERSION, spec_in, submit_versions

from statekeep.checkpoint.serde import (
    FailedTask,
    FinishedTask,
    decode_attempt_entry,
    encode_checkpoint_v2,
)
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.errors import CommitFailedError, ConfigError, RetriableError
from statekeep.spark.sidecar.protocol import Candidate, Restore
from statekeep.spark.sidecar.work import SidecarWork, _candidate, _failed
from statekeep.spark.tasks import STATE_STORE, local_directory, task_name
from statekeep.testing.clock import FakeClock
from statekeep.testing.versions import seal_version


@pytest_asyncio.fixture
async def work(tmp_path: Path) -> AsyncIterator[SidecarWork]:
    work = SidecarWork(spec_in(tmp_path), FakeClock())
    yield work
    await work.close()


async def entry_of(work: SidecarWork) -> FinishedTask | FailedTask:
    data = (await work._checkpoints.read("1-1"))[task_name(0)]
    return decode_attempt_entry(data, where="test")


def seal(root: Path) -> None:
    seal_version(local_directory(root / "local", "j-u", 0), VERSION, None, {b"k": b"v"})


@pytest.mark.asyncio
async def test_a_sound_version_is_backed_up(work: SidecarWork, tmp_path: Path) -> None:
    seal(tmp_path)
    await work.upload(submit_versions())
    entry = await entry_of(work)
    assert isinstance(entry, FinishedTask)
    files = (tmp_path / "blobs").rglob("*")
    content = [path for path in files if path.is_file() and "snapshot-index" not in path.name]
    assert entry.bytes_uploaded > 0
    assert entry.bytes_uploaded == sum(
        path.stat().st_size for path in content if "/blob/" in str(path)
    )


@pytest.mark.asyncio
async def test_an_entry_names_the_commit_that_its_backup_builds_on(
    work: SidecarWork, tmp_path: Path
) -> None:
    seal(tmp_path)
    await work.upload(submit_versions())
    first = await entry_of(work)
    assert isinstance(first, FinishedTask)
    assert first.base_id is None
    base = msgspec.Raw(encode_checkpoint_v2(first.checkpoint))
    again = msgspec.structs.replace(submit_versions(), base=base, base_version=VERSION)
    await work.upload(again)
    second = await entry_of(work)
    assert isinstance(second, FinishedTask)
    assert second.base_id == first.checkpoint.checkpoint_id


@pytest.mark.asyncio
async def test_a_damaged_version_is_a_failure_with_an_entry(
    work: SidecarWork, tmp_path: Path
) -> None:
    (local_directory(tmp_path / "local", "j-u", 0).root / VERSION).mkdir(parents=True)
    await work.upload(submit_versions())
    entry = await entry_of(work)
    assert isinstance(entry, FailedTask)
    assert "VersionDamagedError" in entry.error


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no such location"),
        RetriableError("no such location"),
        OSError("no such location"),
        ExceptionGroup("both", [OSError("no such location")]),
        KeyError("no such location"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_backend_that_does_not_get_ready_is_a_failure_with_an_entry(
    work: SidecarWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    seal(tmp_path)

    async def refuse(pipeline: TaskStorageCommitManager) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(TaskStorageCommitManager, "init", refuse)
        await work.upload(submit_versions())
    entry = await entry_of(work)
    assert isinstance(entry, FailedTask)
    assert type(error).__name__ in entry.error
    assert "no such location" in entry.error
    await work.upload(submit_versions())
    assert isinstance(await entry_of(work), FinishedTask)


@pytest.mark.asyncio
async def test_a_first_backup_asks_an_optional_backend_that_is_away_no_longer_than_a_check_does(
    tmp_path: Path,
) -> None:
    far, clock = str(tmp_path / "far"), FakeClock()
    spec = spec_in(
        tmp_path,
        **{
            "stores.backup.factories": "blob,far",
            "stores.backup.optional": "far",
            "backends.far.factory": "outage_kit:OutageBackendFactory",
            "backends.far.uri": far,
        },
    )
    seal(tmp_path)
    cut_off(far)
    work = SidecarWork(spec, clock)
    began_ns = clock.monotonic_ns()
    await work.upload(submit_versions())
    first = await entry_of(work)
    assert isinstance(first, FinishedTask)
    assert set(first.checkpoint.state_markers) == {"blob"}
    assert (clock.monotonic_ns() - began_ns) / 1e9 <= 60 + 2  # and the wait of the entry for others
    plan_of(far).clear()
    await work.upload(submit_versions())
    second = await entry_of(work)
    assert isinstance(second, FinishedTask)
    assert set(second.checkpoint.state_markers) == {"blob", "far"}
    await work.close()


@pytest.mark.asyncio
async def test_a_restore_sweeps_what_a_sidecar_that_died_in_it_has_fetched(
    work: SidecarWork, tmp_path: Path
) -> None:
    directory = local_directory(tmp_path / "local", "j-u", 0)
    left = directory.root / "work-0123"
    left.mkdir(parents=True)
    (left / "fetched").write_bytes(b"half of it")
    with directory.begin("4567", None, [STATE_STORE]) as living:
        done = await work.restore(
            Restore(epoch=1, partition=0, candidates=[Candidate(version="", stores=[])]),
            lambda progress: None,
        )
        assert living.path.exists()
    assert done.version == ""
    assert not left.exists()


def test_a_store_that_the_commit_of_a_candidate_does_not_list_is_new() -> None:
    """Whatever stores the job has by now."""
    sent = Candidate(version="3_cccccccc", stores=["state"])
    assert _candidate(sent).listed == frozenset({STATE_STORE})


@pytest.mark.parametrize("text", TEXTS)
def test_an_entry_of_a_failure_has_no_secret_of_a_client(text: str) -> None:
    of_a_backend = CommitFailedError("no backup: backend=far", checkpoint_id="1-0", step="upload")
    of_a_backend.__cause__ = OSError(text)
    noted = RetriableError("no answer")
    noted.add_note(text)
    for error in (of_a_backend, noted, OSError(text), ExceptionGroup("two", [OSError(text)])):
        told = _failed(error).error
        assert SECRET not in told
        assert "***" in told

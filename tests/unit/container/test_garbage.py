"""Mark and sweep across a job: what nothing reaches is found, shown, and only then deleted."""

from pathlib import Path

import pytest
from cli_kit import TASK, commit_numbers, job_settings

from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.errors import BlobNotFoundError
from statekeep.inspection.garbage import Garbage, collect_garbage
from statekeep.inspection.job import open_job
from statekeep.testing.clock import FakeClock

NEAR = BackendName("near")
FAR = BackendName("far")


def blobs_of(directory: Path, place: str) -> dict[str, bytes]:
    """Return the state that lies in a place: all but the log and the checkpoints."""
    root = directory / place
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if "/state-" in name}


def leave(directory: Path, place: str, attempt: str, store: str, task: str = "Partition_0") -> str:
    """Put a blob where an attempt of a store would have; return its name."""
    uid = next(iter(blobs_of(directory, place))).split("/")[1]
    name = f"orders/{uid}/{place}/main/{task}/{store}/{attempt}/0123456789abcdef-0-000012.sst"
    path = directory / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    return name


async def collect(directory: Path, *, grace_ms: int = 0, is_dry_run: bool = True) -> Garbage:
    config = load_dict(job_settings(directory, retained=2))
    async with open_job(config, SystemClock(), task=TASK) as job:
        return await collect_garbage(job, grace_ms=grace_ms, is_dry_run=is_dry_run)


async def swept_job(directory: Path) -> None:
    """Make a job of six commits; what its own clean-up had no time for is swept."""
    await commit_numbers(directory, range(6), retained=2)
    await collect(directory, is_dry_run=False)


async def restore_all(directory: Path) -> None:
    """Restore every retained commit, as `statekeep restore` does."""
    config = load_dict(job_settings(directory, retained=2))
    async with open_job(config, SystemClock(), task=TASK) as job:
        for position, commit in job.view.commits.items():
            await job.restore(commit, TaskName(TASK), directory / f"restored-{position}")


@pytest.mark.asyncio
async def test_a_job_that_was_cleaned_up_has_no_garbage(tmp_path: Path) -> None:
    await swept_job(tmp_path)
    garbage = await collect(tmp_path)
    assert garbage.found == {NEAR: [], FAR: []}
    assert garbage.newest_closed is not None


@pytest.mark.asyncio
async def test_what_a_closed_attempt_left_is_shown_first_and_deleted_when_asked_to(
    tmp_path: Path,
) -> None:
    await swept_job(tmp_path)
    before = blobs_of(tmp_path, "near")
    left = sorted(
        [
            leave(tmp_path, "near", "1-1", "counts"),
            leave(tmp_path, "near", "1-2", "dropped-store"),
            leave(tmp_path, "near", "1-1", "counts", task="Partition_7"),
        ]
    )
    garbage = await collect(tmp_path)
    assert garbage.found == {NEAR: left, FAR: []}
    assert len(blobs_of(tmp_path, "near")) == len(before) + 3
    assert (await collect(tmp_path, is_dry_run=False)).found == garbage.found
    assert blobs_of(tmp_path, "near") == before
    await restore_all(tmp_path)


@pytest.mark.asyncio
async def test_attempts_that_may_be_open_are_left_alone(tmp_path: Path) -> None:
    await swept_job(tmp_path)
    leave(tmp_path, "near", "1-999", "counts")
    leave(tmp_path, "near", "9-1", "counts")
    assert (await collect(tmp_path, is_dry_run=False)).found == {NEAR: [], FAR: []}


@pytest.mark.asyncio
async def test_attempts_of_the_grace_time_are_left_alone(tmp_path: Path) -> None:
    await swept_job(tmp_path)
    leave(tmp_path, "near", "1-1", "counts")
    garbage = await collect(tmp_path, grace_ms=3_600_000)
    assert garbage.found == {NEAR: [], FAR: []}
    assert garbage.newest_closed == (1, 0)  # of the first, empty commit: it was no attempt


@pytest.mark.asyncio
async def test_a_clock_that_is_days_off_deletes_nothing_that_is_reached(tmp_path: Path) -> None:
    await swept_job(tmp_path)
    leave(tmp_path, "near", "1-1", "counts")
    config = load_dict(job_settings(tmp_path, retained=2))
    clock = FakeClock()
    clock.advance(100 * 365 * 86_400)
    async with open_job(config, clock, task=TASK) as job:
        garbage = await collect_garbage(job, is_dry_run=False)
    assert [len(names) for names in garbage.found.values()] == [1, 0]
    await restore_all(tmp_path)


@pytest.mark.asyncio
async def test_a_lost_index_stops_the_collection_before_anything_is_deleted(
    tmp_path: Path,
) -> None:
    await swept_job(tmp_path)
    left = leave(tmp_path, "near", "1-1", "counts")
    indexes = [name for name in blobs_of(tmp_path, "near") if "snapshot-index" in name]
    (tmp_path / "near" / indexes[0]).unlink()
    with pytest.raises(BlobNotFoundError):
        await collect(tmp_path, is_dry_run=False)
    assert left in blobs_of(tmp_path, "near")

"""Kill -9 at every boundary: a restart finds exactly the last commit or the next, no mixture."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import counter_job
import pytest

from statekeep.container.container import Container
from statekeep.fault_points import FAULT_POINTS, fault_handler

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

BEFORE_THE_RECORD = {
    "snapshot.before",
    "snapshot.after",
    "upload.before",
    "checkpoint.before_write",
    "checkpoint.after_write",
    "record.before",
}


def run_until_killed(directory: Path, point: str, nth: int) -> None:
    job = subprocess.run(
        [sys.executable, counter_job.__file__, str(directory), point, str(nth)],
        check=False,
        capture_output=True,
        timeout=50,
    )
    assert job.returncode == -signal.SIGKILL, job.stderr.decode()


async def restored_input(directory: Path) -> int:
    """Start the task, check that its stores are the fold of its input offset, and return that."""
    async with Container(counter_job.config(directory)) as container:
        task = await container.start_task("Partition 0", counter_job.STORES)
        last_input = counter_job.last_input_of(task)
        assert counter_job.content(task) == counter_job.expected(last_input)
        assert task.restored.failures == ()
        return last_input


def noted(directory: Path, name: str) -> int:
    path = directory / name
    return int(path.read_text()) if path.exists() else -1


async def check_restart(directory: Path, allowed: set[int]) -> None:
    """Restart with the local disk, without it, and then run to the end."""
    kept_disk = await restored_input(directory)
    assert kept_disk in allowed
    shutil.rmtree(directory / "local")
    assert await restored_input(directory) == kept_disk
    await counter_job.run(directory)
    assert await restored_input(directory) == counter_job.LAST_INPUT
    leftovers = list((directory / "local").rglob("work-*"))
    assert leftovers == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        *((point, 3) for point in FAULT_POINTS if not point.startswith("restore")),
        ("record.before", 1),
        ("record.after", 1),
    ],
)
async def test_a_kill_during_a_commit_leaves_the_last_commit_or_the_next(
    tmp_path: Path, point: str, nth: int
) -> None:
    run_until_killed(tmp_path, point, nth)
    begun, acknowledged = noted(tmp_path, "begun"), noted(tmp_path, "acknowledged")
    if point in BEFORE_THE_RECORD:
        assert begun > acknowledged
        await check_restart(tmp_path, {acknowledged})
    elif point == "record.after":
        assert begun > acknowledged
        await check_restart(tmp_path, {begun})
    else:
        await check_restart(tmp_path, {acknowledged, begun})


@pytest.mark.asyncio
async def test_a_kill_just_before_a_restored_version_is_adopted_leaves_nothing_to_trust(
    tmp_path: Path,
) -> None:
    await counter_job.run(tmp_path)
    shutil.rmtree(tmp_path / "local")
    run_until_killed(tmp_path, "restore.before_adopt", 1)
    assert not list((tmp_path / "local").rglob("SEAL-MANIFEST"))
    assert await restored_input(tmp_path) == counter_job.LAST_INPUT


@pytest.mark.asyncio
async def test_every_fault_point_but_that_of_a_restore_is_reached_by_an_ordinary_run(
    tmp_path: Path,
) -> None:
    reached: list[str] = []
    with fault_handler(reached.append):
        await counter_job.run(tmp_path)
    assert {*reached, "restore.before_adopt"} == set(FAULT_POINTS)

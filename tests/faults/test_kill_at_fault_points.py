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

RESTORE_POINTS = tuple(p for p in FAULT_POINTS if p.startswith(("restore", "adopt")))
START_POINTS = tuple(p for p in FAULT_POINTS if p.startswith("take_over"))
TRIM_POINTS = tuple(p for p in FAULT_POINTS if p.startswith("trim"))
COMMIT_POINTS = tuple(
    p for p in FAULT_POINTS if p not in RESTORE_POINTS + START_POINTS + TRIM_POINTS
)
BEFORE_THE_RECORD = set(COMMIT_POINTS[: COMMIT_POINTS.index("commit_record.after")])


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
        *((point, 3) for point in COMMIT_POINTS),
        ("commit_record.before", 1),
        ("commit_record.after", 1),
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
    elif point == "commit_record.after":
        assert begun > acknowledged
        await check_restart(tmp_path, {begun})
    else:
        await check_restart(tmp_path, {acknowledged, begun})


@pytest.mark.asyncio
@pytest.mark.parametrize("point", RESTORE_POINTS)
async def test_a_kill_during_a_restore_leaves_nothing_that_is_not_whole(
    tmp_path: Path, point: str
) -> None:
    await counter_job.run(tmp_path)
    shutil.rmtree(tmp_path / "local")
    run_until_killed(tmp_path, point, 1)
    adopted = list((tmp_path / "local").glob("counter/main/*/[0-9]*_*/SEAL-MANIFEST"))
    assert bool(adopted) is (point == "restore.after_adopt")
    assert await restored_input(tmp_path) == counter_job.LAST_INPUT


@pytest.mark.asyncio
@pytest.mark.parametrize("point", START_POINTS)
async def test_a_kill_during_a_take_over_leaves_the_last_commit(tmp_path: Path, point: str) -> None:
    await counter_job.run(tmp_path)
    run_until_killed(tmp_path, point, 1)
    assert await restored_input(tmp_path) == counter_job.LAST_INPUT


@pytest.mark.asyncio
async def test_every_fault_point_is_reached_by_ordinary_runs(tmp_path: Path) -> None:
    reached: list[str] = []
    with fault_handler(reached.append):
        await counter_job.run(tmp_path, commit_every=2)
        shutil.rmtree(tmp_path / "local")
        await counter_job.run(tmp_path)
    assert set(reached) == set(FAULT_POINTS)

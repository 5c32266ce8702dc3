"""Commits stay restorable up to an age, beyond those that their number keeps."""

import shutil
from pathlib import Path

import pytest
from cli_kit import INPUT, TASK, commit_numbers, job_settings
from outage_kit import WaitingClock

from statekeep.checkpoint.checkpoints import TaskName
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.inspection.job import open_job

pytestmark = pytest.mark.asyncio


async def test_a_task_goes_back_to_a_commit_that_is_not_in_memory_any_more(tmp_path: Path) -> None:
    await commit_numbers(tmp_path, range(1, 25), retained=24)
    shutil.rmtree(tmp_path / "local")
    for place in ("near", "far"):
        for index in (tmp_path / place).rglob("*-snapshot-index-*"):
            if int(index.parent.name.partition("-")[2]) > 3:  # of the attempts 1 to 24
                index.unlink()

    async with Container(load_dict(job_settings(tmp_path, 24))) as container:
        task = await container.start_task(TASK, ["counts"])
        assert task.store("counts").get(b"key-3") == b"3"
        assert task.store("counts").get(b"key-4") is None


@pytest.mark.parametrize(
    ("age", "retained"), [("0", ["3", "4"]), ("1h", ["2", "3", "4"])], ids=["number", "age"]
)
async def test_commits_of_the_last_hour_stay_and_older_ones_go(
    tmp_path: Path, age: str, retained: list[str]
) -> None:
    clock = WaitingClock()
    settings = job_settings(tmp_path, retained=2) | {"checkpoint.retain.ms": age}
    async with Container(load_dict(settings), clock=clock) as container:
        task = await container.start_task(TASK, ["counts"])
        for number in range(1, 5):
            clock.pass_time(25 * 60)
            task.store("counts").put(b"key", b"%d" % number)
            await (await task.commit({INPUT: str(number)}, force=True)).wait()
            await task.wait()

    async with open_job(load_dict(settings), clock, task=TASK) as job:
        commits = [job.commit_at(position) for position in job.view.commits]
        name = TaskName(TASK)
        found = [job.checkpoint(commit, name) for commit in commits]
        assert [checkpoint and checkpoint.input_offsets[INPUT] for checkpoint in found] == retained
        for offset, commit in zip(retained, commits, strict=True):
            outcome = await job.restore(commit, name, tmp_path / offset)
            assert outcome.version is not None

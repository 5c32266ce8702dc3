"""``statekeep migrate-log`` over several tasks, and what a move that was cut off leaves."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_kit import TASK, CommandLine, commit_numbers

from statekeep.checkpoint.job_log import JobLog
from statekeep.cli import migrate
from statekeep.errors import RetriableError
from statekeep.inspection.log_move import move_log

OTHER = "Partition 1"
LOGS = f"--task '{TASK}' --task '{OTHER}'"


@pytest.fixture
def two_tasks(job: Path) -> Path:
    """The job with a second task."""
    asyncio.run(commit_numbers(job, [1, 2], name=OTHER))
    return job


def history(statekeep: CommandLine, task: str, backend: str = "near") -> Any:
    result = statekeep(f"events --task '{task}' --set job.log.backend={backend} --json")
    return result.json if result.status == 0 else result.err


def cut_off_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let a move fail: the one with that number, from 0, and those that follow."""
    left = [move_log] * number

    async def move(source: JobLog, target: JobLog, backend: str, *, owner: str) -> int:
        if not left:
            raise RetriableError("cut off")
        return await left.pop()(source, target, backend, owner=owner)

    monkeypatch.setattr(migrate, "move_log", move)


def test_a_move_of_several_logs_that_was_cut_off_is_ended_by_the_same_command(
    statekeep: CommandLine, two_tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = history(statekeep, OTHER)
    with monkeypatch.context() as patched:
        cut_off_at(patched, 1)
        result = statekeep(f"migrate-log --to far {LOGS} --yes")
    assert result.status == 4
    assert (
        f"do not change job.log.backend yet; run the same command again, as these logs have not "
        f"moved: {OTHER}" in result.err
    )
    assert history(statekeep, OTHER) == before
    assert statekeep(f"migrate-log --to far {LOGS} --yes").status == 0
    for task in (TASK, OTHER):
        assert "the job log has moved: backend=far" in history(statekeep, task)
        result = statekeep(f"verify --task '{task}' --set job.log.backend=far")
        assert result.status == 0


def test_no_log_is_moved_before_all_were_found_to_let_themselves_be(
    statekeep: CommandLine, two_tasks: Path
) -> None:
    log = two_tasks / "near" / "orders" / "main" / "Partition_0" / "log"
    shutil.copytree(log, two_tasks / "far" / "orders" / "main" / "Partition_1" / "log")
    before = history(statekeep, TASK)
    result = statekeep(f"migrate-log --to far {LOGS} --yes")
    assert (result.status, "there is another log in the new backend" in result.err) == (2, True)
    assert history(statekeep, TASK) == before


@pytest.mark.parametrize("named", [TASK, OTHER])
def test_no_log_is_moved_while_one_of_the_job_is_left_out(
    statekeep: CommandLine, two_tasks: Path, named: str
) -> None:
    before = history(statekeep, named)
    result = statekeep(f"migrate-log --to far --task '{named}' --yes")
    assert (result.status, "tasks of the job are left out" in result.err) == (2, True)
    assert history(statekeep, named) == before


def test_a_half_made_copy_of_a_log_is_not_reset(statekeep: CommandLine, job: Path) -> None:
    place = Path("orders") / "main" / "Partition_0" / "log"
    shutil.copytree(job / "near" / place, job / "far" / place)
    log = f"--task '{TASK}'"
    result = statekeep(f"reset {log} --set job.log.backend=far --yes")
    assert result.status == 2
    assert "the log is the copy of one whose backups are in use: backend=near" in result.err
    assert statekeep(f"verify {log}").status == 0

"""A start with another number of tasks that is killed: the job has its old tasks, or the new ones, whole."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import reshaping_kit
from reshaping_kit import content, pin_of, reshape
from spark_job_kit import CONTENT, IN_STORES, make_job, settings

from statekeep.checkpoint.log_view import LogView
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.fault_points import HANDLER_VARIABLE
from statekeep.inspection.job import open_job
from statekeep.testing.faults import HANDLER, PLAN_VARIABLE, Action, ArmedFault, ProcessPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

BEFORE, NOW = 4, 7
KILLED_AT = (
    ("epoch_record.after", 1),
    ("base_record.after", 1),
    ("reshape.before_pin", 1),
    ("reshape.after_pin", 1),
    ("attempt_record.before", 1),
    ("attempt_record.after", 1),
    ("reshape.before_split", 3),
    ("reshape.before_make", 1),
    ("reshape.before_make", NOW),
    ("seal.after_rename", 2),
    ("upload.before_blob", 3),
    ("upload.before_index", 5),
    ("upload.after_index", NOW),
    ("commit_record.before", 1),
    ("commit_record.after", 1),
)


def kill(directory: Path, point: str, nth: int) -> None:
    """Change the number of tasks in a process that dies where a fault point is reached."""
    fault = ArmedFault("kill", point, Action.CRASH, nth=nth)
    ProcessPlan([fault], directory / "claims").write(directory / "plan.json")
    done = subprocess.run(
        [sys.executable, reshaping_kit.__file__, str(directory), str(NOW)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            HANDLER_VARIABLE: HANDLER,
            PLAN_VARIABLE: str(directory / "plan.json"),
        },
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def view_of(directory: Path) -> LogView:
    async def read() -> LogView:
        async with open_job(load_dict(settings(directory)), SystemClock()) as job:
            return job.view

    return asyncio.run(read())


@pytest.mark.parametrize(("point", "nth"), KILLED_AT)
def test_the_next_start_finishes_what_was_killed(tmp_path: Path, point: str, nth: int) -> None:
    asyncio.run(make_job(tmp_path, IN_STORES))
    kill(tmp_path, point, nth)
    tasks = NOW if point == "commit_record.after" else BEFORE
    for variable in IN_STORES.values():
        assert content(tmp_path, tasks, variable=variable) == CONTENT
    view = reshape(tmp_path, NOW)
    for variable in IN_STORES.values():
        assert content(tmp_path, NOW, variable=variable) == CONTENT
        assert content(tmp_path, BEFORE, pin_of(view), variable) == CONTENT
    assert not view.open_attempts


@pytest.mark.parametrize("point", ["reshape.after_pin", "upload.after_index"])
def test_after_a_kill_the_job_may_also_keep_its_tasks(tmp_path: Path, point: str) -> None:
    asyncio.run(make_job(tmp_path))
    kill(tmp_path, point, 1)
    view = reshape(tmp_path, BEFORE)
    assert content(tmp_path, BEFORE) == CONTENT
    assert view.last_commit is not None
    assert view.last_commit.change is None
    assert view_of(tmp_path).pins  # it does no harm, and its name says what it is

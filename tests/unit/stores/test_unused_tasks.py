"""Local versions of tasks that do not come back: swept after a while, never what may be needed."""

import os
import time
from pathlib import Path
from typing import Final

import pytest

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.config.load import load_dict
from statekeep.stores.open_task import OpenTask
from statekeep.stores.task_directory import TaskDirectory, sweep_unused
from statekeep.testing.versions import STORE, FakeTask, seal_version

DAY_NS: Final = 24 * 3600 * 1_000_000_000
V0: Final = VersionId.parse("0_000000000a")


@pytest.fixture
def task(tmp_path: Path) -> TaskDirectory:
    """A task of a job that has ended, with one version."""
    made = TaskDirectory.of(tmp_path, FakeTask())
    seal_version(made, str(V0), None, {b"a": b"1"})
    return made


def sweep_after(days: int, local_dir: Path) -> int:
    return sweep_unused(local_dir, time.time_ns() + days * DAY_NS)


def test_what_a_job_can_do_without_goes_after_a_month(task: TaskDirectory, tmp_path: Path) -> None:
    with task.begin("dead", None, [STORE]) as work:
        task.mark_dispensable()
        left = work.path
    left.mkdir()  # as a process leaves it that was killed
    assert sweep_after(29, tmp_path) == 0
    assert task.versions() == [V0]
    assert sweep_after(31, tmp_path) == 1
    assert [path.name for path in task.root.iterdir() if path.is_dir()] == []
    assert sweep_after(31, tmp_path) == 0
    seal_version(task, str(V0), None, {b"a": b"1"})  # the job comes back
    assert task.find(V0) is not None


def test_what_is_not_marked_stays(task: TaskDirectory, tmp_path: Path) -> None:
    """A job that was killed may need what it had not yet committed."""
    assert sweep_after(400, tmp_path) == 0
    assert task.versions() == [V0]


def test_a_job_that_came_back_keeps_its_versions(task: TaskDirectory, tmp_path: Path) -> None:
    task.mark_dispensable()
    with task.begin("bb", None, [STORE]):
        pass
    assert sweep_after(400, tmp_path) == 0
    assert task.versions() == [V0]


def test_a_task_that_is_open_stays(task: TaskDirectory, tmp_path: Path) -> None:
    with task.begin("bb", None, [STORE]):
        task.mark_dispensable()
        assert sweep_after(400, tmp_path) == 0
    assert task.versions() == [V0]
    assert sweep_after(400, tmp_path) == 1


def test_an_hour_of_disuse_is_recognised(task: TaskDirectory) -> None:
    assert not task.is_unused_since(time.time_ns() - DAY_NS)
    os.utime(task.root, (0, 0))
    assert task.is_unused_since(time.time_ns() - DAY_NS)
    with task.begin("bb", None, [STORE]):
        os.utime(task.root, (0, 0))
        assert not task.is_unused_since(time.time_ns() - DAY_NS)


@pytest.mark.parametrize("is_open", [True, False])
def test_change_sets_stay_for_a_task_that_may_be_open_only(
    tmp_path: Path, *, is_open: bool
) -> None:
    task = OpenTask(
        TaskDirectory.of(tmp_path, FakeTask()),
        {STORE: load_dict({"job.name": "j"}).store(STORE)},
        "1-",
    )
    assert task.go_to(None)
    with task.batch():
        task.store(STORE).put(b"a", b"1")
        version = task.publish_changes(0).version
    task.close()
    task.directory.retain((), 5, (STORE,), is_open=is_open)
    assert task.directory.change_sets() == ([version] if is_open else [])

"""A worker that is killed while it opens, catches up, publishes or writes an image harms no other.

Run as a program, this file is the worker: ``test_killed_workers.py TASK_DIRECTORY POINT HIT``.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from statekeep.checkpoint.checkpoints import VersionId
from statekeep.config.load import load_dict
from statekeep.fault_points import fault_handler
from statekeep.stores.change_set import CHANGES_SUFFIX
from statekeep.stores.open_task import OpenTask
from statekeep.stores.task_directory import TaskDirectory
from statekeep.testing.versions import STORE, FakeTask

SETTINGS = {STORE: load_dict({"job.name": "j"}).store(STORE)}
POINTS: Final = (
    "open.before",
    "open.after",
    "catch_up.after_step",
    "changes.before_rename",
    "changes.after_rename",
    "image.after_write",
    "seal.before_rename",
    "seal.after_rename",
)


def new_worker(root: Path) -> OpenTask:
    return OpenTask(TaskDirectory(root, FakeTask()), SETTINGS, "1-")


def run_batch(task: OpenTask, batch: int) -> VersionId:
    """Count each batch at a key that all share, and at one of its own."""
    store = task.store(STORE)
    with task.batch():
        count = int(store.get(b"count") or b"0") + 1
        changes: dict[bytes, bytes | None] = {b"count": b"%d" % count, b"own-%d" % batch: b"x"}
        store.write({**changes, b"own-%d" % (batch - 2): None})
        return task.publish_changes(batch).version


def expected(batch: int) -> dict[bytes, bytes]:
    own = {b"own-%d" % number: b"x" for number in (batch - 1, batch) if number >= 0}
    return {b"count": b"%d" % (batch + 1), **own}


def versions_on(root: Path) -> list[VersionId]:
    names = {path.name.removesuffix(CHANGES_SUFFIX) for path in root.glob("[0-9]*_*")}
    return sorted(map(VersionId.parse, names), key=lambda version: version.batch)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_each_version_is_there_whole_and_the_next_worker_goes_on(
    point: str, hit: int, tmp_path: Path
) -> None:
    root = tmp_path / "task"
    worker = subprocess.run(
        [sys.executable, __file__, str(root), point, str(hit)], check=False, timeout=60
    )
    assert worker.returncode == -signal.SIGKILL

    versions = versions_on(root)
    for version in versions:
        task = new_worker(root)
        assert task.go_to(version)
        assert dict(task.store(STORE).scan()) == expected(version.batch)
        task.close()
    head = versions[-1] if versions else None
    successor = new_worker(root)
    assert successor.go_to(head)
    successor.directory.sweep()
    assert list(root.glob("work-*")) == [successor.work.path]
    number = 0 if head is None else head.batch + 1
    run_batch(successor, number)
    successor.seal(None).verify()
    assert dict(successor.store(STORE).scan()) == expected(number)
    successor.close()


def main(root: Path, point: str, hit: int) -> None:
    """Live through everything that a worker does, until the kill comes."""
    hits: Counter[str] = Counter()

    def kill(name: str) -> None:
        hits[name] += 1
        if name == point and hits[name] == hit:
            os.kill(os.getpid(), signal.SIGKILL)

    with fault_handler(kill):
        task, other = new_worker(root), new_worker(root)
        task.go_to(None)
        head: VersionId | None = None
        for batch in range(6):
            head = run_batch(task, batch)
            if batch in {1, 3}:
                task.seal(None)
            if batch in {2, 5}:
                # The slot of the task has moved: another worker opens it, and catches up.
                other.go_to(head)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

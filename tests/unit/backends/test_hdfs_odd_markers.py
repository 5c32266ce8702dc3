"""A marker that no upload wrote is damage on HDFS too, so that an older commit is restored."""

from dataclasses import replace
from pathlib import Path

import pytest
from hdfs_task_kit import Task

from statekeep.checkpoint.checkpoints import Marker
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.testing.backend_harness import STORE, Commit

DIGEST = "v=2;sha256=" + "0" * 64
UPLOAD = "9_00000001000000010123456789abcdef"


ODD = {
    "above the root": f"../../etc/passwd/{UPLOAD}.delta;{DIGEST}",
    "absolute": f"/etc/passwd/{UPLOAD}.delta;{DIGEST}",
    "long name": f"{'x' * 300}/{UPLOAD}.delta;{DIGEST}",
    "long path": f"{'x/' * 900}{UPLOAD}.delta;{DIGEST}",
    "control character": f"a\0b/{UPLOAD}.delta;{DIGEST}",
    "brackets": "[" * 2_000,
    "no form": "x" * 300,
    "of Spark, long number": "9" * 5_000 + "/3",
    "of Spark, half a character": "\ud800/3",
    "of Spark, above the root": "../../etc/3",
    "of Spark, absolute": "/etc/passwd/3",
    "of Spark, long name": "x" * 300 + "/3",
}


@pytest.mark.asyncio
@pytest.mark.parametrize("marker", ODD.values(), ids=ODD)
async def test_an_odd_marker_is_damage(tmp_path: Path, marker: str) -> None:
    task = Task(tmp_path / "place", tmp_path / "local")
    await task.start()
    commit = await task.commit_next(a=b"1")
    await assert_damage(task, commit, marker)


@pytest.mark.asyncio
@pytest.mark.parametrize("rest", [f"{UPLOAD}.delta;{DIGEST}", "3"])
async def test_a_marker_below_a_file_is_damage(tmp_path: Path, rest: str) -> None:
    task = Task(tmp_path / "place", tmp_path / "local")
    await task.start()
    commit = await task.commit_next(a=b"1")
    ((_, stores),) = commit.checkpoint.state_markers.items()
    file = stores[STORE].partition(";")[0]
    assert (tmp_path / "place" / file).is_file()
    await assert_damage(task, commit, f"{file}/{rest}")


async def assert_damage(task: Task, commit: Commit, marker: str) -> None:
    """A restore by the marker finds damage; one by that of the commit does not."""
    ((backend, _),) = commit.checkpoint.state_markers.items()
    spoiled = replace(commit.checkpoint, state_markers={backend: {STORE: Marker(marker)}})
    with pytest.raises((BlobNotFoundError, CheckpointCorruptError)):
        await task.restore(spoiled)
    assert (await task.restore(commit.checkpoint)).content
    await task.close()

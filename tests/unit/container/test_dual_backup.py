"""Two blob backends for one store: damage in one is made good by the other, then healed."""

import logging
import shutil
from pathlib import Path

import pytest

from statekeep.checkpoint.checkpoints import StoreName, SystemStreamPartition
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task
from statekeep.inspection.job import open_job

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"


def config(directory: Path) -> Config:
    """Two places; the second one holds the log, so that the first may be damaged at will."""
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": directory / "local",
            "job.log.backend": "log",
            "backends.log.factory": "blob",
            "backends.log.uri": (directory / "log").as_uri(),
            "stores.backup.factories": "first,second",
            "backends.first.factory": "blob",
            "backends.first.uri": (directory / "first").as_uri(),
            "backends.second.factory": "blob",
            "backends.second.uri": (directory / "second").as_uri(),
        }
    )


def damage(place: Path) -> None:
    """Flip a bit in every blob but the indexes, so that an increment could still build on them."""
    for path in place.rglob("*"):
        is_content = path.is_file() and "snapshot-index" not in path.name
        data = bytearray(path.read_bytes()) if is_content else bytearray()
        if data:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


async def put_and_commit(task: Task, text: bytes, offset: int) -> None:
    task.store("s").put(b"k", text)
    await (await task.commit({INPUT: str(offset)}, force=True)).wait()


async def recorded_failures(job: Config) -> list[list[str]]:
    """Return, for each start on record, what could not be restored, and from where."""
    async with open_job(job, SystemClock(), task=TASK) as opened:
        return [
            [failure.partition(":")[0] for failure in event.details["failures"]]
            for event in await opened.progress()
            if event.kind == "recovery"
        ]


@pytest.mark.asyncio
async def test_a_damaged_backend_is_passed_over_and_whole_again_after_the_next_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", 1)
        await put_and_commit(task, b"two", 2)
    damage(tmp_path / "first")
    shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "second"}
        assert [failure.backend for failure in task.restored.failures] == ["first"]
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"two", "2")
        await put_and_commit(task, b"three", 3)
    (told,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert told.startswith(
        "state cannot be restored from this backend: task=Partition 0 backend=first"
    )
    assert await recorded_failures(config(tmp_path)) == [[], ["s first"]]

    damage(tmp_path / "second")
    shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "first"}
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"three", "3")


@pytest.mark.asyncio
async def test_with_both_newest_backups_lost_the_task_starts_from_the_commit_before(
    tmp_path: Path,
) -> None:
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        await put_and_commit(task, b"one", 1)
        task.store("s").put(b"k", b"two")
        checkpoint = await (await task.commit({INPUT: "2"}, force=True)).wait()
        assert checkpoint is not None
    shutil.rmtree(tmp_path / "local")
    for backend, markers in checkpoint.state_markers.items():
        (found,) = (tmp_path / backend).rglob(Path(markers[StoreName("s")]).name)
        found.unlink()
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert (task.store("s").get(b"k"), task.input_offsets[INPUT]) == (b"one", "1")
        assert {failure.is_marker_bad for failure in task.restored.failures} == {True}
        await put_and_commit(task, b"again", 2)
    shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.failures == ()
        assert task.store("s").get(b"k") == b"again"

"""Tasks of a container on the HDFS backend: RocksDB stores, commits, a lost disk, two backends."""

import shutil
from pathlib import Path

import pytest

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.container.task import Task

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"


def config(directory: Path, backends: str = "hdfs") -> Config:
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": directory / "local",
            "job.log.backend": "hdfs",
            "stores.backup.factories": backends,
            "hdfs.store.uri": (directory / "place").as_uri(),
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": 3,
            "blob.store.uri": (directory / "blobs").as_uri(),
        }
    )


async def commit(task: Task, number: int) -> None:
    store = task.store("s")
    store.write({b"%03d" % key: b"%d" % number for key in range(number, number + 20)})
    store.delete(b"%03d" % number)
    await (await task.commit({INPUT: str(number)}, force=True)).wait()


def expected(last: int) -> dict[bytes, bytes]:
    content: dict[bytes, bytes] = {}
    for number in range(last + 1):
        content |= {b"%03d" % key: b"%d" % number for key in range(number, number + 20)}
        del content[b"%03d" % number]
    return content


@pytest.mark.asyncio
async def test_a_task_that_lost_its_disk_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    for start in range(0, 12, 4):
        async with Container(config(tmp_path)) as container:
            task = await container.start_task(TASK, ["s"])
            assert dict(task.store("s").scan()) == (expected(start - 1) if start else {})
            for number in range(start, start + 4):
                await commit(task, number)
        shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "hdfs"}
        assert dict(task.store("s").scan()) == expected(11)
        assert task.input_offsets[INPUT] == "11"
    assert [path for path in tmp_path.rglob("*.delta") if path.is_relative_to(tmp_path / "place")]


@pytest.mark.asyncio
async def test_with_a_blob_backend_beside_it_either_one_restores(tmp_path: Path) -> None:
    both = config(tmp_path, "hdfs,blob")
    async with Container(both) as container:
        task = await container.start_task(TASK, ["s"])
        for number in range(6):
            await commit(task, number)
    for path in (tmp_path / "place").rglob("s/*"):
        path.unlink()
    shutil.rmtree(tmp_path / "local")
    async with Container(both) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "blob"}
        assert [failure.backend for failure in task.restored.failures] == ["hdfs"]
        assert dict(task.store("s").scan()) == expected(5)
        await commit(task, 6)
    shutil.rmtree(tmp_path / "blobs")
    shutil.rmtree(tmp_path / "local")
    async with Container(both) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": "hdfs"}
        assert dict(task.store("s").scan()) == expected(6)

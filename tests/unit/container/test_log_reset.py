"""A log that was set up anew under the old name shares nothing with the one before."""

import shutil
from pathlib import Path

import pytest

from statekeep.checkpoint.checkpoints import BackendName, StoreName, SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container

INPUT = SystemStreamPartition("gen", "numbers", 0)


def config(directory: Path) -> Config:
    return load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": directory / "local",
            "stores.backup.factories": "blob",
            "backends.blob.uri": (directory / "place").as_uri(),
        }
    )


async def place_of_a_first_commit(directory: Path) -> str:
    """Run one commit and return where its blobs are, by the marker."""
    async with Container(config(directory)) as container:
        task = await container.start_task("Partition 0", ["s"])
        assert task.epoch == 1
        checkpoint = await (await task.commit({INPUT: "1"}, force=True)).wait()
    assert checkpoint is not None
    return checkpoint.state_markers[BackendName("blob")][StoreName("s")].rpartition("/")[0]


@pytest.mark.asyncio
async def test_the_same_attempt_of_a_new_log_writes_under_another_name(tmp_path: Path) -> None:
    old = await place_of_a_first_commit(tmp_path)
    shutil.rmtree(tmp_path / "place")
    shutil.rmtree(tmp_path / "local")
    new = await place_of_a_first_commit(tmp_path)
    assert old.endswith("/blob/main/Partition_0/s/1-1")
    assert new.endswith("/blob/main/Partition_0/s/1-1")
    assert old != new


@pytest.mark.asyncio
async def test_a_restart_goes_on_in_the_backend_of_its_log(tmp_path: Path) -> None:
    await place_of_a_first_commit(tmp_path)
    async with Container(config(tmp_path)) as container:
        task = await container.start_task("Partition 0", ["s"])
        await (await task.commit({INPUT: "2"}, force=True)).wait()
    assert len(list((tmp_path / "place" / "job").glob("state-*"))) == 1

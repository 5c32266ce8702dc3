"""A pinned commit that an earlier release has written again in its log is found and goes on."""

from pathlib import Path

import golden_kit
import pytest

from statekeep.checkpoint.checkpoints import StoreName, SystemStreamPartition, TaskName
from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.inspection.job import open_job
from statekeep.stores.factory import open_store

INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
TASK = TaskName("Partition 0")


def config(directory: Path) -> Config:
    return load_dict(
        {
            "job.name": "golden",
            "job.logged.store.base.dir": directory / "local",
            "stores.backup.factories": "blob",
            "stores.counts.factory": "memory",
            "blob.store.uri": (directory / "place").as_uri(),
            "task.commit.ms": "0",
            "checkpoint.clean.up.ms": "0",
        }
    )


async def pinned(directory: Path, target: str) -> tuple[str, dict[bytes, bytes]]:
    """Restore the savepoint and return its input offset and its state."""
    async with open_job(config(directory), SystemClock(), task=TASK) as job:
        _, commit = job.find_commit("v1")
        checkpoint = job.checkpoint(commit, TASK)
        outcome = await job.restore(commit, TASK, directory / target)
        assert checkpoint is not None
        assert outcome.version is not None
        store = open_store(
            StoreName("counts"),
            "memory",
            outcome.version.store_directory(StoreName("counts")),
            is_new=False,
        )
        return checkpoint.input_offsets[INPUT], dict(store.scan())


@pytest.mark.asyncio
async def test_a_savepoint_behind_which_the_log_was_trimmed_goes_on(tmp_path: Path) -> None:
    golden_kit.unpack("pins/blob-1.tar.gz", tmp_path / "place")
    expected = ("2", {b"key-%d" % number: b"%d" % number for number in range(3)})
    assert await pinned(tmp_path, "before") == expected
    async with Container(config(tmp_path)) as container:
        task = await container.start_task(TASK, ["counts"])
        assert task.input_offsets == {INPUT: "11"}
        for number in range(12, 16):
            task.store("counts").put(b"key-0", b"%d" % number)
            await (await task.commit({INPUT: str(number)}, force=True)).wait()
            await task.wait()
    assert await pinned(tmp_path, "after") == expected

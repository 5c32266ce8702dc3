"""Encrypted jobs that earlier releases wrote: read, and only as far as they are authenticated."""

from pathlib import Path

import golden_kit
import pytest
from encoded_kit import KEY_LINE

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import CheckpointCorruptError
from statekeep.testing.clock import FakeClock

INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
CONTENT = {b"key-%d" % n: b"value-%d" % n for n in range(4)}
UNTIL_TODAY = {"blob.store.encryption.plain.until": "2023-11-14"}
"""The day on which the clock of the test begins."""


def config_of(job: str, directory: Path, **settings: str) -> Config:
    golden_kit.unpack(f"encrypted/{job}.tar.gz", directory / "place")
    (directory / "keys").write_text(KEY_LINE)
    return load_dict(
        {
            "job.name": "orders",
            "job.logged.store.base.dir": str(directory / "local"),
            "stores.counts.backup.factories": "blob",
            "backends.blob.uri": (directory / "place").as_uri(),
            "blob.store.encryption": "aes-256-gcm",
            "blob.store.encryption.keys": f"file:{directory}/keys",
            **settings,
        }
    )


@pytest.mark.asyncio
@pytest.mark.parametrize(("job", "switch"), [("blob-1", UNTIL_TODAY), ("blob-2", {})])
async def test_an_encrypted_job_of_an_earlier_release_goes_on(
    job: str, switch: dict[str, str], tmp_path: Path
) -> None:
    config = config_of(job, tmp_path, **switch)
    async with Container(config, clock=FakeClock()) as container:
        task = await container.start_task("Partition 0", ["counts"])
        assert dict(task.store("counts").scan()) == CONTENT
        task.store("counts").put(b"key-new", b"1")
        await (await task.commit({INPUT: "5"}, force=True)).wait()
    (tmp_path / "local").rename(tmp_path / "other-disk")
    async with Container(config, clock=FakeClock()) as container:
        task = await container.start_task("Partition 0", ["counts"])
        assert dict(task.store("counts").scan()) == CONTENT | {b"key-new": b"1"}
        assert task.input_offsets == {INPUT: "5"}


@pytest.mark.asyncio
async def test_the_job_of_a_release_that_authenticated_less_needs_the_switch(
    tmp_path: Path,
) -> None:
    config = config_of("blob-1", tmp_path)
    async with Container(config, clock=FakeClock()) as container:
        with pytest.raises(CheckpointCorruptError, match="is not authenticated"):
            await container.start_task("Partition 0", ["counts"])

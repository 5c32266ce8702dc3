"""Two object stores in one commit of the plain-Python container: restored from either."""

import shutil
import uuid
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient
from servers.seaweedfs import S3Server

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

INPUT = SystemStreamPartition("gen", "numbers", 0)
TASK = "Partition 0"
PAIRS = ["s3 and azure", "two buckets"]


@pytest.fixture(params=PAIRS)
def places(
    request: pytest.FixtureRequest, s3_server: S3Server, s3_bucket: str
) -> dict[str, dict[str, str]]:
    prefix = uuid.uuid4().hex
    first = {"uri": f"s3://{s3_bucket}/{prefix}", "s3.endpoint": s3_server.endpoint}
    if request.param == "two buckets":
        other = request.getfixturevalue("s3_other_bucket")
        second = {"uri": f"s3://{other}/{prefix}", "s3.endpoint": s3_server.endpoint}
    else:
        container: ContainerClient = request.getfixturevalue("azure_container")
        second = {"uri": f"az://{container.container_name}/{prefix}"}
    return {"first": first, "second": second}


def config(directory: Path, places: dict[str, dict[str, str]], restore_order: str) -> Config:
    values: dict[str, str | Path] = {
        "job.name": "job",
        "job.logged.store.base.dir": directory / "local",
        "job.log.backend": "first",
        "stores.backup.factories": "first,second",
        "stores.restore.factories": restore_order,
    }
    for name, settings in places.items():
        values[f"backends.{name}.factory"] = "blob"
        values |= {f"backends.{name}.{key}": value for key, value in settings.items()}
    return load_dict(values)


@pytest.mark.parametrize("source", ["first", "second"])
@pytest.mark.asyncio
async def test_one_commit_is_restored_from_either_backend(
    tmp_path: Path, places: dict[str, dict[str, str]], source: str
) -> None:
    other = "second" if source == "first" else "first"
    written = {b"%04d" % number: b"v" * 1000 for number in range(2000)}
    async with Container(config(tmp_path, places, f"{source},{other}")) as container:
        task = await container.start_task(TASK, ["s"])
        for key, value in written.items():
            task.store("s").put(key, value)
        await (await task.commit({INPUT: "7"}, force=True)).wait()
    shutil.rmtree(tmp_path / "local")
    async with Container(config(tmp_path, places, f"{source},{other}")) as container:
        task = await container.start_task(TASK, ["s"])
        assert task.restored.sources == {"s": source}
        assert task.restored.failures == ()
        assert dict(task.store("s").scan()) == written
        assert task.input_offsets == {INPUT: "7"}

"""How many requests a commit makes of an object store: as many as its change deserves."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from increments_kit import BLOB, Changes, IncrementJob
from object_store_kit import ObjectsInMemory, ObjectStoreRig

from statekeep.backends.base import BlockingExecutor, TaskBackupManager
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.locations import Location
from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.container.container import Container
from statekeep.stores.version import SealedVersion
from statekeep.testing.backend_harness import BackendHarness
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

INPUT = SystemStreamPartition("gen", "numbers", 0)
CHANGE: Changes = {b"000001": b"changed"}
BASES = pytest.mark.parametrize(
    ("keys", "versions"),
    [(10, 1), (20_000, 1), (20_000, 3)],
    ids=["small", "large", "several files"],
)


@pytest.fixture
def client() -> ObjectsInMemory:
    return ObjectsInMemory()


@pytest.fixture
def rig(client: ObjectsInMemory) -> ObjectStoreRig:
    return ObjectStoreRig(client, SerialExecutor(), part_bytes=1 << 20, buffer_bytes=64 << 20)


def batches(keys: int, versions: int) -> list[Changes]:
    """Return what makes a base: each version leaves a file of its own, as few as are not merged."""
    return [
        {b"%06d" % key: b"v" * 100 for key in range(number, keys, versions)}
        for number in range(versions)
    ]


async def upload(
    job: IncrementJob, manager: TaskBackupManager[Any], version: SealedVersion
) -> None:
    identity = job.open_attempt(version).checkpoint_id
    await manager.upload(identity, manager.snapshot(identity))


@BASES
@pytest.mark.asyncio
async def test_a_commit_of_changes_is_one_request_however_large_its_base(
    client: ObjectsInMemory, rig: ObjectStoreRig, tmp_path: Path, keys: int, versions: int
) -> None:
    job = IncrementJob(tmp_path, "rocksdb", make_blobs=rig.manager)
    await job.blobs.init()
    await job.manager.init()
    base = await job.commit(job.seal(None, *batches(keys, versions)))
    tables = [file for file in base.index.files() if file.file_name.endswith(".sst")]
    assert len(tables) == versions
    version = job.seal(base.version, CHANGE)
    client.requests.clear()
    await upload(job, job.manager, version)
    assert client.requests == ["put"]
    client.requests.clear()
    again = job.new_manager()
    await again.init()
    await upload(job, again, version)
    assert client.requests == ["check", "read 0", "put"]


@pytest.mark.asyncio
async def test_a_larger_change_is_two_requests(
    client: ObjectsInMemory, rig: ObjectStoreRig, tmp_path: Path
) -> None:
    job = IncrementJob(tmp_path, "rocksdb", make_blobs=rig.manager)
    await job.blobs.init()
    await job.manager.init()
    base = await job.commit(job.seal(None, *batches(20_000, 1)))
    version = job.seal(base.version, {b"%06d" % key: os.urandom(300) for key in range(1_000)})
    client.requests.clear()
    await upload(job, job.manager, version)
    assert client.requests == ["put", "put"]


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.asyncio
async def test_a_snapshot_makes_requests_for_its_new_files_alone(
    client: ObjectsInMemory, rig: ObjectStoreRig, tmp_path: Path, count: int
) -> None:
    def make_manager(_: Mapping[str, str], __: BlockingExecutor) -> BlobStoreManager:
        return rig.manager()

    settings = {"uri": "memory", "pack.max.file.bytes": "0"}
    factory = BlobBackendFactory(BLOB, settings, make_manager=make_manager)
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    files = {f"{number:06}.sst": b"%d" % number * 50 for number in range(count)}
    await task.commit(task.seal(files))
    client.requests.clear()
    await task.commit(task.seal({**files, "new.sst": b"new"}))
    assert client.requests == ["put", "put"]
    await task.close()


@pytest.fixture
def bucket(client: ObjectsInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "open_client", lambda _: client)


@pytest.mark.parametrize("keys", [10, 20_000])
@pytest.mark.asyncio
@pytest.mark.usefixtures("bucket")
async def test_a_job_makes_as_many_requests_a_commit_however_large_its_stores(
    client: ObjectsInMemory, tmp_path: Path, keys: int
) -> None:
    """Job log and clean-up included."""
    config = load_dict(
        {
            "job.name": "job",
            "job.logged.store.base.dir": tmp_path / "local",
            "stores.backup.factories": "far",
            "backends.far.factory": "blob",
            "backends.far.uri": "s3://bucket/prefix",
        }
    )
    commits = 5
    async with Container(config) as container:
        task = await container.start_task("Partition 0", ["changing", "still"])
        for store in ("changing", "still"):
            task.store(store).write(*batches(keys, 1))
        await (await task.commit({INPUT: "0"}, force=True)).wait()
        client.requests.clear()
        for number in range(commits):
            task.store("changing").put(b"000001", b"%d" % number)
            await (await task.commit({INPUT: f"{number}"}, force=True)).wait()
    # Three records, two indexes and the changes; the rest reads what is there, and cleans up.
    assert client.requests.count("put") <= commits * 6 + 1
    assert len(client.requests) <= commits * 18

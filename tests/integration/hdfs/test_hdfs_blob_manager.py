"""The client of blobs on a real HDFS, and the job log over it."""

import asyncio
import getpass
import os
import uuid
from pathlib import Path
from typing import Any

import hdfs_native
import pytest
from servers.hdfs import HdfsCluster
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.hdfs.client import HdfsClient
from statekeep.backends.storage.hdfs.manager import HdfsBlobStoreManager
from statekeep.backends.storage.job_log import BlobJobLog
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import PositionTakenError
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import BlobExistsError, ConfigError, RetriableError
from statekeep.testing.blob_store_tests import BlobStoreManagerTests
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.storage import bare_manager

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

METADATA = BlobMetadata(None, None, "test")
ABSENT = "127.0.0.1:9"


class TestHdfsManager(BlobStoreManagerTests):
    @pytest.fixture(autouse=True)
    def server(self, cluster: HdfsCluster) -> None:
        self.uri, self.prefix = cluster.uri, f"/kit/{uuid.uuid4().hex}"
        self.web_uri = cluster.web_uri

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        uri = f"{self.uri}{self.prefix}/{place.name}"
        return HdfsBlobStoreManager(uri, HdfsClient(uri, {}), executor)

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        reader: Any = hdfs_native.Client(self.uri)
        with reader.read(f"{self.prefix}/{place.name}/{blob_id}") as file:
            content: bytes = file.read()
        return content


class TestWebHdfsManager(TestHdfsManager):
    """The same by HTTP."""

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        uri = f"{self.web_uri}{self.prefix}/{place.name}"
        return bare_manager(uri, {"user": getpass.getuser()}, executor)


def entries_of(cluster: HdfsCluster, directory: str) -> list[str]:
    """Return all files and directories below a directory."""
    client: Any = hdfs_native.Client(cluster.uri)
    return sorted(status.path for status in client.list_status(directory, recursive=True))


def manager_of(cluster: HdfsCluster, path: str, **options: str) -> HdfsBlobStoreManager:
    client = HdfsClient(cluster.uri, options)
    return HdfsBlobStoreManager(f"{cluster.uri}{path}", client, SerialExecutor())


def place_on(cluster: HdfsCluster, path: str, protocol: str, user: str = "") -> BlobStoreManager:
    """Return the client of a place by either protocol."""
    if protocol == "hdfs":
        return manager_of(cluster, path, **({"user": user} if user else {}))
    options = {"user": user or getpass.getuser()}
    return bare_manager(f"{cluster.web_uri}{path}", options, SerialExecutor())


@pytest.mark.asyncio
async def test_a_failed_put_leaves_no_file_behind(cluster: HdfsCluster) -> None:
    manager = manager_of(cluster, "/left-over")
    await manager.init()
    await manager.put("a", b"first", METADATA, if_absent=True)
    with pytest.raises(BlobExistsError):
        await manager.put("a", b"second", METADATA, if_absent=True)
    assert entries_of(cluster, "/left-over") == ["/left-over/a"]
    assert await manager.get("a") == b"first"
    assert await manager.get_start("a", 3) == b"fir"


@pytest.mark.asyncio
async def test_a_put_that_had_landed_may_be_repeated(cluster: HdfsCluster) -> None:
    manager = manager_of(cluster, "/repeated")
    await manager.init()
    for _ in range(2):
        await manager.put("a", b"content", METADATA)
    assert await manager.get("a") == b"content"
    with pytest.raises(BlobExistsError):
        await manager.put("a", b"another", METADATA, if_absent=True)


@pytest.mark.asyncio
async def test_the_job_log_has_one_winner_per_position(cluster: HdfsCluster) -> None:
    logs = [BlobJobLog(manager_of(cluster, "/log"), "job") for _ in range(8)]
    await logs[0].probe()
    results = await asyncio.gather(
        *(log.append(0, b"%d" % n) for n, log in enumerate(logs)), return_exceptions=True
    )
    losers = [type(result) for result in results if result is not None]
    assert losers == [PositionTakenError] * 7
    assert list(await logs[0].read(0)) == [(0, b"%d" % results.index(None))]


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["hdfs", "webhdfs"])
async def test_safe_mode_is_named_and_may_be_waited_out(
    cluster: HdfsCluster, protocol: str
) -> None:
    manager = place_on(cluster, f"/safe-{protocol}", protocol)
    await manager.init()
    await manager.put("before", b"x", METADATA)
    cluster.enter_safe_mode()
    try:
        with pytest.raises(RetriableError, match="safe mode"):
            await manager.put("during", b"x", METADATA)
        with pytest.raises(RetriableError, match="safe mode"):
            await manager.delete("before")
        assert await manager.get("before") == b"x"
    finally:
        cluster.leave_safe_mode()
    await manager.put("during", b"x", METADATA)
    assert await manager.list("") == ["before", "during"]


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["hdfs", "webhdfs"])
async def test_a_quota_that_is_used_up_is_an_error_to_be_mended(
    cluster: HdfsCluster, protocol: str
) -> None:
    directory = f"/limited-{protocol}"
    cluster.limit_space(directory, 20 << 20)
    manager = place_on(cluster, directory, protocol)
    await manager.init()
    with pytest.raises(ConfigError, match="quota is used up"):
        await manager.put("below/large", bytes(30 << 20), METADATA)
    assert entries_of(cluster, directory) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", ["hdfs", "webhdfs"])
async def test_a_backend_without_write_access_is_an_error_to_be_mended(
    cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    cluster.make_read_only(f"/closed-{protocol}")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    manager = place_on(cluster, f"/closed-{protocol}", protocol, user="stranger")
    await manager.init()
    with pytest.raises(ConfigError, match="access denied"):
        await manager.put("a", b"x", METADATA)


@pytest.mark.asyncio
@pytest.mark.parametrize("dead", ["a", "b"])
async def test_a_name_service_is_reached_though_one_of_its_namenodes_is_away(
    cluster: HdfsCluster, dead: str
) -> None:
    addresses = {name: cluster.uri.removeprefix("hdfs://") for name in "ab"} | {dead: ABSENT}
    options = {
        "dfs.nameservices": "both",
        "dfs.ha.namenodes.both": "a,b",
        **{f"dfs.namenode.rpc-address.both.{name}": at for name, at in addresses.items()},
    }
    settings = {f"storage.options.{name}": value for name, value in options.items()}
    factory = BlobBackendFactory(
        BackendName("blob"), {"uri": f"hdfs://both/service-{dead}", **settings}
    )
    manager = factory.blob_store_manager(SerialExecutor(), SystemClock())
    await manager.init()
    await manager.put("a", b"content", METADATA, if_absent=True)
    with pytest.raises(BlobExistsError):
        await manager.put("a", b"other", METADATA, if_absent=True)
    assert await manager.get("a") == b"content"
    assert await manager.list("") == ["a"]
    await manager.close()


@pytest.mark.asyncio
async def test_what_was_written_outlives_the_namenode(cluster: HdfsCluster) -> None:
    manager = manager_of(cluster, "/restarted")
    await manager.init()
    await manager.put("a", b"content", METADATA)
    cluster.restart_namenode()
    assert await manager.get("a") == b"content"
    await manager.put("b", b"more", METADATA)


@pytest.mark.asyncio
async def test_uploads_outlast_a_restart_of_the_namenode_and_leave_nothing_else(
    cluster: HdfsCluster,
) -> None:
    executor = BoundedExecutor(4, "restart")
    factory = BlobBackendFactory(BackendName("blob"), {"uri": f"{cluster.uri}/during"})
    manager = factory.blob_store_manager(executor, SystemClock())
    await manager.init()
    restart = asyncio.ensure_future(executor.run(cluster.restart_namenode))
    content = os.urandom(20 << 20)
    names: list[str] = []
    while not restart.done() or len(names) < 3:
        names.append(f"{len(names):03d}/large")
        await manager.put(names[-1], content, METADATA)
    await restart
    assert await manager.list("") == names
    assert all([await manager.get(name) == content for name in names])
    await manager.remove_unfinished("", lambda _: True)
    directories = [f"/during/{name.partition('/')[0]}" for name in names]
    assert entries_of(cluster, "/during") == sorted(
        [*directories, *(f"/during/{name}" for name in names)]
    )
    await manager.close()
    await executor.close()


@pytest.mark.asyncio
async def test_a_directory_goes_with_the_last_file_in_it_also_beside_puts(
    cluster: HdfsCluster,
) -> None:
    manager = manager_of(cluster, "/directories")
    await manager.init()
    await manager.put("kept", b"x", METADATA)

    async def put_and_delete(number: int) -> None:
        for _ in range(10):
            await manager.put(f"a/b/{number}", b"x", METADATA, if_absent=True)
            await manager.delete(f"a/b/{number}")

    await asyncio.gather(*map(put_and_delete, range(8)))
    await manager.remove_unfinished("", lambda _: True)
    assert entries_of(cluster, "/directories") == ["/directories/kept"]

"""State on a real HDFS: the conformance kit, servers that die, and what HDFS refuses."""

import asyncio
import struct
import uuid
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import hdfs_native
import pytest
from hdfs_kit import HdfsKit
from servers.hdfs import HdfsCluster
from typing_extensions import override

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError, RetriableError, StateBackupError
from statekeep.testing.backend_harness import STORE
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.key_value_harness import KeyValueHarness

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class TestHdfsBackend(HdfsKit):
    @pytest.fixture(autouse=True)
    def server(self, cluster: HdfsCluster) -> None:
        self.uri, self.run = cluster.uri, uuid.uuid4().hex
        self.client: Any = hdfs_native.Client(cluster.uri)

    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        uri = f"{self.uri}/{self.run}/{place.name}"
        return HdfsBackendFactory(BackendName("hdfs"), {"uri": uri, "compression": "none"})

    def root(self, factory: StateBackendFactory) -> str:
        return factory.settings["uri"].removeprefix(self.uri)

    @override
    def stored_files(self, factory: StateBackendFactory) -> dict[str, bytes]:
        root = self.root(factory)
        try:
            statuses = [s for s in self.client.list_status(root, recursive=True) if not s.isdir]
        except FileNotFoundError:
            return {}
        return {s.path.removeprefix(f"{root}/"): self.read(s.path) for s in statuses}

    @override
    def replace(self, factory: StateBackendFactory, name: str, data: bytes | None) -> None:
        path = f"{self.root(factory)}/{name}"
        self.client.delete(path, recursive=False)
        if data is not None:
            with self.client.create(path, hdfs_native.WriteOptions()) as file:
                file.write(data)

    def read(self, path: str) -> bytes:
        with self.client.read(path) as file:
            content: bytes = file.read()
        return content


def entries(size: int, salt: int) -> dict[str, bytes]:
    value = struct.pack("<Q", salt) * 128
    return {f"{number:08d}": value for number in range(size)}


QUICK = {"storage.options.dfs.client.socket-timeout": "4000"}
"""So that what waits without end is given up within the time of a test."""


class _Interrupted(SerialExecutor):
    """Stops a DataNode before one of the calls."""

    def __init__(self, cluster: HdfsCluster, index: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._index = index
        self.calls_left = 0

    @override
    async def run(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        if self.calls_left:
            self.calls_left -= 1
            if not self.calls_left:
                self._cluster.stop_datanode(self._index)
        return await super().run(call, *args, **kwargs)


class _Task(KeyValueHarness):
    """A task whose stores are small beside what is uploaded for them: nothing is compressed."""

    def __init__(
        self, cluster: HdfsCluster, executor: SerialExecutor, local: Path, **settings: str
    ) -> None:
        self.place = f"/{uuid.uuid4().hex}"
        settings |= {"uri": f"{cluster.uri}{self.place}", "compression": "none", **QUICK}
        factory = HdfsBackendFactory(BackendName("hdfs"), settings)
        super().__init__(factory, executor, SystemClock(), local)


# Each in turn: with two replicas of a block on three DataNodes, at least two of them have a part.
@pytest.mark.asyncio
@pytest.mark.parametrize("index", range(3))
async def test_a_datanode_that_dies_during_a_restore_costs_nothing(
    cluster: HdfsCluster, tmp_path: Path, index: int
) -> None:
    executor = _Interrupted(cluster, index)
    task = _Task(cluster, executor, tmp_path)
    await task.start()
    content = entries(20_000, 1)
    first = await task.commit(task.seal(content))
    changed = content | entries(100, 2)
    second = await task.commit(task.seal(changed))
    executor.calls_left = 6
    try:
        assert (await task.restore(first.checkpoint)).content == {STORE: content}
        assert executor.calls_left == 0
        assert (await task.restore(second.checkpoint)).content == {STORE: changed}
    finally:
        await task.close()
        cluster.start_datanode()


@pytest.mark.asyncio
@pytest.mark.parametrize("index", range(3))
async def test_a_datanode_that_dies_during_an_upload_costs_repetitions(
    cluster: HdfsCluster, tmp_path: Path, index: int
) -> None:
    executor = _Interrupted(cluster, index)
    task = _Task(cluster, executor, tmp_path)
    await task.start()
    content = entries(60_000, 1)
    version = task.seal(content)
    executor.calls_left = 10
    try:
        commit = await task.commit(version)
        assert executor.calls_left == 0
    finally:
        await task.close()
        cluster.start_datanode()
    assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    client: Any = hdfs_native.Client(cluster.uri)
    files = [s.path for s in client.list_status(task.place, recursive=True) if not s.isdir]
    name = commit.markers[STORE].rpartition("/")[2].partition(";")[0]  # its digest follows
    assert [path.rpartition("/")[2] for path in files] == [name]


@contextmanager
def safe_mode(cluster: HdfsCluster, _administrator: Any, _place: str) -> Generator[None]:
    cluster.enter_safe_mode()
    try:
        yield
    finally:
        cluster.leave_safe_mode()


@contextmanager
def quota(cluster: HdfsCluster, _administrator: Any, place: str) -> Generator[None]:
    cluster.limit_space(place, 1 << 20)
    try:
        yield
    finally:
        cluster.limit_space(place, 1 << 40)


@contextmanager
def access_denied(_cluster: HdfsCluster, administrator: Any, place: str) -> Generator[None]:
    paths = [s.path for s in administrator.list_status(place, recursive=True) if s.isdir]
    for path in paths:
        administrator.set_permission(path, 0o555)
    try:
        yield
    finally:
        for path in paths:
            administrator.set_permission(path, 0o777)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("trouble", "error", "text"),
    [
        (safe_mode, RetriableError, "safe mode"),
        (quota, ConfigError, "quota"),
        (access_denied, ConfigError, "access denied"),
    ],
    ids=["safe mode", "quota", "access denied"],
)
async def test_a_commit_that_hdfs_refuses_says_why_and_costs_nothing_else(  # noqa: PLR0917 - fixtures
    cluster: HdfsCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[HdfsCluster, Any, str], AbstractContextManager[None]],
    error: type[StateBackupError],
    text: str,
) -> None:
    settings = {"retry.policy.max.retries": "1", "storage.options.user": "engineer"}
    task = _Task(cluster, SerialExecutor(), tmp_path, **settings)
    administrator: Any = hdfs_native.Client(cluster.uri)
    administrator.mkdirs(task.place, create_parent=True)
    administrator.set_permission(task.place, 0o777)
    # Nothing is denied to the owner of the NameNode's process; who is connected stays who it is.
    monkeypatch.setenv("HADOOP_USER_NAME", "engineer")
    await task.start()
    content = entries(20, 1)
    before = await task.commit(task.seal(content))
    with trouble(cluster, administrator, task.place):
        failed = task.open_attempt(task.seal(content | entries(4_000, 2)))
        with pytest.raises(error, match=text):
            await task.upload(failed)
        task.abort(failed)
        assert (await task.restore(before.checkpoint)).content == {STORE: content}
    changed = content | entries(10, 3)
    after = await task.commit(task.seal(changed))
    await task.clean_up()
    assert (await task.restore(after.checkpoint)).content == {STORE: changed}
    files = {s.path for s in administrator.list_status(task.place, recursive=True) if not s.isdir}
    uploads = {
        commit.markers[STORE].rpartition("/")[2].partition(".")[0] for commit in (before, after)
    }
    assert {path.rpartition("/")[2].partition(".")[0] for path in files} == uploads
    await task.close()


@pytest.mark.asyncio
async def test_a_commit_and_a_restore_outlast_a_restart_of_the_namenode(
    cluster: HdfsCluster, tmp_path: Path
) -> None:
    task = _Task(cluster, SerialExecutor(), tmp_path)
    await task.start()
    first, changed = entries(20_000, 1), entries(20_000, 1) | entries(100, 2)
    for content in (first, changed):
        version = task.seal(content)
        restart = asyncio.create_task(asyncio.to_thread(cluster.restart_namenode))
        commit = await task.commit(version)
        assert (await task.restore(commit.checkpoint)).content == {STORE: content}
        await restart
        assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    await task.close()

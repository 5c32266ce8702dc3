"""A query ends within its time though a call to the store of its log never returns."""

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

import pytest
from log_kit import batch_record, commit_record
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.wrappers import WrappedBlobStoreManager
from statekeep.clock import Clock, SystemClock
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.errors import BackendClosedError
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.reign import Reign
from statekeep.spark.query_run import QueryRun
from statekeep.testing.clock import FakeClock

T = TypeVar("T")


class FileServer:
    """What every call goes through; once it is dead, a call occupies its thread until the end."""

    def __init__(self) -> None:
        self.is_dead = False
        self.hung_calls = threading.Semaphore(0)
        self.is_back = threading.Event()

    def answer(self) -> None:
        if self.is_dead:
            self.hung_calls.release()
            assert self.is_back.wait(20)


_servers: Final[dict[str, FileServer]] = {}


class RemoteManager(WrappedBlobStoreManager):
    """A blob client on files of a server."""

    def __init__(
        self, inner: BlobStoreManager, server: FileServer, executor: BlockingExecutor
    ) -> None:
        super().__init__(inner)
        self._server = server
        self._executor = executor

    @override
    async def _around(self, operation: str, subject: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._executor.run(self._server.answer)
        return await call()


def make_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    uri = settings["uri"]
    return RemoteManager(FsspecBlobStoreManager(uri, {}, executor), _servers[uri], executor)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    server = _servers[f"file://{tmp_path}"] = FileServer()
    yield server
    server.is_back.set()
    for thread in threading.enumerate():
        if thread.name.startswith("statekeep-driver"):
            thread.join(10)


@pytest.fixture
def config(tmp_path: Path, server: FileServer) -> Config:
    return load_dict(
        {
            "job.name": "j",
            "stores.backup.factories": "remote",
            "backends.remote.factory": "blob",
            "backends.remote.uri": f"file://{tmp_path}",
            "backends.remote.manager.factory": "test_hung_stores:make_manager",
            "task.shutdown.ms": "30000",
        }
    )


class FakeLocation:
    """The checkpoint location of a query that has only just begun."""

    uri = "file:///checkpoint"

    def query_id(self) -> str:
        return "q"

    def require(self, _name: str) -> str:
        return '{"id":"q"}'


class FakeQuery:
    """A Spark query that ends as soon as it is told to; also its own thread in the JVM."""

    def __init__(self) -> None:
        self.isActive = True
        self._jsq = self

    def streamingQuery(self) -> "FakeQuery":  # noqa: N802 - Spark's name
        return self

    def queryExecutionThread(self) -> "FakeQuery":  # noqa: N802 - Spark's name
        return self

    def isAlive(self) -> bool:  # noqa: N802 - Spark's name
        return self.isActive

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> None:
        return None

    def awaitTermination(self, _timeout: int | None) -> bool:  # noqa: N802 - Spark's name
        return True


def begin(reign: Reign) -> None:
    reign.open(1)
    reign.begin(reign.fence(commit_record(1, 0).identity), "7-1")


def job_with(config: Config, clock: Clock) -> StatefulJob:
    """Return a job that has nothing to commit, and looks for its successor as every job does."""
    unused: Any = None
    location = cast("CheckpointLocation", FakeLocation())
    job = StatefulJob(
        spark=unused,
        frame=unused,
        operator=unused,
        config=config,
        location=location,
        sink=unused,
        clock=clock,
    )
    begin(job._reign)

    async def nothing(*_: object) -> None:
        pass

    committer: Any = SimpleNamespace(
        open_batch=None, open_plan=None, committed_batch=-1, raise_if_fenced=lambda: None
    )
    jobs: Any = SimpleNamespace(
        anchor=SimpleNamespace(give_up=lambda: None), stop_containers=lambda: None
    )
    idle: Any = SimpleNamespace(look=nothing, commit_last=nothing, hand_over=nothing)
    job._reign._committer, job._jobs, job._idle = committer, jobs, idle
    job._batches = cast("Any", SimpleNamespace(head=-1))
    return job


def test_a_stop_ends_though_a_call_hangs(
    config: Config, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    # While everyone waits, the time of this clock flies.
    job = job_with(config, FakeClock())
    server.is_dead = True
    run = QueryRun(cast("StreamingQuery", FakeQuery()), job)
    assert server.hung_calls.acquire(timeout=10)
    run.stop()
    assert job.has_ended
    assert (
        "a blocking call hangs and is waited for no longer: call=test_hung_stores.FileServer.answer"
    ) in [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    with pytest.raises(BackendClosedError, match="hangs"):
        run.await_termination(None)


def test_a_stop_of_a_job_whose_store_answers_gives_up_nothing(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    run = QueryRun(cast("StreamingQuery", FakeQuery()), job_with(config, SystemClock()))
    run.stop()
    run.stop()
    assert run.await_termination(None)
    assert [r.getMessage() for r in caplog.records if r.levelname in {"WARNING", "ERROR"}] == []


def test_a_batch_that_waits_for_its_record_fails(config: Config, server: FileServer) -> None:
    clock = FakeClock()
    reign = Reign(config, cast("CheckpointLocation", FakeLocation()), clock, EventList(clock))
    begin(reign)
    is_over = threading.Event()
    reign.give_up_calls_once(is_over.is_set)
    server.is_dead = True
    with ThreadPoolExecutor(1) as batch_thread:
        appending = batch_thread.submit(reign.append, batch_record(0))
        assert server.hung_calls.acquire(timeout=10)
        is_over.set()
        with pytest.raises(BackendClosedError, match=r"call=.*FileServer\.answer"):
            appending.result(10)
    reign.close()

"""A query ends within its time though a call to the store of its log never returns, and with all on record."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from driver_kit import Driver
from file_server_kit import FileServer, config_of_job_on, file_server
from log_kit import batch_record, commit_record
from pyspark.sql.streaming.query import StreamingQuery

from statekeep.clock import Clock, SystemClock
from statekeep.commit.clean_up import CleanUp
from statekeep.config.model import Config
from statekeep.errors import BackendClosedError, ConfigError
from statekeep.events import RequestDone
from statekeep.reporter import Reporter, RequestCounter
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.owned_job import JobDefinition
from statekeep.spark.driver.progress import EventList, QueryEvent
from statekeep.spark.driver.query_watch import QueryWatch
from statekeep.spark.query_run import QueryRun
from statekeep.testing.clock import FakeClock


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    with file_server(tmp_path) as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, server: FileServer) -> Config:
    return config_of_job_on(tmp_path, task__shutdown__ms="30000")


class FakeLocation:
    """The checkpoint location of a query that has only just begun."""

    uri = shared_uri = "file:///checkpoint"

    def query_id(self) -> str:
        return "q"

    def require(self, _name: str) -> str:
        return '{"id":"q"}'

    def newest(self, _log: str) -> int:
        return -1

    def names(self, _directory: str) -> list[str]:
        return []


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


def begin(driver: Driver) -> None:
    driver.open(1)
    driver.begin(driver.fence(commit_record(1, 0).identity), "7-1")


def job_with(
    config: Config,
    clock: Clock,
    reporter: Reporter | None = None,
    events: EventList | None = None,
) -> StatefulJob:
    """Return a job that has nothing to commit, and looks for its successor as every job does."""
    unused: Any = None
    location = cast("CheckpointLocation", FakeLocation())
    job = StatefulJob(
        JobDefinition(
            spark=unused,
            frame=unused,
            stages=[],
            config=config,
            location=location,
            sink=unused,
            clock=clock,
            events=EventList() if events is None else events,
            reporter=reporter,
        )
    )
    driver = Driver(config, location)
    driver.thread.close()
    driver.thread = job._thread
    begin(driver)
    job._owned.storage = driver.storage

    async def nothing(*_: object) -> None:
        pass

    committer: Any = SimpleNamespace(
        open_batch=None,
        open_plan=None,
        committed_batch=-1,
        raise_if_fenced=lambda: None,
        resolve=nothing,
        leave=nothing,
    )
    jobs: Any = SimpleNamespace(
        placement=SimpleNamespace(give_up=lambda: None), end_session=lambda **_: None
    )
    batches: Any = SimpleNamespace(head=-1)
    owned = job._owned
    owned.commits, owned.jobs, owned.batches = committer, jobs, batches
    owned.watch = QueryWatch(
        thread=job._thread,
        log=driver.log,
        commits=committer,
        batches=batches,
        jobs=jobs,
        location=location,
        turn=job._turn,
        settings=config.task,
        clock=clock,
    )
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
    assert job._ended.is_set()
    assert ("a blocking call hangs and is given up: call=file_server_kit.FileServer.answer") in [
        record.getMessage() for record in caplog.records if record.levelname == "ERROR"
    ]
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


def test_the_requests_of_the_last_clean_up_are_written_down(config: Config) -> None:
    """It is waited for once the end of the job was reported."""
    counter, events = RequestCounter(), EventList()
    reporter = Reporter(FakeClock(), "j", parts=[counter, events])
    counter.report_to(reporter.report)
    job = job_with(config, SystemClock(), reporter, events)
    written: list[QueryEvent] = []
    events.pass_to(written.append)

    async def close(_timeout_s: float) -> None:
        reporter.report(RequestDone("blob", "delete", "done", 0, 0, count=3))

    job._owned.clean_up = cast("CleanUp", SimpleNamespace(start=lambda **_: None, close=close))
    job._owned.is_begun = True
    job.end_failed_start(ConfigError("no"))
    assert [event.kind for event in written] == ["stopped", "requests"]
    assert written[-1].details == {"requests": {"blob": {"delete": 3}}}


def test_a_batch_that_waits_for_its_record_fails(config: Config, server: FileServer) -> None:
    driver = Driver(config, FakeLocation())
    begin(driver)
    is_over = threading.Event()
    driver.thread.give_up_calls_once(is_over.is_set)
    server.is_dead = True
    with ThreadPoolExecutor(1) as batch_thread:
        appending = batch_thread.submit(driver.append, batch_record(0))
        assert server.hung_calls.acquire(timeout=10)
        is_over.set()
        with pytest.raises(BackendClosedError, match=r"call=.*FileServer\.answer"):
            appending.result(10)
    driver.close()

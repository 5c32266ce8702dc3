"""Before the state of a running query is changed: one batch ends wholly, and no other begins."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from statekeep.clock import SystemClock
from statekeep.config.load import load_dict
from statekeep.spark.driver import job as job_module
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.owned_job import JobDefinition
from statekeep.spark.driver.query_watch import BatchStoppedError

FRAME = cast("Any", None)


class Turn:
    """The lock of a job, which tells when a caller begins to wait for it with a time-out."""

    def __init__(self, is_awaited: threading.Event) -> None:
        self._lock = threading.Lock()
        self._is_awaited = is_awaited
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        self._is_awaited.set()
        return self._lock.acquire(timeout=timeout)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Rig:
    """A job whose batches, checkpoint location and Spark query are played here."""

    def __init__(self) -> None:
        nothing = cast("Any", None)
        self.job = StatefulJob(
            JobDefinition(
                spark=nothing,
                frame=nothing,
                stages=[],
                config=load_dict({"job.name": "totals"}),
                location=cast("Any", self),
                sink=nothing,
                clock=SystemClock(),
            )
        )
        self.head = -1
        self.recorded = [-1]
        """What Spark has recorded, at each look; the last one stays."""
        self.in_batch, self.go_on = threading.Event(), threading.Event()
        self.is_stopped = False
        parts: dict[str, Any] = {
            "batches": self,
            "watch": SimpleNamespace(note_batch=lambda: None),
            "jobs": SimpleNamespace(placement=SimpleNamespace(is_given_up=False)),
        }
        for name, part in parts.items():
            setattr(self.job._owned, name, part)
        self.job._query = cast("Any", self)
        self.job._is_attached.set()

    def run(self, rows: object, batch: int) -> None:
        self.in_batch.set()
        assert self.go_on.wait(10)
        self.head = batch

    def newest(self, log: str) -> int:
        assert log == "commits"
        return self.recorded.pop(0) if len(self.recorded) > 1 else self.recorded[0]

    def is_stopping(self) -> bool:
        return self.is_stopped

    def stateful_node(self) -> str:
        return ""


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(job_module, "_POLL_S", 0.001)
    rig = Rig()
    yield rig
    rig.job._thread.close()


def test_the_batch_that_runs_ends_and_is_recorded_before_the_stop(rig: Rig) -> None:
    rig.recorded = [-1, -1, 0]
    rig.job._turn = cast("Any", Turn(rig.go_on))  # the batch ends once it is waited for
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(rig.job.run_batch, FRAME, 0)
        assert rig.in_batch.wait(10)
        pausing = threads.submit(rig.job.pause)
        running.result(10)
        pausing.result(10)
    assert (rig.head, rig.recorded) == (0, [0])


def test_a_batch_that_comes_before_the_stop_is_not_begun(rig: Rig) -> None:
    rig.job.pause()
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(rig.job.run_batch, FRAME, 0)
        rig.is_stopped = True
        with pytest.raises(BatchStoppedError):
            held.result(10)
    assert not rig.in_batch.is_set()


def test_the_wait_for_a_long_batch_ends_when_the_query_is_stopped(rig: Rig) -> None:
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(rig.job.run_batch, FRAME, 0)
        assert rig.in_batch.wait(10)
        pausing = threads.submit(rig.job.pause)
        rig.job._is_asked_to_stop = True
        pausing.result(10)
        assert not running.done()
        rig.go_on.set()
        running.result(10)


def test_records_that_cannot_be_read_do_not_keep_the_query_waiting(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(log: str) -> int:
        raise OSError("no such mount")

    rig.newest = fail  # type: ignore[method-assign]
    rig.job.pause()
    assert "no such mount" in caplog.text

"""Jobs that wait for an executor that is gone run again, but only where there is another one."""

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from statekeep.spark.driver.rebalancer import StallGuard
from statekeep.testing.clock import FakeClock

POLLS = 10


class FakeCluster:
    """The few look-ups of a SparkContext that the guard makes, on two jobs that never run.

    One is of a batch, the other starts workers on executors that have joined.
    """

    def __init__(self) -> None:
        self.alive = ["driver", "one", "two"]
        self.active = [7, 8]
        self.cancelled: list[str] = []
        self.sparkContext = self
        self._jsc = self

    def sc(self) -> "FakeCluster":
        return self

    def getExecutorMemoryStatus(self) -> "FakeCluster":  # noqa: N802 - Spark's name
        return self

    def keySet(self) -> "FakeCluster":  # noqa: N802 - Scala's name
        return self

    def toSeq(self) -> "FakeCluster":  # noqa: N802 - Scala's name
        return self

    def size(self) -> int:
        return len(self.alive)

    def apply(self, index: int) -> str:
        return self.alive[index]

    def statusTracker(self) -> "FakeCluster":  # noqa: N802 - Spark's name
        return self

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        return self.active

    def getJobIdsForTag(self, tag: str) -> list[int]:  # noqa: N802 - Spark's name
        return {"tag": [6, 7], "other": [8], "end-tag": [9]}[tag]

    def getJobInfo(self, _job: int) -> Any:  # noqa: N802 - Spark's name
        return None

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.cancelled.append(tag)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def guard_of(cluster: FakeCluster) -> StallGuard:
    return StallGuard(cast("SparkSession", cluster), "tag", FakeClock())


def test_without_a_loss_a_waiting_job_is_left_alone(cluster: FakeCluster) -> None:
    guard = guard_of(cluster)
    for _ in range(POLLS):
        guard.poll()
    assert cluster.cancelled == []


def test_after_a_loss_a_job_of_which_nothing_runs_is_cancelled(cluster: FakeCluster) -> None:
    guard = guard_of(cluster)
    cluster.alive = ["driver", "two"]
    for _ in range(3):
        guard.poll()
    assert cluster.cancelled == ["tag", "end-tag"]


def test_after_a_loss_the_job_of_the_end_is_cancelled_that_waits_for_the_executor(
    cluster: FakeCluster,
) -> None:
    guard = guard_of(cluster)
    cluster.alive, cluster.active = ["driver", "two"], [9]
    for _ in range(3):
        guard.poll()
    assert cluster.cancelled == ["tag", "end-tag"]


def test_with_no_executor_left_jobs_wait_for_new_ones(cluster: FakeCluster) -> None:
    guard = guard_of(cluster)
    cluster.alive = ["driver"]
    for _ in range(POLLS):
        guard.poll()
    assert cluster.cancelled == []
    cluster.alive = ["driver", "three"]
    for _ in range(3):
        guard.poll()
    assert cluster.cancelled == ["tag", "end-tag"]


def test_jobs_beside_the_batches_may_wait(cluster: FakeCluster) -> None:
    guard = guard_of(cluster)
    cluster.alive, cluster.active = ["driver", "two"], [8]
    for _ in range(POLLS):
        guard.poll()
    assert cluster.cancelled == []


def test_executors_that_come_or_go_are_reported(cluster: FakeCluster) -> None:
    changes: list[bool] = []
    guard = StallGuard(cast("SparkSession", cluster), "tag", FakeClock(), changes.append)

    def told(*alive: str) -> list[bool]:
        cluster.alive = ["driver", *alive]
        guard.poll()
        guard.poll()
        found = list(changes)
        changes.clear()
        return found

    assert told("one", "two") == []
    assert told("one", "two", "three") == [True]
    assert told("two", "three") == [False]  # a job of a batch may wait for the one that is gone
    assert told("two", "three", "four") == [False]
    cluster.active = [8]
    assert told("two", "three", "four") == [True]

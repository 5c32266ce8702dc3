"""Sidecars that die while they restore or take over a backup: their successors do it."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest
from conftest import PARTITIONS, Stream, events_of, lose_directory
from spark_processes import sidecar_processes, wait_until

from statekeep.errors import RestoreFailedError
from statekeep.testing.faults import Action, ArmedFault, ProcessKind, ProcessPlan

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

Arm = Callable[..., ProcessPlan]


def crash(point: str, *, is_once: bool = True) -> ArmedFault:
    """Return a fault that kills one sidecar at a point, or every sidecar."""
    return ArmedFault(point, point, Action.CRASH, kind=ProcessKind.SIDECAR, is_once=is_once)


def lose_disk(stream: Stream) -> None:
    for state in stream.local_dir.glob("*/main"):
        lose_directory(state)


def stream_with_commit(stream: Stream) -> Stream:
    """Return a stream with two committed batches, whose disks are lost."""
    stream.add_batches(2)
    stream.run()
    lose_disk(stream)
    stream.add_batches(1)
    return stream


def test_a_restore_is_taken_up_by_the_successor_of_a_sidecar_that_died_in_it(
    stream: Stream, arm: Arm
) -> None:
    stream_with_commit(stream)
    plan = arm(crash("restore.before_adopt"), crash("restore.after_adopt"))

    query = stream.run()

    assert len(plan.strikes()) == 2
    (recovery,) = events_of(query, "recovery")
    assert len(recovery["restored"]) == PARTITIONS
    assert recovery["replayed"] == []
    assert stream.received() == stream.expected(3)
    assert list(stream.local_dir.rglob("work-*")) == []


def test_sidecars_that_die_over_every_restore_fail_the_start_with_their_log(
    stream: Stream, arm: Arm
) -> None:
    stream_with_commit(stream)
    plan = arm(crash("restore.before_adopt", is_once=False))
    with pytest.raises(RestoreFailedError, match="sidecars die over one request") as caught:
        stream.run()
    assert "container.log" in str(caught.value)
    assert "lack of memory" in str(caught.value)
    assert len(plan.strikes()) <= 3 * PARTITIONS

    arm()
    stream.run()
    assert stream.received() == stream.expected(3)
    assert list(stream.local_dir.rglob("work-*")) == []


@pytest.mark.parametrize(
    "point", ["outbox.before_write", "outbox.after_entry", "outbox.after_write"]
)
def test_a_submission_is_repeated_to_the_successor_of_a_sidecar_that_died_over_it(
    stream: Stream, arm: Arm, point: str
) -> None:
    stream.add_batches(3)
    plan = arm(crash(point))
    query = stream.run(task__commit__ms=1)
    assert len(plan.strikes()) == 1
    assert events_of(query, "void") == []
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 2
    lose_disk(stream)
    stream.add_batches(1)
    stream.run()
    assert stream.received() == stream.expected(4)


def test_sidecars_that_are_killed_between_batches_are_replaced(stream: Stream) -> None:
    """An upload that one was killed over is submitted again once its commit takes long."""
    stream.add_batches(6)
    killed: list[int] = []

    def kill(batch: int) -> None:
        if batch in {1, 3, 5}:  # at the last one there may be none: an upload starts it
            assert batch == 5 or wait_until(lambda: sidecar_processes(stream.local_dir) != {})
            for pid in sidecar_processes(stream.local_dir):
                with suppress(ProcessLookupError):  # one that only launches another
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    stream.on_batch = kill
    query = stream.start(settings={"task.commit.ms": 1, "task.commit.max.delay.ms": 2000})
    query.awaitTermination()
    assert len(killed) >= 2
    assert [batch for batch, _ in stream.delivered] == list(range(6))
    assert query.lastCommit is not None
    assert query.lastCommit.batch == 5
    lose_disk(stream)
    stream.add_batches(1)
    stream.on_batch = lambda _: None
    stream.run()
    assert stream.received() == stream.expected(7)

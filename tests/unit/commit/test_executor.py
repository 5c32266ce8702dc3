"""The bounded executor: caps, fairness, no deadlock, an end without threads."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import BackendClosedError


class Gauge:
    """Counts how many calls run at once; each waits until it is released."""

    def __init__(self) -> None:
        self.running = 0
        self.highest = 0
        self.may_end = threading.Event()
        self._lock = threading.Lock()

    def call(self) -> None:
        with self._lock:
            self.running += 1
            self.highest = max(self.highest, self.running)
        assert self.may_end.wait(timeout=10)
        with self._lock:
            self.running -= 1


def threads_named(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[BoundedExecutor]:
    executor = BoundedExecutor(2, "test-pool")
    yield executor
    await executor.close()
    assert threads_named("test-pool") == []


@pytest.mark.asyncio
async def test_a_call_runs_on_a_pool_thread_and_its_result_comes_back(
    executor: BoundedExecutor,
) -> None:
    name = await executor.run(lambda: threading.current_thread().name)
    assert name.startswith("test-pool")


@pytest.mark.asyncio
async def test_an_error_of_the_call_reaches_the_caller(executor: BoundedExecutor) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await executor.run(int, "x")


@pytest.mark.asyncio
async def test_no_more_calls_run_than_there_are_workers(executor: BoundedExecutor) -> None:
    gauge = Gauge()
    async with asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(executor.run(gauge.call))
        while gauge.running < 2:
            await asyncio.sleep(0)
        assert len(threads_named("test-pool")) == 2
        gauge.may_end.set()
    assert gauge.highest == 2


@pytest.mark.asyncio
async def test_parents_that_wait_for_children_do_not_deadlock_on_one_thread() -> None:
    executor = BoundedExecutor(1, "narrow-pool")

    async def parent(number: int) -> int:
        await executor.run(int, "1")
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(executor.run(int, str(number))) for _ in range(5)]
        return sum(child.result() for child in children)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        parents = [group.create_task(parent(number)) for number in range(20)]
    assert [done.result() for done in parents] == [5 * number for number in range(20)]
    await executor.close()


@pytest.mark.asyncio
async def test_a_cancelled_caller_gives_its_place_back_only_when_the_call_ends() -> None:
    executor = BoundedExecutor(1, "cancel-pool")
    gauge = Gauge()
    caller = asyncio.create_task(executor.run(gauge.call))
    while gauge.running < 1:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    follower = asyncio.create_task(executor.run(lambda: gauge.running))
    await asyncio.sleep(0)
    assert not follower.done()
    gauge.may_end.set()
    assert await follower == 0
    await executor.close()


@pytest.mark.asyncio
async def test_close_waits_for_running_calls_and_refuses_those_that_wait() -> None:
    executor = BoundedExecutor(1, "close-pool")
    gauge = Gauge()
    running = asyncio.create_task(executor.run(gauge.call))
    waiting = asyncio.create_task(executor.run(int, "1"))
    while gauge.running < 1:
        await asyncio.sleep(0)
    closing = asyncio.create_task(executor.close())
    await asyncio.sleep(0)
    assert not closing.done()

    gauge.may_end.set()
    await closing
    await running
    with pytest.raises(BackendClosedError):
        await waiting
    with pytest.raises(BackendClosedError):
        await executor.run(int, "1")
    assert threads_named("close-pool") == []


@pytest.mark.asyncio
async def test_close_can_be_called_twice_and_after_a_cancel() -> None:
    executor = BoundedExecutor(2, "twice-pool")
    gauge = Gauge()
    running = asyncio.create_task(executor.run(gauge.call))
    while gauge.running < 1:
        await asyncio.sleep(0)
    closing = asyncio.create_task(executor.close())
    for _ in range(3):
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gauge.may_end.set()
    await running
    await executor.close()
    await executor.close()
    assert threads_named("twice-pool") == []


def test_an_executor_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="max_workers=0"):
        BoundedExecutor(0, "none")


@pytest.mark.asyncio
async def test_a_call_that_hangs_can_be_abandoned_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = BoundedExecutor(1, "hung-pool")
    gauge = Gauge()
    hung = asyncio.create_task(executor.run(gauge.call))
    waiting = asyncio.create_task(executor.run(int, "1"))
    while gauge.running < 1:
        await asyncio.sleep(0)
    closing = asyncio.create_task(executor.close())
    await asyncio.sleep(0)

    executor.abandon()
    with pytest.raises(BackendClosedError, match=r"hangs and was given up: call=.*Gauge\.call"):
        await hung
    with pytest.raises(BackendClosedError, match="closed"):
        await waiting
    await closing
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "Gauge.call" in record.getMessage()

    (thread,) = [each for each in threading.enumerate() if each.name.startswith("hung-pool")]
    gauge.may_end.set()
    thread.join(10)  # its end has no effect
    assert not thread.is_alive()
    await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_only_a_call_that_outlasts_the_timeout_is_taken_for_hung() -> None:
    executor = BoundedExecutor(2, "pool")
    gauge = Gauge()
    sleeps = 0

    async def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        await executor.run(int, "1")  # ends within one wait

    watch = asyncio.create_task(executor.abandon_hung_calls(sleep))
    while sleeps < 3:
        await asyncio.sleep(0)
    assert not watch.done()
    hung = asyncio.create_task(executor.run(gauge.call))
    with pytest.raises(BackendClosedError, match="hangs"):
        await hung
    await watch
    gauge.may_end.set()
    await executor.close()


@pytest.mark.asyncio
async def test_an_idle_executor_that_is_abandoned_still_ends_its_threads() -> None:
    executor = BoundedExecutor(2, "idle-pool")
    await executor.run(int, "1")
    executor.abandon()
    with pytest.raises(BackendClosedError):
        await executor.run(int, "1")
    await executor.close()
    assert threads_named("idle-pool") == []


@pytest.mark.asyncio
async def test_a_call_that_lasts_can_be_distinguished_from_one_that_follows_it(
    executor: BoundedExecutor,
) -> None:
    gauge = Gauge()
    lasting = asyncio.create_task(executor.run(gauge.call))
    while gauge.running < 1:
        await asyncio.sleep(0)
    before = executor.in_flight
    await executor.run(int, "1")
    assert len(before) == 1
    assert executor.in_flight == before
    gauge.may_end.set()
    await lasting
    assert executor.in_flight == frozenset()


@pytest.mark.asyncio
async def test_a_call_that_raises_stop_iteration_has_an_end() -> None:
    executor = BoundedExecutor(1, "empty-pool")
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        await executor.run(next, iter(()))
    assert isinstance(caught.value.__cause__, StopIteration)
    await executor.close()


ENDS_WITH_A_HUNG_CALL = """
import asyncio, threading
from statekeep.commit.executor import BoundedExecutor

async def hang():
    executor = BoundedExecutor(1, "hung")
    hung = asyncio.create_task(executor.run(threading.Event().wait))
    await asyncio.sleep(0)
    executor.abandon()
    await asyncio.gather(hung, return_exceptions=True)
    await executor.close()

asyncio.run(hang())
"""


def test_the_interpreter_ends_without_an_abandoned_call() -> None:
    command = [sys.executable, "-c", ENDS_WITH_A_HUNG_CALL]
    assert subprocess.run(command, timeout=20, check=False).returncode == 0

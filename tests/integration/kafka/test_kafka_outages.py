"""A broker that dies and comes back in the middle, and one that compacts."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
import pytest_asyncio
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka_kit import ChangelogJob
from servers.kafka import KafkaBroker, kafka_broker
from servers.process import required
from typing_extensions import override

from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import CheckpointCorruptError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

P = ParamSpec("P")
T = TypeVar("T")


class Interrupting(BoundedExecutor):
    """Calls ``interrupt`` once, before the n-th blocking call."""

    def __init__(self) -> None:
        super().__init__(4, "outage")
        self.left = -1
        self.interrupt: Callable[[], None] = lambda: None

    def arm(self, calls: int, interrupt: Callable[[], None]) -> None:
        self.left, self.interrupt = calls, interrupt

    @override
    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.left -= 1
        if self.left == 0:
            self.interrupt()
        return await super().run(call, *args, **kwargs)


@pytest.fixture(scope="module")
def mortal() -> Generator[KafkaBroker]:
    logging.getLogger("statekeep.backends.kafka.clients").setLevel(logging.CRITICAL + 1)
    with required(kafka_broker()) as started:
        yield started


@pytest_asyncio.fixture
async def executor() -> AsyncGenerator[Interrupting]:
    made = Interrupting()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def job(
    mortal: KafkaBroker, executor: Interrupting, tmp_path: Path
) -> AsyncGenerator[ChangelogJob]:
    made = ChangelogJob(mortal.servers, tmp_path, uuid.uuid4().hex, executor=executor)
    yield made
    await made.close()


def restart(broker: KafkaBroker) -> Callable[[], None]:
    def kill_and_start() -> None:
        broker.kill()
        broker.start()

    return kill_and_start


@pytest.mark.asyncio
@pytest.mark.parametrize("calls", [1, 5, 6], ids=["start", "records", "commit"])
async def test_a_broker_that_restarts_in_the_middle_of_a_commit_is_waited_for(
    job: ChangelogJob, executor: Interrupting, mortal: KafkaBroker, calls: int
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"%d" % n: b"1" for n in range(5_000)})
    executor.arm(calls, restart(mortal))
    commit = await job.commit(manager, {b"%d" % n: b"2" for n in range(0, 5_000, 2)})
    assert executor.left <= 0
    assert await job.restore(base.checkpoint) == base.content
    assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
@pytest.mark.parametrize("calls", [2, 8], ids=["start", "records"])
async def test_a_broker_that_restarts_in_the_middle_of_a_restore_is_waited_for(
    job: ChangelogJob, executor: Interrupting, mortal: KafkaBroker, calls: int
) -> None:
    commit = await job.commit(await job.manager(), {b"%d" % n: b"x" * 500 for n in range(100_000)})
    executor.arm(calls, restart(mortal))
    assert await job.restore(commit.checkpoint) == commit.content
    assert executor.left <= 0


@pytest.mark.asyncio
async def test_compaction_beyond_the_marker_is_found_out(
    job: ChangelogJob, mortal: KafkaBroker
) -> None:
    manager = await job.manager()
    first = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    second = await job.commit(manager, {b"a": b"2", b"c": b"1"})
    set_up_for_quick_compaction(job)
    # A segment that is closed and below the newest one can be compacted.
    third = await job.commit(manager, {b"d": b"1"})
    await job.commit(manager, {b"e": b"1"})
    while (b"a", b"1") in job.records():
        await asyncio.sleep(0.2)
    with pytest.raises(CheckpointCorruptError, match="does not give the committed content"):
        await job.restore(first.checkpoint)
    for commit in (second, third):
        assert await job.restore(commit.checkpoint) == commit.content


def set_up_for_quick_compaction(job: ChangelogJob) -> None:
    wanted = {
        "min.compaction.lag.ms": "0",
        "min.cleanable.dirty.ratio": "0.001",
        "segment.ms": "100",
        "delete.retention.ms": "0",
    }
    resource = ConfigResource(
        ResourceType.TOPIC,
        job.topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in wanted.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": job.servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()

"""A broker that dies and comes back in the middle, and one that compacts."""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from kafka_kit import SIPS, ChangelogJob, Interrupting
from servers.kafka import KafkaBroker, kafka_broker
from servers.process import required

from statekeep.checkpoint.checkpoints import SystemStreamPartition, TaskName
from statekeep.errors import CheckpointCorruptError, RetriableError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TASK = TaskName("Partition 0")
INPUT = SystemStreamPartition("kafka", "clicks", 0)


@pytest.fixture(scope="module")
def mortal() -> Generator[KafkaBroker]:
    logging.getLogger("statekeep.backends.kafka.clients").setLevel(logging.CRITICAL + 1)
    with required(kafka_broker()) as started:
        yield started


@pytest_asyncio.fixture
async def job(
    mortal: KafkaBroker, interrupting: Interrupting, tmp_path: Path
) -> AsyncGenerator[ChangelogJob]:
    made = ChangelogJob(mortal.servers, tmp_path, uuid.uuid4().hex, executor=interrupting)
    yield made
    await made.close()


def restart(broker: KafkaBroker) -> Callable[[], None]:
    def kill_and_start() -> None:
        broker.kill()
        broker.start()

    return kill_and_start


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["describe", "_enqueue", "commit_transaction"])
async def test_a_broker_that_restarts_in_the_middle_of_a_commit_is_waited_for(
    job: ChangelogJob, interrupting: Interrupting, mortal: KafkaBroker, step: str
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"%d" % n: b"1" for n in range(5_000)})
    interrupting.arm(step, restart(mortal))
    commit = await job.commit(manager, {b"%d" % n: b"2" for n in range(0, 5_000, 2)})
    assert interrupting.has_struck
    assert await job.restore(base.checkpoint) == base.content
    assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
@pytest.mark.parametrize(("step", "nth"), [("_find", 1), ("_step", 4)], ids=["start", "records"])
async def test_a_broker_that_restarts_in_the_middle_of_a_restore_is_waited_for(
    job: ChangelogJob, interrupting: Interrupting, mortal: KafkaBroker, step: str, nth: int
) -> None:
    commit = await job.commit(await job.manager(), {b"%d" % n: b"x" * 500 for n in range(100_000)})
    interrupting.arm(step, restart(mortal), nth=nth)
    assert await job.sipping().restore(commit.checkpoint) == commit.content
    assert interrupting.has_struck


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("step", "next_try"),
    [
        ("describe", "init_transactions"),
        ("_enqueue", "commit_transaction"),
        ("commit_transaction", "commit_transaction"),
    ],
)
async def test_a_broker_that_is_away_during_a_call_of_a_commit_is_waited_for(
    job: ChangelogJob, interrupting: Interrupting, mortal: KafkaBroker, step: str, next_try: str
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"%d" % n: b"1" for n in range(5_000)})

    def die() -> None:
        mortal.kill()
        # It comes back once one try has been made without it.
        interrupting.arm(next_try, mortal.start, nth=2)

    interrupting.arm(step, die)
    commit = await job.commit(manager, {b"%d" % n: b"2" for n in range(0, 5_000, 2)})
    assert interrupting.has_struck
    assert await job.restore(base.checkpoint) == base.content
    assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
async def test_a_broker_that_is_away_during_a_restore_is_waited_for(
    job: ChangelogJob, interrupting: Interrupting, mortal: KafkaBroker
) -> None:
    commit = await job.commit(await job.manager(), {b"%d" % n: b"x" * 500 for n in range(100_000)})

    def die() -> None:
        mortal.kill()
        interrupting.arm("_step", mortal.start, nth=20)

    interrupting.arm("_step", die, nth=4)
    assert await job.sipping().restore(commit.checkpoint) == commit.content
    assert interrupting.has_struck


@pytest.mark.asyncio
async def test_a_broker_that_stalls_in_the_middle_of_a_restore_is_waited_for(
    job: ChangelogJob, interrupting: Interrupting, mortal: KafkaBroker
) -> None:
    commit = await job.commit(await job.manager(), {b"%d" % n: b"x" * 500 for n in range(100_000)})

    def stall() -> None:
        mortal.pause()
        interrupting.arm("_step", mortal.resume, nth=40)

    interrupting.arm("_step", stall, nth=4)
    try:
        assert await job.sipping().restore(commit.checkpoint) == commit.content
        assert interrupting.has_struck
    finally:
        mortal.resume()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("step", "nth"), [("_step", 4), ("_enqueue", 1)], ids=["restore", "commit"]
)
async def test_a_broker_that_stalls_for_good_ends_the_call_in_time(
    job: ChangelogJob, interrupting: Interrupting, mortal: KafkaBroker, step: str, nth: int
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"%d" % n: b"x" * 500 for n in range(100_000)})
    hasty = ChangelogJob(
        job.servers,
        job.versions.root,
        job.task.job_name,
        executor=interrupting,
        timeout_ms="3000",
        retry_max_duration_ms="0",
        **SIPS,
    )
    hasty.continue_after(base)
    manager = await hasty.manager()
    interrupting.arm(step, mortal.pause, nth=nth)
    try:
        with pytest.raises(RetriableError):
            await (
                hasty.restore(base.checkpoint)
                if step == "_step"
                else hasty.commit(manager, {b"a": b"1"})
            )
    finally:
        mortal.resume()
    assert interrupting.has_struck
    await hasty.close()
    assert await job.restore(base.checkpoint) == base.content


@pytest.mark.asyncio
async def test_without_transactions_strangers_do_not_make_up_for_records_that_wait_for_long(
    interrupting: Interrupting, mortal: KafkaBroker, tmp_path: Path
) -> None:
    job = ChangelogJob(
        mortal.servers,
        tmp_path,
        uuid.uuid4().hex,
        executor=interrupting,
        transactional="false",
        timeout_ms="5000",
        client_reconnect_backoff_max_ms="200",
    )
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    stranger = Producer(
        {"bootstrap.servers": mortal.servers, "message.timeout.ms": 5_000, "log_level": 0}
    )

    def die() -> None:
        mortal.kill()
        interrupting.arm("_enqueue", come_back)

    def come_back() -> None:
        """Return when records of that age expire, and as many others are there in their place."""
        stranger.produce(job.topic, b"expires too", b"strange", 2)
        stranger.flush()
        mortal.start()
        for number in range(10_000):
            stranger.produce(job.topic, b"strange", b"s%d" % number, 2)
        assert not stranger.flush()

    interrupting.arm("_enqueue", die)
    commit = await job.commit(manager, {b"%05d" % n: b"2" for n in range(10_001)})
    assert interrupting.has_struck
    assert await job.restore(commit.checkpoint) == commit.content
    await job.close()


@pytest.mark.asyncio
async def test_compaction_beyond_the_marker_is_found_out(
    job: ChangelogJob, mortal: KafkaBroker
) -> None:
    manager = await job.manager()
    first = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    second = await job.commit(manager, {b"a": b"2", b"c": b"1"})
    job.configure_topic(
        min_compaction_lag_ms="0",
        min_cleanable_dirty_ratio="0.001",
        segment_ms="100",
        delete_retention_ms="0",
    )
    # A segment that is closed and below the newest one can be compacted.
    third = await job.commit(manager, {b"d": b"1"})
    await job.commit(manager, {b"e": b"1"})
    while (b"a", b"1") in job.records():
        await asyncio.sleep(0.2)
    with pytest.raises(CheckpointCorruptError, match="does not give the committed content"):
        await job.restore(first.checkpoint)
    for commit in (second, third):
        assert await job.restore(commit.checkpoint) == commit.content

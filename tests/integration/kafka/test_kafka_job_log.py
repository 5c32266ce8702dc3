"""The job log and the checkpoint store in topics of a real broker."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_kit import Interrupting
from servers.kafka import KafkaBroker

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, TaskName
from statekeep.checkpoint.job_log import JobLog, PositionTakenError
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import EpochRecord
from statekeep.clock import SystemClock
from statekeep.errors import ConfigError, RetriableError, TaskFencedError
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def factory(broker: KafkaBroker) -> StateBackendFactory:
    settings = {"bootstrap.servers": broker.servers, "topic.prefix": f"log-{uuid.uuid4().hex}"}
    return KafkaBackendFactory(BackendName("kafka"), settings)


@pytest_asyncio.fixture
async def new_log(factory: StateBackendFactory) -> AsyncGenerator[Callable[[], JobLog]]:
    async with AsyncExitStack() as stack:

        def make() -> JobLog:
            log = factory.job_log("job/main", SerialExecutor(), SystemClock())
            stack.push_async_callback(log.close)
            return log

        yield make


@pytest.mark.asyncio
async def test_records_are_read_in_order_by_another_process(
    new_log: Callable[[], JobLog],
) -> None:
    log = new_log()
    await log.probe()
    for position in range(5):
        await log.append(position, b"record %d" % position)
    assert list(await new_log().read(2)) == [(n, b"record %d" % n) for n in (2, 3, 4)]
    assert list(await log.read(0)) == [(n, b"record %d" % n) for n in range(5)]


@pytest.mark.asyncio
async def test_a_position_that_is_taken_is_refused_and_stays_as_it_is(
    new_log: Callable[[], JobLog],
) -> None:
    first, second = new_log(), new_log()
    await first.probe()
    await first.append(0, b"first")
    with pytest.raises(PositionTakenError):
        await second.append(0, b"second")
    await second.append(1, b"second")
    with pytest.raises(PositionTakenError):
        await first.append(1, b"first again")
    assert [data for _, data in await first.read(0)] == [b"first", b"second"]


def make_anew(servers: str, topic: str) -> None:
    """Delete a topic and create another one of its name."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result()
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, -1)])[topic].result()
        except KafkaException as exc:  # the old one is still on its way out
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            return


@pytest.mark.asyncio
@pytest.mark.parametrize("call", ["read", "append"])
async def test_a_log_that_was_deleted_and_made_anew_is_reported(
    new_log: Callable[[], JobLog], factory: StateBackendFactory, broker: KafkaBroker, call: str
) -> None:
    log = new_log()
    await log.probe()
    await log.append(0, b"zero")
    topic = f"{factory.settings['topic.prefix']}.job.main.job-log"
    make_anew(broker.servers, topic)
    with pytest.raises(ConfigError, match="topic was deleted, and another one has its name"):
        await (log.read(0) if call == "read" else log.append(1, b"one"))
    assert not await new_log().read(0)


@pytest.mark.asyncio
async def test_a_log_that_is_made_anew_between_a_look_and_a_record_is_reported(
    factory: StateBackendFactory, broker: KafkaBroker, interrupting: Interrupting
) -> None:
    log = factory.job_log("job/main", interrupting, SystemClock())
    await log.probe()
    await log.append(0, b"zero")
    topic = f"{factory.settings['topic.prefix']}.job.main.job-log"
    interrupting.arm("_enqueue", lambda: make_anew(broker.servers, topic))
    with pytest.raises((ConfigError, RetriableError)):
        await log.append(1, b"one")
    with pytest.raises(ConfigError, match="topic was deleted, and another one has its name"):
        await log.append(1, b"one")
    await log.close()


@pytest.mark.asyncio
async def test_what_a_dead_writer_left_open_is_never_read(
    new_log: Callable[[], JobLog], factory: StateBackendFactory, broker: KafkaBroker
) -> None:
    log = new_log()
    await log.probe()
    await log.append(0, b"zero")
    topic = f"{factory.settings['topic.prefix']}.job.main.job-log"
    dead = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(topic, b"dead", b"1", 0)
    dead.flush()
    assert [data for _, data in await log.read(0)] == [b"zero"]
    await log.append(1, b"one")
    assert [data for _, data in await new_log().read(0)] == [b"zero", b"one"]


@pytest.mark.asyncio
async def test_a_trimmed_log_begins_at_its_floor_and_goes_on(
    new_log: Callable[[], JobLog],
) -> None:
    log = new_log()
    await log.probe()
    for position in range(4):
        await log.append(position, b"%d" % position)
    await log.trim(4)
    assert await log.read_floor() == 4
    assert list(await log.read(0)) == []
    await log.append(4, b"4")
    await log.trim(2)
    await new_log().trim(4)
    other = new_log()
    assert (await other.read_floor(), list(await other.read(0))) == (4, [(4, b"4")])
    with pytest.raises(PositionTakenError):
        await other.append(3, b"late")


@pytest.mark.asyncio
async def test_a_writer_knows_that_a_newer_epoch_has_begun(
    new_log: Callable[[], JobLog],
) -> None:
    old, new = LogSession(new_log()), LogSession(new_log())
    await old.open()
    await old.take_over("old")
    await new.open()
    assert await new.take_over("new") == 2
    with pytest.raises(TaskFencedError):
        await old.append(EpochRecord(owner="old"))


@pytest.mark.asyncio
async def test_of_racing_appends_at_every_position_one_wins(
    new_log: Callable[[], JobLog],
) -> None:
    logs = [new_log() for _ in range(4)]
    await logs[0].probe()
    for position in range(3):
        results = await asyncio.gather(
            *(log.append(position, b"%d" % n) for n, log in enumerate(logs)),
            return_exceptions=True,
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, PositionTakenError) for result in results) == 3
        winner = results.index(None)
        assert (await logs[0].read(position))[0] == (position, b"%d" % winner)


@pytest.mark.asyncio
async def test_a_checkpoint_is_replaced_and_left_out_where_known(
    factory: StateBackendFactory,
) -> None:
    store = factory.checkpoint_store("job", SerialExecutor(), SystemClock())
    other = factory.checkpoint_store("job", SerialExecutor(), SystemClock())
    await store.write("1-1", TaskName("Partition 0"), b"first")
    assert await other.read("1-1") == {"Partition 0": b"first"}
    await store.write("1-1", TaskName("Partition 0"), b"second")
    await store.write("1-1", TaskName("Partition 1"), b"one")
    assert await other.read("1-1", known={TaskName("Partition 1")}) == {"Partition 0": b"second"}
    await other.delete("1-1")
    assert await store.read("1-1") == {}
    await store.close()
    await other.close()


@pytest.mark.asyncio
async def test_a_look_for_a_log_makes_none(
    new_log: Callable[[], JobLog], factory: StateBackendFactory, broker: KafkaBroker
) -> None:
    assert not await new_log().is_there()
    assert not await new_log().is_there()
    log = new_log()
    await log.probe()
    assert not await new_log().is_there()
    await log.append(0, b"first")
    assert await new_log().is_there()

"""A cluster that makes whatever topic it is asked for, as Kafka does by default."""

import logging
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from kafka_kit import ChangelogJob, Interrupting
from servers.kafka import KafkaBroker, kafka_broker
from servers.process import required

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def making() -> Generator[KafkaBroker]:
    logging.getLogger("statekeep.backends.kafka.clients").setLevel(logging.CRITICAL + 1)
    with required(kafka_broker(makes_topics=True)) as started:
        yield started


@pytest_asyncio.fixture
async def job(
    making: KafkaBroker, interrupting: Interrupting, tmp_path: Path
) -> AsyncGenerator[ChangelogJob]:
    # A client soon asks for all topics that it has used: it may do so at any time.
    often = {"client_topic_metadata_refresh_interval_ms": "10"}
    made = ChangelogJob(making.servers, tmp_path, uuid.uuid4().hex, executor=interrupting, **often)
    yield made
    await made.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("step", ["describe", "start_offsets", "commit_transaction"])
async def test_a_topic_that_is_deleted_in_the_middle_of_a_commit_comes_back_as_it_has_to_be(
    job: ChangelogJob, interrupting: Interrupting, step: str
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"%d" % n: b"1" for n in range(100)})
    interrupting.arm(step, job.delete_topic)
    commit = await job.commit(manager, {b"a": b"2"})
    assert interrupting.has_struck
    assert await job.restore(commit.checkpoint) == commit.content

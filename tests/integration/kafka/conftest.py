"""One real broker for all tests of this folder."""

import logging
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from kafka_kit import ChangelogJob
from servers.kafka import KafkaBroker, kafka_broker
from servers.process import required


@pytest.fixture(scope="session")
def broker() -> Generator[KafkaBroker]:
    """A broker that nobody kills."""
    logging.getLogger("statekeep.backends.kafka.clients").setLevel(logging.ERROR)
    with required(kafka_broker()) as started:
        yield started


@pytest_asyncio.fixture
async def job(broker: KafkaBroker, tmp_path: Path) -> AsyncGenerator[ChangelogJob]:
    """A job with topics of its own."""
    made = ChangelogJob(broker.servers, tmp_path, f"job-{uuid.uuid4().hex}")
    yield made
    await made.close()

"""Real brokers for the tests of this folder: one that no test kills, and three that tests may kill."""

import logging
import uuid
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from kafka_kit import ChangelogJob, Interrupting
from servers.kafka import KafkaBroker, KafkaCluster, kafka_broker, kafka_cluster
from servers.process import required

CLIENT_LOG = "statekeep.backends.kafka.clients"


@pytest.fixture(scope="session")
def broker() -> Generator[KafkaBroker]:
    """A broker that no test kills."""
    logging.getLogger(CLIENT_LOG).setLevel(logging.ERROR)
    with required(kafka_broker()) as started:
        yield started


@pytest.fixture(scope="session")
def three_nodes() -> Generator[KafkaCluster]:
    """A cluster whose nodes tests kill."""
    logging.getLogger(CLIENT_LOG).setLevel(logging.CRITICAL + 1)
    with required(kafka_cluster()) as started:
        yield started


@pytest.fixture
def cluster(three_nodes: KafkaCluster) -> Generator[KafkaCluster]:
    """The cluster, whole before and after a test."""
    three_nodes.start_missing()
    yield three_nodes
    three_nodes.start_missing()


@pytest_asyncio.fixture
async def interrupting() -> AsyncGenerator[Interrupting]:
    """An executor that a test interrupts at a blocking call of its choice."""
    made = Interrupting()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def job(broker: KafkaBroker, tmp_path: Path) -> AsyncGenerator[ChangelogJob]:
    """A job with topics of its own."""
    made = ChangelogJob(broker.servers, tmp_path, f"job-{uuid.uuid4().hex}")
    yield made
    await made.close()

"""Uploads that take longer than the cluster leaves a transaction open."""

import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from kafka_kit import ChangelogJob, Interrupting
from servers.kafka import KafkaBroker

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TIMEOUT_S = 2.0
"""After which the broker aborts; it looks twice a second."""
MANY = {b"%05d" % n: b"1" for n in range(60_000)}
"""Read in six steps at least."""


@pytest_asyncio.fixture
async def job(
    broker: KafkaBroker, interrupting: Interrupting, tmp_path: Path
) -> AsyncGenerator[ChangelogJob]:
    made = ChangelogJob(
        broker.servers,
        tmp_path,
        uuid.uuid4().hex,
        executor=interrupting,
        transaction_timeout_ms=f"{TIMEOUT_S * 1000:.0f}",
        retry_max_duration_ms="0",
    )
    yield made
    await made.close()


@pytest.mark.asyncio
async def test_a_full_upload_may_read_for_longer_than_a_transaction_may_be_open(
    job: ChangelogJob, interrupting: Interrupting
) -> None:
    manager = await job.manager()
    await job.commit(manager, MANY)
    job.base, job.head, job.content = None, None, {}
    steps = 0

    def take_long() -> None:
        nonlocal steps
        steps += 1
        begun = time.monotonic()
        while time.monotonic() - begun < TIMEOUT_S / 3:
            job.end_offset()
        interrupting.arm("_step", take_long)

    interrupting.arm("_step", take_long)
    # The first key that is read is written at once, as a tombstone.
    commit = await job.commit(manager, {key: b"2" for key in MANY if key != b"00000"})
    assert steps >= len(MANY) // 10_000
    interrupting.arm("nothing", take_long)
    assert await job.restore(commit.checkpoint) == commit.content

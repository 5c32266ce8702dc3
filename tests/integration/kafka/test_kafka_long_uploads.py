"""Uploads that take longer than a transaction may be open, and ones of very many changes."""

import time
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from kafka_kit import ChangelogJob, Interrupting
from servers.kafka import KafkaBroker

from statekeep.backends.kafka import images

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

TIMEOUT_S = 9.0
"""After which the broker aborts; it looks twice a second. A step takes a third of it, so that a machine
that is busy with something else may hold one up for seconds."""
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
    job.head, job.content = None, {}  # of no lineage that the base is in
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


@pytest.mark.asyncio
async def test_changes_that_are_not_merged_are_written_behind_a_tail_that_is_put_right(
    job: ChangelogJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_MAX_MERGED_BYTES", 0)
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1", b"b": b"1", b"c": b"1"})
    await job.upload(manager, job.seal({b"a": b"void", b"z": b"void"}))
    job.rewind(base)
    before = len(job.records())
    job.seal({b"a": b"2", b"d": b"2"})
    commit = await job.commit(manager, {b"a": b"3", b"c": None})
    assert len(job.records()) == before + 4
    assert (
        await job.restore(commit.checkpoint)
        == commit.content
        == {b"a": b"3", b"b": b"1", b"d": b"2"}
    )

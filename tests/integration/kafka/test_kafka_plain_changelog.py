"""A changelog without transactions: a commit is proven by its offsets instead."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from kafka_kit import ChangelogJob, Committed, Interrupting
from servers.kafka import KafkaBroker

from statekeep.errors import StateBackupError, TaskFencedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest_asyncio.fixture
async def job(
    broker: KafkaBroker, interrupting: Interrupting, tmp_path: Path
) -> AsyncGenerator[ChangelogJob]:
    made = ChangelogJob(
        broker.servers, tmp_path, uuid.uuid4().hex, executor=interrupting, transactional="false"
    )
    yield made
    await made.close()


async def restored(job: ChangelogJob, commit: Committed) -> bool:
    return await job.restore(commit.checkpoint) == commit.content


def stranger(job: ChangelogJob) -> Producer:
    return Producer({"bootstrap.servers": job.servers, "log_level": 0})


def write(job: ChangelogJob, *keys: bytes, headers: dict[str, bytes] | None = None) -> None:
    producer = stranger(job)
    for key in keys:
        producer.produce(job.topic, b"strange", key, 2, headers=dict(headers or {}))
    producer.flush()


@pytest.mark.asyncio
async def test_each_commit_restores_its_own_content(job: ChangelogJob) -> None:
    manager = await job.manager()
    commits = [
        await job.commit(manager, {b"%d" % n: b"first" for n in range(1000)}),
        await job.commit(manager, {b"1": b"second", b"2": None, b"new": b""}),
        await job.commit(manager, {}),
        await job.commit(await job.manager(), {b"2": b"back", b"new": None}),
    ]
    for commit in commits:
        assert await restored(job, commit)


@pytest.mark.asyncio
async def test_an_increment_writes_the_changes_and_nothing_else(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1", b"b": b"1"})
    before = job.end_offset()
    await job.commit(manager, {b"a": b"2", b"b": None})
    assert job.end_offset() == before + 2


@pytest.mark.asyncio
async def test_the_tail_of_an_aborted_attempt_is_put_right_by_the_next_commit(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    await job.upload(manager, job.seal({b"a": b"void", b"c": b"void", b"b": None}))
    job.rewind(base)
    assert await restored(job, await job.commit(manager, {b"d": b"1"}))


@pytest.mark.asyncio
@pytest.mark.parametrize("keys", [[b"z"], [b"a", b"z"]], ids=["one", "two"])
async def test_what_a_stranger_wrote_before_is_put_right(
    job: ChangelogJob, keys: list[bytes]
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    write(job, *keys)
    assert await restored(job, await job.commit(manager, {b"c": b"1"}))


@pytest.mark.asyncio
async def test_a_stranger_in_the_middle_of_a_commit_has_it_written_again(
    job: ChangelogJob, interrupting: Interrupting
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1", b"b": b"1"})
    interrupting.arm("_enqueue", lambda: write(job, b"a", b"z"))
    commit = await job.commit(manager, {b"b": b"2"})
    assert interrupting.has_struck
    assert job.records().count((b"b", b"2")) > 1
    assert await restored(job, commit)


@pytest.mark.asyncio
@pytest.mark.parametrize("keys", [[b"a"], [b"a", b"z"]], ids=["one", "two"])
@pytest.mark.parametrize("step", ["_enqueue", "commit_transaction"])
async def test_a_plain_zombie_in_the_middle_of_a_transaction_has_it_written_again(
    job: ChangelogJob, interrupting: Interrupting, tmp_path: Path, step: str, keys: list[bytes]
) -> None:
    after = ChangelogJob(job.servers, tmp_path, job.task.job_name, executor=interrupting)
    manager = await after.manager()
    await after.commit(manager, {b"a": b"1", b"b": b"1"})
    interrupting.arm(step, lambda: write(after, *keys))
    commits = [await after.commit(manager, {b"b": b"2"}), await after.commit(manager, {b"c": b"1"})]
    await after.close()
    assert interrupting.has_struck
    for commit in commits:
        assert await restored(after, commit)


@pytest.mark.asyncio
async def test_a_stranger_does_not_make_up_for_a_record_that_was_refused(
    job: ChangelogJob, interrupting: Interrupting, tmp_path: Path
) -> None:
    once = ChangelogJob(
        job.servers,
        tmp_path,
        job.task.job_name,
        executor=interrupting,
        transactional="false",
        retry_max_duration_ms="0",
    )
    manager = await once.manager()
    base = await once.commit(manager, {b"a": b"1"})
    once.configure_topic(max_message_bytes="1000000")
    interrupting.arm("_enqueue", lambda: write(once, b"strange"))
    with pytest.raises(StateBackupError):
        await once.commit(manager, {b"b": b"1", b"large": b"x" * 2_000_000, b"z": b"1"})
    await once.close()
    assert interrupting.has_struck
    assert await restored(job, base)


@pytest.mark.asyncio
async def test_a_newer_epoch_in_the_tail_ends_the_older_writer(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    write(job, b"a", headers={"statekeep": b"77aa 2 1"})
    with pytest.raises(TaskFencedError):
        await job.commit(manager, {b"c": b"1"})


@pytest.mark.asyncio
@pytest.mark.parametrize("steps", [3, 8, 21, 34])
async def test_a_cancelled_upload_harms_no_commit_and_the_next_upload_succeeds(
    job: ChangelogJob, steps: int
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    upload = asyncio.create_task(job.upload(manager, job.seal({b"a": b"2", b"c": b"2"})))
    for _ in range(steps):
        await asyncio.sleep(0)
    upload.cancel()
    await asyncio.wait([upload])
    assert await restored(job, base)
    job.rewind(base)
    assert await restored(job, await job.commit(manager, {b"d": b"1"}))


@pytest.mark.asyncio
async def test_a_job_may_change_between_transactions_and_none(
    job: ChangelogJob, interrupting: Interrupting, tmp_path: Path
) -> None:
    commits = [await job.commit(await job.manager(), {b"a": b"1", b"b": b"1"})]
    for number, flag in enumerate(("true", "false", "true")):
        other = ChangelogJob(
            job.servers, tmp_path, job.task.job_name, executor=interrupting, transactional=flag
        )
        other.continue_after(commits[-1])
        manager = await other.manager()
        commits.append(await other.commit(manager, {b"a": b"%d" % number}))
        commits.append(await other.commit(manager, {}))
        await other.close()
        write(job, b"z")
    for commit in commits:
        assert await restored(job, commit)
    assert commits[-1].content == {b"a": b"2", b"b": b"1"}

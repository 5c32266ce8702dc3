"""A changelog that holds records of another program, and a job that has no commit of it."""

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import KafkaException, Producer
from kafka_kit import ChangelogJob, Committed, read_partition

from statekeep.backends.kafka.reader import PartitionReader
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
)
from statekeep.errors import ConfigError, RetriableError
from statekeep.testing.versions import STORE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest_asyncio.fixture
async def other(job: ChangelogJob, tmp_path: Path) -> AsyncGenerator[ChangelogJob]:
    """A job with a log of its own and the same topic."""
    made = ChangelogJob(job.servers, tmp_path / "other", job.task.job_name, job_uid="90bc")
    yield made
    await made.close()


async def refused(job: ChangelogJob, changes: Mapping[bytes, bytes | None]) -> ConfigError:
    """Make a commit that is refused and leaves the topic as it is."""
    before = job.records()
    with pytest.raises(ConfigError, match="which a first commit would delete") as caught:
        await job.commit(await job.manager(), changes)
    assert job.records() == before
    return caught.value


def based_on(job: ChangelogJob, markers: Mapping[BackendName, Mapping[StoreName, Marker]]) -> None:
    """Let the next commit find a committed checkpoint with these markers and the head's content."""
    assert job.head is not None
    job.base = Committed(CheckpointV2(CheckpointId(0, 1), {}, markers), job.head, job.content)


@pytest.mark.asyncio
async def test_the_state_of_another_job_is_not_replaced(
    job: ChangelogJob, other: ChangelogJob
) -> None:
    theirs = await other.commit(await other.manager(), {b"a": b"theirs", b"b": b"theirs"})
    error = await refused(job, {b"a": b"ours"})
    assert f"topic={job.topic} partition=2 offset=0 job_uid=90bc own_job_uid=77aa" in str(error)
    assert error.key == "job.name"
    assert "delete the topic" in error.hints[0]
    assert await other.restore(theirs.checkpoint) == theirs.content


@pytest.mark.asyncio
async def test_records_without_a_stamp_are_not_replaced(job: ChangelogJob) -> None:
    await job.manager()
    job.write(job.zombie(), [(b"a", b"Samza's")])
    assert "job_uid=unknown" in str(await refused(job, {b"b": b"ours"}))


@pytest.mark.asyncio
async def test_another_job_that_came_after_is_found_behind_records_of_our_own(
    job: ChangelogJob,
) -> None:
    await job.upload(await job.manager(), job.seal({b"a": b"ours"}))
    job.write(job.zombie(), [(b"b", b"theirs")], headers={"statekeep": b"90bc 1 1"})
    assert "job_uid=90bc" in str(await refused(job, {b"c": b"ours"}))


@pytest.mark.asyncio
async def test_a_commit_of_nothing_does_not_make_a_topic_ours(
    job: ChangelogJob, other: ChangelogJob
) -> None:
    await job.commit(await job.manager(), {})
    theirs = await other.commit(await other.manager(), {b"a": b"theirs"})
    await refused(job, {b"b": b"ours"})
    assert await other.restore(theirs.checkpoint) == theirs.content


@pytest.mark.asyncio
@pytest.mark.parametrize("end", [Producer.abort_transaction, None], ids=["aborted", "open"])
async def test_what_was_never_committed_is_default(job: ChangelogJob, end: object) -> None:
    await job.manager()
    job.write(job.zombie(), [(b"a", b"1")], end=end, headers={"statekeep": b"90bc 1 1"})  # type: ignore[arg-type]
    commit = await job.commit(await job.manager(), {b"b": b"ours"})
    assert await job.restore(commit.checkpoint) == {b"b": b"ours"}


@pytest.mark.asyncio
async def test_a_first_commit_that_was_not_recorded_is_made_again(job: ChangelogJob) -> None:
    await job.upload(await job.manager(), job.seal({b"a": b"void", b"z": b"void"}))
    job.head, job.content = None, {}
    commit = await job.commit(await job.manager(), {b"a": b"1"}, epoch=2)
    assert await job.restore(commit.checkpoint) == {b"a": b"1"}


@pytest.mark.asyncio
async def test_a_backend_that_is_added_to_a_job_goes_on_with_what_it_wrote_long_ago(
    job: ChangelogJob,
) -> None:
    await job.commit(await job.manager(), {b"a": b"1", b"old": b"1"})
    job.seal({b"a": b"2", b"old": None})
    based_on(job, {BackendName("blob"): {STORE: Marker("elsewhere")}})
    commit = await job.commit(await job.manager(), {b"b": b"1"})
    assert await job.restore(commit.checkpoint) == {b"a": b"2", b"b": b"1"}


@pytest.mark.asyncio
async def test_a_marker_of_the_topic_before_says_nothing_of_the_new_one(job: ChangelogJob) -> None:
    await job.commit(await job.manager(), {b"a": b"1"})
    job.recreate_topic()
    job.write(job.zombie(), [(b"a", b"theirs")])
    await refused(job, {b"b": b"ours"})


@pytest.mark.asyncio
async def test_a_job_that_was_reset_begins_anew_in_the_topic_that_it_had(
    job: ChangelogJob, other: ChangelogJob
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1", b"b": b"1"})
    await manager.clean_up([], [(2, 1)])
    await refused(other, {b"c": b"2"})
    await manager.clean_up([], [(3, 0)])
    other.head, other.content = None, {}
    commit = await other.commit(await other.manager(), {b"c": b"2"})
    assert await other.restore(commit.checkpoint) == {b"c": b"2"}
    assert dict(job.records())[b"statekeep-given-up 77aa"] is None
    job.base, job.head, job.content = None, None, {}
    await refused(job, {b"d": b"1"})


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [({}, b"90bc 1 1"), ({b"a": b"ours"}, b"90bc 1 1"), ({}, None)],
    ids=["theirs", "both", "Samza's"],
)
async def test_nothing_is_written_to_a_changelog_of_another_job_that_is_given_up(
    job: ChangelogJob, ours: Mapping[bytes, bytes], theirs: bytes | None
) -> None:
    manager = await job.manager()
    await job.commit(manager, ours)
    headers = {} if theirs is None else {"statekeep": theirs}
    job.write(job.zombie(), [(b"b", b"theirs")], headers=headers)
    before = job.end_offset()
    await manager.clean_up([], [(3, 0)])
    assert job.end_offset() == before


@pytest.mark.asyncio
async def test_an_empty_changelog_is_given_up_by_doing_nothing(job: ChangelogJob) -> None:
    manager = await job.manager()
    await manager.clean_up([], [(3, 0)])
    assert job.end_offset() == 0
    job.delete_topic()
    await manager.clean_up([], [(3, 0)])
    with pytest.raises(RetriableError):
        job.end_offset()


@pytest.mark.asyncio
async def test_a_changelog_is_given_up_once(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    await manager.clean_up([], [(3, 0)])
    before = job.end_offset()
    await manager.clean_up([], [(4, 0)])
    assert job.end_offset() == before


@pytest.mark.asyncio
async def test_an_upload_under_way_is_over_before_its_changelog_is_given_up(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    under_way = job.zombie()
    job.write(under_way, [(b"b", b"2")], headers={"statekeep": b"77aa 1 9"}, end=None)
    await manager.clean_up([], [(3, 0)])
    with pytest.raises(KafkaException):
        under_way.commit_transaction(10)
    assert [key for key, _ in job.records()] == [b"a", b"statekeep-given-up 77aa"]


@pytest.mark.asyncio
async def test_a_topic_that_was_refused_is_read_again_only_if_something_was_added(
    job: ChangelogJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = await job.manager()
    job.write(job.zombie(), [(b"a", b"theirs")])
    version, read = job.seal({b"b": b"ours"}), PartitionReader.open
    opened: list[PartitionReader] = []

    async def count(reader: PartitionReader) -> None:
        opened.append(reader)
        await read(reader)

    monkeypatch.setattr(PartitionReader, "open", count)
    for reads in (1, 1, 2):
        if reads > 1:
            job.write(job.zombie(), [(b"c", b"theirs")])
        with pytest.raises(ConfigError, match="job_uid=unknown"):
            await job.upload(manager, version)
        assert len(opened) == reads


@pytest.mark.asyncio
async def test_an_upload_that_begins_with_a_tombstone_is_known_by_its_first_put_too(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1", b"b": b"1"})
    await job.commit(manager, {b"a": None, b"b": b"2", b"c": b"2"})
    stamped = [
        (record.key, record.is_stamped) for record in read_partition(job.servers, job.topic, 2)
    ]
    assert stamped == [(b"a", True), (b"b", False), (b"a", True), (b"b", True), (b"c", False)]

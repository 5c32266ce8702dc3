"""The changelog backend on a real broker: every recorded commit restores its own content."""

import asyncio
import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka_kit import KAFKA, ChangelogJob, Committed

from statekeep.backends.kafka import cluster
from statekeep.backends.kafka.clients import build_admin
from statekeep.backends.kafka.settings import KafkaSettings
from statekeep.checkpoint.checkpoints import CheckpointV2, Marker
from statekeep.errors import (
    BackendClosedError,
    BlobNotFoundError,
    CheckpointCorruptError,
    ConfigError,
    RetriableError,
    TaskFencedError,
    UnknownFormatError,
)
from statekeep.testing.versions import STORE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def restored(job: ChangelogJob, commit: Committed) -> bool:
    return await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
async def test_each_commit_restores_its_own_content(job: ChangelogJob) -> None:
    manager = await job.manager()
    commits = [
        await job.commit(manager, {b"%d" % n: b"first" for n in range(1000)}),
        await job.commit(manager, {b"1": b"second", b"2": None, b"new": b""}),
        await job.commit(manager, {}),
        await job.commit(manager, {b"2": b"back", b"new": None}),
    ]
    for commit in commits:
        assert await restored(job, commit)


@pytest.mark.asyncio
async def test_an_increment_writes_the_changes_and_nothing_else(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1", b"b": b"1", b"c": b"1"})
    before = len(job.records())
    job.seal({b"a": b"lost in the merge"})
    await job.commit(manager, {b"a": b"2", b"b": None})
    assert dict(job.records()[before:]) == {b"a": b"2", b"b": None}
    assert len(job.records()) == before + 2


@pytest.mark.asyncio
async def test_nothing_written_keeps_the_place_of_the_marker(job: ChangelogJob) -> None:
    manager = await job.manager()
    first = await job.commit(manager, {b"a": b"1"})
    second = await job.commit(manager, {})
    places = [json.loads(c.marker)["changelog-offset"] for c in (first, second)]
    assert places[0] == places[1]
    assert await restored(job, second)


@pytest.mark.asyncio
@pytest.mark.parametrize("changes", [{}, {b"": b""}, {b"only": b"one"}], ids=str)
async def test_stores_of_no_record_and_of_one_record_are_restored(
    job: ChangelogJob, changes: dict[bytes, bytes]
) -> None:
    manager = await job.manager()
    assert await restored(job, await job.commit(manager, changes))


@pytest.mark.asyncio
async def test_values_of_several_megabytes_are_restored(job: ChangelogJob) -> None:
    manager = await job.manager()
    large = {b"%d" % n: bytes([n]) * (5 << 20) for n in range(10)}
    first = await job.commit(manager, large)
    second = await job.commit(manager, {b"3": b"x" * (9 << 20), b"4": None})
    assert await restored(job, first)
    assert await restored(job, second)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [11 << 20, (10 << 20) - len(b"large")], ids=["above", "at"])
@pytest.mark.parametrize("before", [{b"a": b"1"}, {}], ids=["behind another", "first"])
async def test_a_record_that_is_too_large_is_refused_by_name(
    job: ChangelogJob, before: dict[bytes, bytes], size: int
) -> None:
    manager = await job.manager()
    expected = rf"bytes={size + len(b'large')} max_bytes=10485760"
    with pytest.raises(ConfigError, match=expected) as caught:
        await job.commit(manager, {**before, b"large": b"x" * size})
    assert caught.value.key == "kafka.max.message.bytes"
    job.seal({b"large": None})
    assert await restored(job, await job.commit(manager, {}))


@pytest.mark.asyncio
async def test_a_record_that_only_the_topic_refuses_is_refused_by_name(job: ChangelogJob) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1"})
    job.configure_topic(max_message_bytes="1000000")
    with pytest.raises(ConfigError) as caught:
        await job.commit(manager, {b"b": b"1", b"large": b"x" * 2_000_000})
    assert caught.value.key == "kafka.max.message.bytes"
    assert await restored(job, base)


@pytest.mark.asyncio
async def test_the_tail_of_an_aborted_attempt_is_put_right_by_the_next_commit(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    await job.upload(manager, job.seal({b"a": b"void", b"c": b"void", b"b": None}))
    assert await restored(job, base)
    job.rewind(base)
    commit = await job.commit(manager, {b"d": b"1"})
    assert await restored(job, commit)
    assert commit.content == {b"a": b"1", b"b": b"1", b"d": b"1"}


@pytest.mark.asyncio
async def test_a_new_manager_goes_on_from_the_committed_base(job: ChangelogJob) -> None:
    await job.commit(await job.manager(), {b"a": b"1", b"b": b"1"})
    before = len(job.records())
    commit = await job.commit(await job.manager(), {b"b": b"2"})
    assert len(job.records()) == before + 1
    assert await restored(job, commit)


@pytest.mark.asyncio
async def test_without_a_base_the_upload_replaces_what_the_topic_holds(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"old": b"1", b"both": b"1"})
    job.base, job.head, job.content = None, None, {}
    commit = await job.commit(manager, {b"both": b"2", b"new": b"1"})
    assert await restored(job, commit)


@pytest.mark.asyncio
async def test_a_base_of_another_lineage_is_not_built_on(job: ChangelogJob) -> None:
    manager = await job.manager()
    root = await job.commit(manager, {b"root": b"1"})
    await job.commit(manager, {b"a": b"1"})
    job.rewind(root)
    commit = await job.commit(manager, {b"b": b"1"})
    assert commit.content == {b"root": b"1", b"b": b"1"}
    assert await restored(job, commit)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "end",
    [Producer.commit_transaction, Producer.abort_transaction, None],
    ids=["committed", "aborted", "open"],
)
async def test_what_a_zombie_writes_is_put_right_by_the_next_commit(
    job: ChangelogJob, end: object
) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1", b"b": b"1"})
    zombie = job.zombie()
    job.write(zombie, [(b"a", b"zombie"), (b"b", None), (b"z", b"zombie")], end=end)  # type: ignore[arg-type]
    assert await restored(job, base)
    commit = await job.commit(manager, {b"c": b"1"})
    assert await restored(job, commit)


@pytest.mark.asyncio
async def test_a_manager_that_only_cleans_up_fences_no_driver(job: ChangelogJob) -> None:
    await job.commit(await job.manager(), {b"a": b"1"})
    writer = job.zombie()
    job.write(writer, [(b"a", b"2")], end=None)
    cleaning = await job.manager()
    await cleaning.clean_up([], [])
    await cleaning.close()
    writer.commit_transaction(30)


@pytest.mark.asyncio
async def test_an_upload_reports_how_many_bytes_it_has_sent(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"12345", b"bc": b"1"})
    assert sum(job.sent) == 9
    await job.commit(manager, {b"a": None})
    assert sum(job.sent) == 10


@pytest.mark.asyncio
async def test_a_newer_epoch_in_the_tail_ends_the_older_writer(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    job.write(job.zombie(), [(b"a", b"2")], headers={"statekeep": b"77aa 2 1"})
    with pytest.raises(TaskFencedError) as caught:
        await job.commit(manager, {b"c": b"1"})
    assert (caught.value.own_epoch, caught.value.newer_epoch) == (1, 2)


@pytest.mark.asyncio
async def test_of_two_managers_the_one_of_the_older_epoch_gives_up(job: ChangelogJob) -> None:
    old, new = await job.manager(), await job.manager()
    base = await job.commit(old, {b"a": b"1"})
    commit = await job.commit(new, {b"b": b"1"}, epoch=2)
    job.rewind(base)
    job.base = base
    with pytest.raises(TaskFencedError):
        await job.upload(old, job.seal({b"a": b"zombie"}))
    job.base = commit
    job.rewind(commit)
    assert await restored(job, await job.commit(new, {b"c": b"1"}, epoch=2))


@pytest.mark.asyncio
async def test_aborted_records_within_the_range_are_left_out(job: ChangelogJob) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    job.write(job.zombie(), [(b"a", b"aborted")], end=Producer.abort_transaction)
    commit = await job.commit(await job.manager(), {b"b": b"1"})
    assert dict(job.records(is_committed_only=False))[b"b"] == b"1"
    assert (b"a", b"aborted") in job.records(is_committed_only=False)
    assert await restored(job, commit)


@pytest.mark.asyncio
async def test_an_open_transaction_of_another_program_delays_a_restore_up_to_a_limit(
    job: ChangelogJob,
) -> None:
    short_timeout = ChangelogJob(
        job.servers, job.versions.root, job.task.job_name, timeout_ms="1000"
    )
    await job.commit(await job.manager(), {b"a": b"1"})
    stranger = Producer(
        {
            "bootstrap.servers": job.servers,
            "log_level": 0,
            "transactional.id": f"stranger-{job.task.job_name}",
        }
    )
    stranger.init_transactions(30)
    job.write(stranger, [(b"a", b"strange")], end=None)
    commit = await job.commit(await job.manager(), {b"b": b"1"})
    with pytest.raises(RetriableError, match="no more records arrive"):
        await short_timeout.restore(commit.checkpoint)
    stranger.abort_transaction()
    assert await restored(job, commit)


@pytest.mark.asyncio
async def test_records_of_a_stranger_below_the_marker_are_found_out(job: ChangelogJob) -> None:
    manager = await job.manager()
    base = await job.commit(manager, {b"a": b"1"})
    writer = job.zombie()
    job.write(writer, [(b"b", b"slipped in")])
    fields = json.loads(base.marker)
    fields["changelog-offset"] = str(int(fields["changelog-offset"]) + 2)
    forged = CheckpointV2(
        base.checkpoint.checkpoint_id, {}, {KAFKA: {STORE: Marker(json.dumps(fields))}}
    )
    with pytest.raises(CheckpointCorruptError, match="expected_keys=1 actual_keys=2"):
        await job.restore(forged)


@pytest.mark.asyncio
async def test_a_recreated_topic_is_no_source_and_no_base(job: ChangelogJob) -> None:
    manager = await job.manager()
    old = await job.commit(manager, {b"a": b"1"})
    short_timeout = ChangelogJob(
        job.servers, job.versions.root, job.task.job_name, timeout_ms="1000"
    )
    job.delete_topic()
    with pytest.raises(BlobNotFoundError):
        await short_timeout.restore(old.checkpoint)
    new = await job.commit(manager, {b"b": b"1"})
    with pytest.raises(BlobNotFoundError):
        await short_timeout.restore(old.checkpoint)
    assert await restored(job, new)


@pytest.mark.asyncio
async def test_a_topic_made_anew_that_loses_records_is_refused_under_a_running_job(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    job.recreate_topic(cleanup_policy="delete", retention_ms="1000")
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete retention\.ms=1000"):
        await job.commit(manager, {b"b": b"1"})
    assert job.records() == []
    job.configure_topic(cleanup_policy="compact")
    assert await restored(job, await job.commit(manager, {b"c": b"1"}))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ("", CheckpointCorruptError),
        ("nothing", CheckpointCorruptError),
        ('{"version":1,"changelog-ssp":{},"changelog-offset":"1"}', CheckpointCorruptError),
        ('{"version":2}', UnknownFormatError),
    ],
)
async def test_a_marker_that_the_backend_never_made_is_refused(
    job: ChangelogJob, marker: str, error: type[Exception]
) -> None:
    commit = await job.commit(await job.manager(), {b"a": b"1"})
    markers = {KAFKA: {STORE: Marker(marker)}}
    with pytest.raises(error):
        await job.restore(CheckpointV2(commit.checkpoint.checkpoint_id, {}, markers))


@pytest.mark.asyncio
async def test_an_offset_beyond_the_end_is_refused(job: ChangelogJob) -> None:
    commit = await job.commit(await job.manager(), {b"a": b"1"})
    marker = Marker(commit.marker.replace('"changelog-offset":"0"', '"changelog-offset":"99"'))
    with pytest.raises(CheckpointCorruptError, match="has not the marker's offset"):
        await job.restore(
            CheckpointV2(commit.checkpoint.checkpoint_id, {}, {KAFKA: {STORE: marker}})
        )


@pytest.mark.asyncio
async def test_the_tasks_of_a_process_share_one_client_for_topics(
    job: ChangelogJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[AdminClient] = []

    def build(settings: KafkaSettings) -> AdminClient:
        built.append(build_admin(settings))
        return built[-1]

    monkeypatch.setattr(cluster, "build_admin", build)
    managers = [await job.manager() for _ in range(3)]
    await managers.pop().close()
    commit = await job.commit(managers.pop(), {b"a": b"1"})
    assert await restored(job, commit)
    assert len(built) == 1


@pytest.mark.asyncio
async def test_use_after_close_is_refused(job: ChangelogJob) -> None:
    manager = await job.manager()
    await manager.close()
    with pytest.raises(BackendClosedError):
        await job.commit(manager, {b"a": b"1"})


@pytest.mark.asyncio
@pytest.mark.parametrize("steps", [1, 3, 5, 8, 13, 21, 34])
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

"""Jobs that earlier releases kept in Kafka go on with this one: their topics, in a broker in memory."""

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from broker_kit import SERVERS, FakeBroker
from golden_topics_kit import TOPICS, TopicFile, TopicRecord, golden_records
from golden_topics_maker import COMMITS, ENTRIES, INPUT, KAFKA, STORES, TASK, config_of

from statekeep.backends.kafka import marker as marker_format
from statekeep.backends.kafka.epochs import HEADER, EpochStamp, given_up
from statekeep.backends.kafka.factory import KafkaBackendFactory
from statekeep.backends.kafka.marker import KafkaStateCheckpointMarker
from statekeep.checkpoint.checkpoints import Marker
from statekeep.checkpoint.records import CommitRecord, decode_record, encode_record
from statekeep.checkpoint.serde import (
    decode_attempt_entry,
    decode_checkpoint_v2,
    encode_attempt_entry,
)
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import RestoreFailedError
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

Content = dict[bytes, bytes]
RELEASES = sorted(path.name for path in TOPICS.iterdir())
JOBS = [(release, job) for release in RELEASES for job in ("orders", "plain")]


@pytest.fixture
def broker(release: str, monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    """A broker that holds the topics of one release."""
    paths = sorted((TOPICS / release).glob("*.jsonl"))
    made = FakeBroker(TopicFile.read(path) for path in paths)
    made.install(monkeypatch)
    return made


def content_of(release: str, job: str) -> Content:
    entries = json.loads((TOPICS / release / f"{job}.json").read_bytes())
    return {key.encode(): value.encode() for key, value in entries.items()}


def lose_disk(directory: Path) -> None:
    if (directory / "local").exists():
        number = len(list(directory.iterdir()))
        (directory / "local").rename(directory / f"disk-{number}")


async def start(
    config: Config, directory: Path, put: bytes | None = None
) -> tuple[Content, str | None]:
    """Start a job on an empty disk, and commit a value; return what it started with."""
    lose_disk(directory)
    async with Container(config) as container:
        task = await container.start_task(TASK, STORES)
        assert task.restored.failures == ()
        assert dict(task.store(STORES[1]).scan()) == {}
        found = dict(task.store(STORES[0]).scan()), task.input_offsets.get(INPUT)
        if put is not None:
            task.store(STORES[0]).put(b"key-new", put)
            await (await task.commit({INPUT: "99"}, force=True)).wait()
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize(("release", "job"), JOBS)
async def test_a_job_of_an_earlier_release_goes_on(
    broker: FakeBroker, release: str, job: str, tmp_path: Path
) -> None:
    assert broker.topics
    config, content = config_of(job, SERVERS, tmp_path / "local"), content_of(release, job)
    assert await start(config, tmp_path, b"1") == (content, str(COMMITS[job]))
    content[b"key-new"] = b"1"
    assert await start(config, tmp_path, b"2") == (content, "99")
    content[b"key-new"] = b"2"
    assert await start(config, tmp_path) == (content, "99")


@pytest.mark.asyncio
@pytest.mark.parametrize("release", RELEASES)
async def test_a_changelog_that_a_job_has_given_up_is_anyones(
    broker: FakeBroker, tmp_path: Path
) -> None:
    config = config_of("ended", SERVERS, tmp_path / "local")
    assert await start(config, tmp_path, b"1") == ({}, None)
    assert await start(config, tmp_path) == ({b"key-new": b"1"}, "99")
    left = [m.record for m in broker.topics["kafka.ended.main.counts.changelog"].messages]
    (given,) = [record for record in left if record.headers[:1] and record.headers[0][0] != HEADER]
    uid = str((given.value or b"").decode())
    (key, value), headers = given_up(uid)
    assert (given.key, given.value, dict(given.headers)) == (key, value, headers)


@pytest.mark.asyncio
@pytest.mark.parametrize("release", RELEASES)
async def test_the_entries_of_attempts_are_found(broker: FakeBroker) -> None:
    assert broker.topics
    factory = KafkaBackendFactory(KAFKA, {"bootstrap.servers": SERVERS})
    store = factory.checkpoint_store("on-spark", SerialExecutor(), FakeClock())
    assert await store.attempts() == {(3, 5)}
    assert await store.read("3-4") == {}
    for task, data in (await store.read("3-5")).items():
        entry = decode_attempt_entry(data, "golden")
        assert entry == ENTRIES[f"3-5/{task}"]
        assert encode_attempt_entry(entry) == data


def named(*suffixes: str) -> list[TopicRecord]:
    return [
        record
        for name, record in golden_records()
        if name.partition(".jsonl")[0].endswith(suffixes)
    ]


def test_every_record_of_a_log_is_written_as_it_was() -> None:
    records = named(".job-log")
    assert {record.key == b"floor" for record in records} == {True, False}
    for record in records:
        key, data = record.key or b"", record.value or b""
        if key == b"floor":
            assert b"%d" % int(data) == data
        else:
            assert b"%d" % int(key) == key
            assert encode_record(decode_record(data, where="golden")) == data


def markers() -> list[str]:
    """Return the markers of all changelogs in golden logs."""
    found: list[str] = []
    for record in named(".job-log"):
        if record.key != b"floor":
            commit = decode_record(record.value or b"", where="golden")
            if isinstance(commit, CommitRecord):
                for raw in commit.checkpoints.values():
                    checkpoint = decode_checkpoint_v2(bytes(raw), "golden")
                    found += checkpoint.markers_of(KAFKA).values()
    return found


def test_every_marker_is_written_as_it_was() -> None:
    found = markers()
    for marker in found:
        assert KafkaStateCheckpointMarker.decode(Marker(marker)).encode(KAFKA) == marker
    fields = [json.loads(marker) for marker in found]
    assert {marker["changelog-offset"] is None for marker in fields} == {True, False}
    assert {marker.get("is-transactional", True) for marker in fields} == {True, False}
    assert {marker.get("oldest-offset", 0) > 0 for marker in fields} == {True, False}


def test_every_stamp_is_written_as_it_was() -> None:
    headers = [pair for _, record in golden_records() for pair in record.headers]
    stamps = [(value or b"").decode().split() for name, value in headers if name == HEADER]
    assert stamps
    for uid, epoch, attempt in stamps:
        written = EpochStamp(uid, int(epoch), int(attempt)).headers
        assert (HEADER, written[HEADER]) in headers


@pytest.mark.asyncio
@pytest.mark.parametrize("release", RELEASES)
async def test_a_changelog_of_a_later_release_is_kept_for_it(
    broker: FakeBroker, release: str, tmp_path: Path
) -> None:
    config, content = (
        config_of("orders", SERVERS, tmp_path / "local"),
        content_of(release, "orders"),
    )
    async with Container(config) as container:
        task = await container.start_task(TASK, STORES)
        with patch.object(marker_format, "_VERSION", 2):
            task.store(STORES[0]).put(b"key-new", b"1")
            await (await task.commit({INPUT: "98"}, force=True)).wait()
    disk = (tmp_path / "local").rename(tmp_path / "disk")
    async with Container(config) as container:
        with pytest.raises(RestoreFailedError) as caught:
            await container.start_task(TASK, STORES)
    assert "use the version of Statekeep that wrote it" in "".join(caught.value.hints)
    log = broker.topics["kafka.orders.main.Partition_5f0.job-log"].messages
    assert not [m for m in log if b" bad-marker " in (m.value() or b"")[:40]]

    # Where the disk is left, the next commit makes no use of that marker and writes everything.
    shutil.rmtree(tmp_path / "local")
    disk.rename(tmp_path / "local")
    async with Container(config) as container:
        task = await container.start_task(TASK, STORES)
        task.store(STORES[0]).put(b"key-new", b"2")
        await (await task.commit({INPUT: "99"}, force=True)).wait()
    assert await start(config, tmp_path) == (content | {b"key-new": b"2"}, "99")

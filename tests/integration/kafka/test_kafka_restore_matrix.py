"""Every case in which Samza's restore decides where to begin and to end, and what happens here.

Those that other files hold: compacted beyond the offset (`test_kafka_outages`), topic created anew,
offset newer than the newest, tail of an aborted attempt, values of several megabytes, a single record
and none, aborted and open transactions (`test_kafka_changelog`), a backend that fails and the next
one (`test_kafka_container`).
"""

import json
import shutil
import uuid
from pathlib import Path

import pytest
from kafka_kit import KAFKA, ChangelogJob, Committed
from servers.kafka import KafkaBroker

from statekeep.checkpoint.checkpoints import CheckpointV2, Marker, SystemStreamPartition
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.testing.versions import STORE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TASK = "Partition 0"
INPUT = SystemStreamPartition("kafka", "clicks", 0)


def offset_of(commit: Committed) -> int:
    return int(json.loads(commit.marker)["changelog-offset"])


@pytest.mark.asyncio
async def test_an_offset_that_is_null_is_empty_state_whatever_the_topic_holds(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    first = await job.commit(manager, {})
    assert json.loads(first.marker)["changelog-offset"] is None
    await job.upload(manager, job.seal({b"a": b"never committed"}))
    assert await job.restore(first.checkpoint) == {}
    job.rewind(first)
    second = await job.commit(manager, {b"b": b"1"})
    assert await job.restore(second.checkpoint) == {b"b": b"1"}


@pytest.mark.asyncio
async def test_an_offset_older_than_the_oldest_is_refused(job: ChangelogJob) -> None:
    manager = await job.manager()
    first = await job.commit(manager, {b"a": b"1"})
    second = await job.commit(manager, {b"a": b"2"})
    job.delete_records_before(offset_of(second))
    with pytest.raises(CheckpointCorruptError, match="has not the marker's offset"):
        await job.restore(first.checkpoint)
    assert await job.restore(second.checkpoint) == second.content


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("behind", "message"),
    [(0, "expected_keys=2 actual_keys=1"), (1, "has not the marker's offset")],
    ids=["the oldest", "all"],
)
async def test_a_topic_that_lost_records_is_found_out_and_filled_anew(
    job: ChangelogJob, behind: int, message: str
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    second = await job.commit(manager, {b"b": b"1"})
    job.delete_records_before(offset_of(second) + behind)
    with pytest.raises(CheckpointCorruptError, match=message):
        await job.restore(second.checkpoint)
    third = await job.commit(manager, {b"c": b"1"})
    before = len(job.records())
    fourth = await job.commit(manager, {b"d": b"1"})
    assert len(job.records()) == before + 1
    for commit in (third, fourth):
        assert await job.restore(commit.checkpoint) == commit.content


@pytest.mark.asyncio
async def test_an_offset_at_the_oldest_and_the_newest_record_is_in_range(
    job: ChangelogJob,
) -> None:
    manager = await job.manager()
    await job.commit(manager, {b"a": b"1"})
    second = await job.commit(manager, {b"a": b"2"})
    job.delete_records_before(offset_of(second))
    assert await job.restore(second.checkpoint) == {b"a": b"2"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("field", "value"), [("partition", 7), ("stream", "no-such-topic")], ids=str
)
async def test_a_partition_that_is_not_there_is_refused(
    job: ChangelogJob, field: str, value: object
) -> None:
    commit = await job.commit(await job.manager(), {b"a": b"1"})
    marker = json.loads(commit.marker)
    marker["changelog-ssp"][field] = value
    forged = {KAFKA: {STORE: Marker(json.dumps(marker))}}
    short_timeout = ChangelogJob(
        job.servers, job.versions.root, job.task.job_name, timeout_ms="1000"
    )
    with pytest.raises(BlobNotFoundError):
        await short_timeout.restore(CheckpointV2(commit.checkpoint.checkpoint_id, {}, forged))


def config(broker: KafkaBroker, root: Path, **more: str) -> Config:
    return load_dict(
        {
            "job.name": root.name,
            "job.logged.store.base.dir": root / "local",
            "stores.backup.factories": "kafka",
            "kafka.bootstrap.servers": broker.servers,
            **{name.replace("__", "."): value for name, value in more.items()},
        },
        "test",
    )


async def run_once(
    settings: Config, value: bytes | None
) -> tuple[dict[str, str], dict[bytes, bytes]]:
    """Start the task, perhaps commit a value and write another, and crash; return what it had."""
    async with Container(settings) as container:
        task = await container.start_task(TASK, ["s"])
        found = {str(s): b for s, b in task.restored.sources.items()}, dict(task.store("s").scan())
        if value is not None:
            task.store("s").put(b"k", value)
            await (await task.commit({INPUT: "1"}, force=True)).wait()
            task.store("s").put(b"k", b"never committed")
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / uuid.uuid4().hex


@pytest.mark.asyncio
@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
@pytest.mark.parametrize(
    ("case", "source"), [("disk kept", "local"), ("clean start", "kafka"), ("disk lost", "kafka")]
)
async def test_uncommitted_writes_are_gone_wherever_the_state_comes_from(
    broker: KafkaBroker,
    root: Path,
    engine: str,
    case: str,
    source: str,
) -> None:
    factory = {"stores__s__factory": engine}
    await run_once(config(broker, root, **factory), b"1")
    if case == "disk lost":
        shutil.rmtree(root / "local")
    if case == "clean start":
        factory["stores__s__clean__on__container__start"] = "true"
    again = config(broker, root, **factory)
    assert await run_once(again, None) == ({"s": source}, {b"k": b"1"})


@pytest.mark.asyncio
async def test_a_local_version_behind_the_commit_is_not_used(
    broker: KafkaBroker, root: Path
) -> None:
    settings = config(broker, root)
    await run_once(settings, b"1")
    shutil.copytree(root / "local", root / "stale")
    shutil.rmtree(root / "local")
    await run_once(settings, b"2")
    shutil.rmtree(root / "local")
    (root / "stale").rename(root / "local")
    assert await run_once(settings, None) == ({"s": "kafka"}, {b"k": b"2"})


@pytest.mark.asyncio
async def test_a_store_that_is_not_backed_up_starts_empty(broker: KafkaBroker, root: Path) -> None:
    own = {"stores__s__backup__factories": "", "job__log__backend": "kafka"}
    settings = config(broker, root, **own)
    await run_once(settings, b"1")
    shutil.rmtree(root / "local")
    assert await run_once(settings, None) == ({}, {})

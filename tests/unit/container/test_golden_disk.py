"""What an earlier release left on a local disk: a job in plain Python goes on from it."""

import json
from pathlib import Path

import pytest
from golden_kit import GOLDEN, unpack

from statekeep.checkpoint.checkpoints import StoreName, SystemStreamPartition
from statekeep.checkpoint.records import decode_record, encode_record
from statekeep.checkpoint.serde import decode_checkpoint_v2, encode_checkpoint_v2
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import ConfigError
from statekeep.stores.delta import DeltaReader
from statekeep.stores.version import CHECKPOINT_FILE, MANIFEST_FILE, SealedVersion, SealManifest

Content = dict[str, dict[bytes, bytes]]

CONTENT: Content = {
    store: {key.encode(): value.encode() for key, value in entries.items()}
    for store, entries in json.loads((GOLDEN / "disks" / "content.json").read_bytes()).items()
}
INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
STORES = sorted(CONTENT)
TASK = "Partition 0"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The job's local directory and the places of its two backends."""
    unpack("disks/disk-1.tar.gz", tmp_path)
    return tmp_path


def config_of(disk: Path, **settings: str) -> Config:
    values = {
        "job.name": "orders",
        "job.logged.store.base.dir": str(disk / "local"),
        "job.log.backend": "hdfs",
        "stores.backup.factories": "blob,hdfs",
        "stores.recent.factory": "memory",
        "backends.blob.uri": (disk / "blob").as_uri(),
        "backends.hdfs.uri": (disk / "hdfs").as_uri(),
        "task.commit.ms": "0",
        "checkpoint.clean.up.ms": "0",
    }
    return load_dict(values | {key.replace("__", "."): value for key, value in settings.items()})


def versions_of(disk: Path) -> list[SealedVersion]:
    """Return the sealed versions, the oldest first."""
    paths = sorted((disk / "local" / "orders" / "main" / "Partition_0").glob(f"*/{MANIFEST_FILE}"))
    return [
        SealedVersion(path.parent, SealManifest.decode(path.read_bytes(), where=path.parent.name))
        for path in paths
    ]


async def start(config: Config, **committed: str) -> tuple[Content, str]:
    """Start the task, and commit what is given; return what it started with."""
    async with Container(config) as container:
        task = await container.start_task(TASK, STORES)
        found = {name: dict(task.store(name).scan()) for name in STORES}
        offset = task.input_offsets[INPUT]
        for name, value in committed.items():
            task.store(name).put(b"key-new", value.encode())
        if committed:
            await (await task.commit({INPUT: "6"}, force=True)).wait()
    return found, offset


@pytest.mark.asyncio
async def test_a_job_starts_from_the_disk_alone(disk: Path) -> None:
    for place in ("blob", "hdfs"):
        (state,) = (disk / place / "orders").glob("state-*")
        state.rename(disk / f"backups-of-{place}")
    assert await start(config_of(disk)) == (CONTENT, "5")


@pytest.mark.asyncio
@pytest.mark.parametrize("backend", ["blob", "hdfs"])
async def test_a_job_that_goes_on_from_the_disk_can_lose_it_again(disk: Path, backend: str) -> None:
    await start(config_of(disk), counts="one", recent="two")
    (disk / "local").rename(disk / "other-disk")
    found = await start(config_of(disk, stores__restore__factories=backend))
    expected = {name: dict(entries) for name, entries in CONTENT.items()}
    expected["counts"][b"key-new"] = b"one"
    expected["recent"][b"key-new"] = b"two"
    assert found == (expected, "6")


def test_every_version_on_the_disk_is_whole_and_would_be_written_as_it_was(disk: Path) -> None:
    versions = versions_of(disk)
    assert [version.id.batch for version in versions] == [2, 3, 4, 5]
    for version in versions:
        version.verify()
        written = (version.directory / MANIFEST_FILE).read_bytes()
        assert version.manifest.encode() == written
    checkpoints = [version.read_checkpoint() for version in versions]
    # The first was restored, the third one's commit failed.
    assert [data is not None for data in checkpoints] == [False, True, False, True]
    for version, data in zip(versions, checkpoints, strict=True):
        if data is not None:
            written = (version.directory / CHECKPOINT_FILE).read_bytes()
            version.write_checkpoint(encode_checkpoint_v2(decode_checkpoint_v2(data, "golden")))
            assert (version.directory / CHECKPOINT_FILE).read_bytes() == written


@pytest.mark.parametrize("store", STORES)
def test_the_deltas_that_a_version_carries_lead_from_the_commit_before_to_it(
    disk: Path, store: str
) -> None:
    _, committed, failed, newest = versions_of(disk)
    paths = newest.changes_since(StoreName(store), committed.id)
    assert paths is not None
    headers: list[tuple[str, str]] = []
    changes: dict[bytes, bytes | None] = {}
    for path in paths:
        with path.open("rb") as file:
            reader = DeltaReader(file, where=path.name)
            headers.append((reader.header.parent, reader.header.version))
            changes |= dict(reader)
    assert headers == [
        (str(committed.id), str(failed.id)),
        (str(failed.id), str(newest.id)),
    ]
    kept = {key: value for key, value in changes.items() if value is not None}
    assert kept.items() <= CONTENT[store].items()
    assert not (changes.keys() - kept.keys()) & CONTENT[store].keys()


@pytest.mark.parametrize("place", ["blob", "hdfs"])
def test_every_record_of_the_log_is_written_as_it_was(disk: Path, place: str) -> None:
    logs = sorted((disk / place / "orders" / "main" / "Partition_0" / "log").iterdir())
    assert len(logs) > 20
    for path in logs:
        data = path.read_bytes()
        assert encode_record(decode_record(data, where=path.name)) == data


@pytest.mark.asyncio
async def test_the_backend_that_the_log_has_left_refuses_a_start(disk: Path) -> None:
    with pytest.raises(ConfigError, match="the job log has moved: backend=hdfs"):
        await start(config_of(disk, job__log__backend="blob"))

"""Jobs that earlier releases wrote go on with this one."""

import json
from pathlib import Path
from unittest.mock import patch

import golden_kit
import msgspec
import pytest
from golden_kit import GOLDEN
from newer_frames import of_next_format

from statekeep.checkpoint.checkpoints import SystemStreamPartition
from statekeep.checkpoint.framing import frame, unframe
from statekeep.checkpoint.records import CommitRecord, decode_record, encode_record
from statekeep.config.load import load_dict
from statekeep.config.model import Config
from statekeep.container.container import Container
from statekeep.errors import RestoreFailedError, UnknownFormatError
from statekeep.stores import delta

JOBS = sorted(path.name.removesuffix(".tar.gz") for path in (GOLDEN / "jobs").glob("*.tar.gz"))
CONTENT = {
    key.encode(): value.encode()
    for key, value in json.loads(
        (GOLDEN / "jobs" / "content.json").read_text(encoding="utf-8")
    ).items()
}
INPUT = SystemStreamPartition("kafka", "orders.v1", 0)
TASK = "Partition 0"


def config_of(job: str, directory: Path) -> Config:
    backend = job.partition("-")[0]
    return load_dict(
        {
            "job.name": "orders",
            "job.logged.store.base.dir": str(directory / "local"),
            "stores.counts.backup.factories": backend,
            f"backends.{backend}.uri": (directory / "place").as_uri(),
            "task.commit.ms": "0",
            "checkpoint.clean.up.ms": "0",
        }
    )


def unpack(job: str, directory: Path) -> Path:
    place = directory / "place"
    golden_kit.unpack(f"jobs/{job}.tar.gz", place)
    return place


@pytest.mark.asyncio
@pytest.mark.parametrize("job", JOBS)
async def test_a_job_of_an_earlier_release_goes_on(job: str, tmp_path: Path) -> None:
    unpack(job, tmp_path)
    config = config_of(job, tmp_path)
    async with Container(config) as container:
        task = await container.start_task(TASK, ["counts"])
        assert dict(task.store("counts").scan()) == CONTENT
        assert task.input_offsets == {INPUT: "3"}
        task.store("counts").put(b"key-new", b"1")
        await (await task.commit({INPUT: "4"}, force=True)).wait()
    (tmp_path / "local").rename(tmp_path / "other-disk")
    async with Container(config) as container:
        task = await container.start_task(TASK, ["counts"])
        assert dict(task.store("counts").scan()) == CONTENT | {b"key-new": b"1"}
        assert task.input_offsets == {INPUT: "4"}


@pytest.mark.parametrize("job", JOBS)
def test_every_record_of_an_earlier_release_is_written_as_it_was(job: str, tmp_path: Path) -> None:
    logs = list((unpack(job, tmp_path) / "orders" / "main" / "Partition_0" / "log").iterdir())
    assert logs
    for path in logs:
        data = path.read_bytes()
        assert encode_record(decode_record(data, where=path.name)) == data


def a_commit(place: Path) -> tuple[Path, bytes]:
    logs = sorted((place / "orders" / "main" / "Partition_0" / "log").iterdir())
    (path, *_) = (path for path in reversed(logs) if b" commit " in path.read_bytes()[:40])
    return path, path.read_bytes()


@pytest.mark.asyncio
async def test_what_a_later_release_adds_to_a_record_does_not_keep_this_one_from_going_on(
    tmp_path: Path,
) -> None:
    """So that there is a way back from an upgrade."""
    path, data = a_commit(unpack("blob-2", tmp_path))
    fields = json.loads(unframe(data, where=path.name).payload)
    fields["from-the-future"] = {"anything": [1, 2]}
    fields["checkpoints"][TASK]["from-the-future"] = True
    path.write_bytes(frame("commit", msgspec.json.encode(fields)))
    assert isinstance(decode_record(path.read_bytes(), where=path.name), CommitRecord)
    async with Container(config_of("blob-2", tmp_path)) as container:
        task = await container.start_task(TASK, ["counts"])
        assert dict(task.store("counts").scan()) == CONTENT


@pytest.mark.asyncio
async def test_a_log_of_a_format_to_come_is_refused_and_not_guessed_at(tmp_path: Path) -> None:
    path, data = a_commit(unpack("blob-2", tmp_path))
    path.write_bytes(of_next_format(data))
    async with Container(config_of("blob-2", tmp_path)) as container:
        with pytest.raises(UnknownFormatError, match="unknown format version"):
            await container.start_task(TASK, ["counts"])


def backups(place: Path) -> dict[str, bytes]:
    paths = (place / "orders").glob("state-*/**/*")
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.asyncio
@pytest.mark.parametrize("job", ["blob-3", "hdfs-1"])
async def test_what_a_later_release_committed_is_kept_for_it_and_no_older_commit_takes_its_place(
    job: str, tmp_path: Path
) -> None:
    place, config = unpack(job, tmp_path), config_of(job, tmp_path)
    async with Container(config) as container:
        task = await container.start_task(TASK, ["counts"])
        with patch.object(delta, "FORMAT_VERSION", delta.FORMAT_VERSION + 1):
            task.store("counts").put(b"key-new", b"1")
            await (await task.commit({INPUT: "4"}, force=True)).wait()
    (tmp_path / "local").rename(tmp_path / "other-disk")
    before = backups(place)
    async with Container(config) as container:
        with pytest.raises(RestoreFailedError) as caught:
            await container.start_task(TASK, ["counts"])
    assert "use the version of Statekeep that wrote it" in "".join(caught.value.hints)
    assert backups(place) == before
    logs = (place / "orders" / "main" / "Partition_0" / "log").iterdir()
    assert not [path for path in logs if b" bad-marker " in path.read_bytes()[:40]]

"""A job of Samza that runs here with its own file; a stand-in takes its checkpoint topic."""

import asyncio
import difflib
from collections.abc import Mapping
from pathlib import Path

import pytest
from checkpoint_topic_kit import reader_of
from samza_job_kit import BLOBS, SAMZA_FILE, VIEWS, count_views, write_job

from statekeep.checkpoint.checkpoint_manager import CheckpointForms
from statekeep.checkpoint.checkpoints import TaskName
from statekeep.config.load import load_dict, load_file, merge
from statekeep.errors import ConfigError

NO_CLASSES: Mapping[str, str] = {}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(BLOBS, (tmp_path / "blobs").as_uri())
    return tmp_path


async def run(path: Path, *pages: str) -> tuple[dict[bytes, bytes], str | None]:
    """Run the job until it has counted these pages; return what it began with."""
    topic = {
        "backends.kafka.factory": "checkpoint_topic_kit:TopicFactory",
        "backends.kafka.uri": (path.parent / "topic").as_uri(),
    }
    return await count_views(merge(load_file(path), load_dict(topic)), *pages)


def test_nothing_but_the_jobs_own_class_and_the_places_of_the_test_is_changed(
    directory: Path,
) -> None:
    written = write_job(directory, brokers="other:9092").read_text(encoding="utf-8")
    changes = difflib.ndiff(SAMZA_FILE.splitlines(), written.splitlines())
    assert [line[2:].partition("=")[0] for line in changes if line.startswith("+ ")] == [
        "job.logged.store.base.dir",
        "systems.kafka.producer.bootstrap.servers",
        "blob.store.manager.factory",
    ]


@pytest.mark.asyncio
async def test_a_class_of_the_job_that_is_not_changed_is_named_at_the_start(
    directory: Path,
) -> None:
    path = write_job(directory, classes=NO_CLASSES)
    with pytest.raises(ConfigError, match=r"backends\.blob\.manager\.factory.*com\.example\.blobs"):
        await run(path, "home")


@pytest.mark.asyncio
async def test_the_job_goes_on_without_its_local_disk_where_it_was(directory: Path) -> None:
    path = write_job(directory)
    assert await run(path, "home", "help", "home") == ({}, None)
    (directory / "local").rename(directory / "other-disk")
    assert await run(path, "home") == ({b"home": b"2", b"help": b"1"}, "2")
    (directory / "local").rename(directory / "disk-after-that")
    assert await run(path) == ({b"home": b"3", b"help": b"1"}, "3")


@pytest.mark.parametrize("form", [1, 2])
def test_tools_of_samza_find_the_checkpoint_in_both_forms(directory: Path, form: int) -> None:
    path = write_job(directory)
    asyncio.run(run(path, "home", "help"))
    reader = reader_of(
        (directory / "topic").as_uri(),
        "page-view-counter",
        CheckpointForms(read_versions=(form,)),
        job_id="2",
    )
    found = asyncio.run(reader.read_last(TaskName("Partition 0")))
    assert found is not None
    assert found.input_offsets == {VIEWS: "1"}

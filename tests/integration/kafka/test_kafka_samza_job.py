"""A job of Samza whose own file runs here, with its changelog and its checkpoint topic on a broker."""

import uuid
from pathlib import Path

import pytest
from samza_job_kit import BLOBS, SAMZA_FILE_OF_BOTH, count_views, write_job
from servers.kafka import KafkaBroker

from statekeep.config.load import load_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture
def job(broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The job's file, under names that have no topics yet."""
    monkeypatch.setenv(BLOBS, (tmp_path / "blobs").as_uri())
    name = f"views-{uuid.uuid4().hex[:12]}"
    text = SAMZA_FILE_OF_BOTH.replace("=page-view-counter", f"={name}")
    text = text.replace("kafka.views-changelog", f"kafka.{name}-changelog")
    return write_job(tmp_path, text, brokers=broker.servers)


@pytest.mark.asyncio
@pytest.mark.parametrize("lost", [None, "blobs"], ids=["from blobs", "from the changelog"])
async def test_the_job_goes_on_without_its_local_disk_from_either_backend(
    job: Path, tmp_path: Path, lost: str | None
) -> None:
    config = load_file(job)
    assert config.store("views").restore_factories == ("blob", "kafka")
    assert await count_views(config, "home", "help", "home") == ({}, None)
    (tmp_path / "local").rename(tmp_path / "other-disk")
    if lost is not None:
        (tmp_path / lost).rename(tmp_path / "gone")
    assert await count_views(config, "home") == ({b"home": b"2", b"help": b"1"}, "2")
    (tmp_path / "local").rename(tmp_path / "disk-after-that")
    assert await count_views(config) == ({b"home": b"3", b"help": b"1"}, "3")

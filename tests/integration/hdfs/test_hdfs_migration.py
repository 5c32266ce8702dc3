"""The walk-through in docs/how-to/move-state.md to a real HDFS, and away from it."""

import uuid
from pathlib import Path
from typing import Any

import hdfs_native
import pytest
from migration_kit import STEPS, Reader
from servers.hdfs import HdfsCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BLOB = {"factory": "blob", "uri": "file:///srv/{name}"}


@pytest.fixture
def directory() -> str:
    """A directory of the test's own in the cluster."""
    return f"/move-{uuid.uuid4().hex}"


@pytest.fixture
def hdfs(cluster: HdfsCluster, directory: str) -> dict[str, str]:
    return {"factory": "hdfs", "uri": f"{cluster.uri}{directory}"}


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reader:
    return Reader(tmp_path, monkeypatch, capsys, {})


def test_the_page_leads_from_a_blob_store_to_hdfs(
    reader: Reader, hdfs: dict[str, str], tmp_path: Path
) -> None:
    reader.places = {"old": BLOB, "new": hdfs}
    reader.follow("A job to try it with", *STEPS)
    (tmp_path / "old").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")
    reader.follow("A job that is stopped anyway")


def test_the_page_leads_from_hdfs_to_a_blob_store(
    reader: Reader, cluster: HdfsCluster, hdfs: dict[str, str], directory: str, tmp_path: Path
) -> None:
    reader.places = {"old": hdfs, "new": BLOB}
    reader.follow("A job to try it with", *STEPS)
    client: Any = hdfs_native.Client(cluster.uri)
    assert client.delete(directory, recursive=True)
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def test_a_stopped_job_moves_to_hdfs_by_one_command(
    reader: Reader, hdfs: dict[str, str], tmp_path: Path
) -> None:
    reader.places = {"old": BLOB, "new": BLOB, "third": hdfs}
    reader.follow("A job to try it with", *STEPS, "A job that is stopped anyway")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back_to_hdfs(
    reader: Reader, hdfs: dict[str, str], tmp_path: Path, step: int
) -> None:
    reader.places = {"old": hdfs, "new": BLOB}
    reader.follow("A job to try it with")
    reader.go_back(step)
    (tmp_path / "new").rename(tmp_path / "gone")
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")

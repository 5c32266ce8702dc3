"""The walk-through in docs/migration.md between object stores: nothing of the old place is needed."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import ContainerClient
from migration_kit import STEPS, Reader
from servers.seaweedfs import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def old(s3_server: S3Server, s3_bucket: str, prefix: str) -> dict[str, str]:
    uri = f"s3://{s3_bucket}/{prefix}"
    return {"factory": "blob", "uri": uri, "s3.endpoint": s3_server.endpoint}


@pytest.fixture(params=["azure", "another bucket"])
def new(request: pytest.FixtureRequest, s3_server: S3Server, prefix: str) -> dict[str, str]:
    if request.param == "azure":
        container: ContainerClient = request.getfixturevalue("azure_container")
        return {"factory": "blob", "uri": f"az://{container.container_name}/{prefix}"}
    bucket = request.getfixturevalue("s3_other_bucket")
    uri = f"s3://{bucket}/{prefix}"
    return {"factory": "blob", "uri": uri, "s3.endpoint": s3_server.endpoint}


@pytest.fixture
def reader(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: dict[str, str],
    new: dict[str, str],
) -> Reader:
    reader = Reader(tmp_path, monkeypatch, capsys, {"old": old, "new": new})
    reader.follow("A job to try it with")
    return reader


def empty(api: Any, bucket: str, prefix: str) -> int:
    """Delete all objects of a job's old place; return how many there were."""
    found = api.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/").get("Contents", [])
    for entry in found:
        api.delete_object(Bucket=bucket, Key=entry["Key"])
    return len(found)


def test_the_page_leads_away_from_a_bucket_that_is_emptied_at_the_end(
    reader: Reader, tmp_path: Path, s3_api: Any, s3_bucket: str, prefix: str
) -> None:
    reader.follow(*STEPS)
    assert empty(s3_api, s3_bucket, prefix) > 0
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")
    reader.follow("A job that is stopped anyway")


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back_to_the_bucket(reader: Reader, tmp_path: Path, step: int) -> None:
    reader.go_back(step)
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")

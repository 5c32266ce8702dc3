"""The walk-through in docs/how-to/move-state.md between object stores: nothing of the old place is needed."""

from pathlib import Path

import pytest
from migration_kit import STEPS, Reader
from servers.buckets import AzureBucket, Bucket, S3Bucket
from servers.seaweedfs import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def place(kind: str, request: pytest.FixtureRequest) -> Bucket:
    """A place of its own in one of the servers."""
    if kind == "azure":
        return AzureBucket(request.getfixturevalue("azure_container"))
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = "s3_bucket" if kind == "s3" else "s3_other_bucket"
    api = request.getfixturevalue("s3_api")
    return S3Bucket(api, request.getfixturevalue(bucket), server.endpoint)


@pytest.fixture(
    params=[("s3", "azure"), ("azure", "s3"), ("s3", "another bucket")], ids=" to ".join
)
def places(request: pytest.FixtureRequest) -> tuple[Bucket, Bucket, Bucket]:
    """The old one, the new one, and a third one of the kind of the old."""
    old, new = request.param
    return place(old, request), place(new, request), place(old, request)


@pytest.fixture
def reader(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    places: tuple[Bucket, Bucket, Bucket],
) -> Reader:
    written = [{"factory": "blob", **bucket.settings} for bucket in places]
    named = dict(zip(("old", "new", "third"), written, strict=True))
    reader = Reader(tmp_path, monkeypatch, capsys, named)
    reader.follow("A job to try it with")
    return reader


def test_the_page_leads_away_from_a_backend_that_is_emptied_at_the_end(
    reader: Reader, places: tuple[Bucket, Bucket, Bucket], tmp_path: Path
) -> None:
    old, _, third = places
    reader.follow(*STEPS)
    assert empty(old) > 0
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")
    reader.follow("A job that is stopped anyway")
    assert third.names()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_there_is_a_way_back(
    reader: Reader, places: tuple[Bucket, Bucket, Bucket], tmp_path: Path, step: int
) -> None:
    _, new, _ = places
    reader.go_back(step)
    empty(new)
    (tmp_path / "local").rename(tmp_path / "other-disk")
    reader.run("python job.py")


def empty(bucket: Bucket) -> int:
    """Delete all objects of a place; return how many there were."""
    names = bucket.names()
    for name in names:
        bucket.delete(name)
    return len(names)

"""A task's backups in real object stores: packed, encrypted, tagged until they are complete."""

import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from azure.storage.blob import ContainerClient
from encoded_kit import KEY_LINE
from servers.seaweedfs import S3Server
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.fault_points import fault_handler
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.executor import SerialExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

NEEDLE = b"a customer's secret "
FIRST = {
    **{f"{number:06}.sst": NEEDLE * number for number in range(1, 40)},
    "large.sst": NEEDLE * 500_000,
    "empty": b"",
}
SECOND = {**FIRST, "000001.sst": b"changed" + NEEDLE}
TAGS = {"statekeep": "uncommitted"}


class Bucket(Protocol):
    """A place below a prefix, looked at without the code under test."""

    settings: Mapping[str, str]

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def tags(self, name: str) -> Mapping[str, str]: ...


@dataclass
class S3Bucket(Bucket):
    api: Any
    bucket: str
    endpoint: str
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        uri = f"s3://{self.bucket}/{self.prefix}"
        self.settings = {"uri": uri, "s3.endpoint": self.endpoint}

    @override
    def names(self) -> list[str]:
        found = self.api.list_objects_v2(Bucket=self.bucket, Prefix=f"{self.prefix}/")
        return [entry["Key"] for entry in found.get("Contents", ())]

    @override
    def read(self, name: str) -> bytes:
        with self.api.get_object(Bucket=self.bucket, Key=name)["Body"] as body:
            content: bytes = body.read()
        return content

    @override
    def tags(self, name: str) -> Mapping[str, str]:
        found = self.api.get_object_tagging(Bucket=self.bucket, Key=name)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in found}


@dataclass
class AzureBucket(Bucket):
    container: ContainerClient
    prefix: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.settings = {"uri": f"az://{self.container.container_name}/{self.prefix}"}

    @override
    def names(self) -> list[str]:
        return list(self.container.list_blob_names(name_starts_with=f"{self.prefix}/"))

    @override
    def read(self, name: str) -> bytes:
        content: bytes = self.container.download_blob(name).readall()
        return content

    @override
    def tags(self, name: str) -> Mapping[str, str]:
        return self.container.get_blob_client(name).get_blob_tags()


@pytest.fixture(params=["s3", "azure"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    if request.param == "azure":
        return AzureBucket(request.getfixturevalue("azure_container"))
    server: S3Server = request.getfixturevalue("s3_server")
    api = request.getfixturevalue("s3_api")
    return S3Bucket(api, request.getfixturevalue("s3_bucket"), server.endpoint)


@pytest_asyncio.fixture
async def task(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BackendHarness]:
    monkeypatch.setenv("STATEKEEP_TEST_KEYS", KEY_LINE)
    settings = {
        **bucket.settings,
        "compression": "zstd",
        "encryption": "aes-256-gcm",
        "encryption.keys": "env:STATEKEEP_TEST_KEYS",
        "part.bytes": "5MiB",
        "uncommitted.tags": "statekeep=uncommitted",
        "retry.policy.max.retries": "3",
    }
    factory = BlobBackendFactory(BackendName("blob"), settings)
    harness = BackendHarness(factory, SerialExecutor(), SystemClock(), tmp_path)
    await harness.start()
    yield harness
    await harness.close()


@pytest.mark.asyncio
async def test_packed_and_encrypted_commits_restore_and_leave_what_is_reached(
    task: BackendHarness, bucket: Bucket
) -> None:
    first = await task.commit(task.seal(FIRST))
    # 39 small files in one blob, a large one in two pieces, and the index.
    assert len(bucket.names()) == 4
    second = await task.commit(task.seal(SECOND))
    assert len(bucket.names()) == 6
    assert not [name for name in bucket.names() if NEEDLE in bucket.read(name)]
    for commit, content in ((first, FIRST), (second, SECOND)):
        assert (await task.restore(commit.checkpoint)).content == {STORE: content}
    task.release(first)
    await task.clean_up()
    assert len(bucket.names()) == 5
    assert (await task.restore(second.checkpoint)).content == {STORE: SECOND}


@pytest.mark.asyncio
async def test_what_is_complete_has_no_tag_and_what_a_crash_left_keeps_it(
    task: BackendHarness, bucket: Bucket
) -> None:
    await task.commit(task.seal(FIRST))
    complete = set(bucket.names())
    assert [bucket.tags(name) for name in complete] == [{}] * 4

    def crash(point: str) -> None:
        if point == "upload.after_index":
            raise SystemError(point)

    with fault_handler(crash), pytest.raises(SystemError):
        await task.upload(task.open_attempt(task.seal(SECOND)))
    left = set(bucket.names()) - complete
    assert [bucket.tags(name) for name in left] == [TAGS] * 2

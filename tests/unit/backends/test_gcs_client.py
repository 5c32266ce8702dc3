"""Google Cloud Storage through gcsfs, on a server that misbehaves."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gcs_kit import INCOMPLETE, GcsStub, gcs_stub
from log_kit import InlineExecutor

from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage import gcs as gcs_client
from statekeep.errors import RetriableError, ThrottledError
from statekeep.testing.storage import bare_manager

# aiohttp, about a loop that gcsfs runs in a thread of its own.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")
MIB = 1 << 20


@pytest.fixture
def gcs() -> Iterator[GcsStub]:
    with gcs_stub() as stub:
        yield stub


async def manager_on(endpoint: str, **options: Any) -> BlobStoreManager:
    options = {"token": "anon", "endpoint_url": endpoint} | options
    manager = bare_manager("gs://bucket/prefix", options, InlineExecutor())
    await manager.init()
    return manager


@pytest_asyncio.fixture
async def blobs(gcs: GcsStub) -> AsyncIterator[BlobStoreManager]:
    manager = await manager_on(gcs.endpoint)
    gcs.requests.clear()
    yield manager
    await manager.close()


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    file = tmp_path / "large"
    with file.open("wb") as opened:
        opened.truncate(9 * MIB)
    return file


@pytest.mark.asyncio
async def test_bytes_that_did_not_arrive_as_they_were_are_not_stored(
    gcs: GcsStub, blobs: BlobStoreManager, large_file: Path
) -> None:
    await blobs.put("a", b"content", METADATA)
    await blobs.put("a", large_file, METADATA)
    gcs.damage = lambda content: content[:-1]
    for content in (b"content", large_file):
        with pytest.raises(RetriableError):
            await blobs.put("a", content, METADATA)


@pytest.mark.asyncio
async def test_an_upload_that_the_service_does_not_call_complete_is_not_stored(
    gcs: GcsStub, blobs: BlobStoreManager, large_file: Path
) -> None:
    gcs.scripted["last"] = [INCOMPLETE]
    with pytest.raises(RetriableError):
        await blobs.put("a", large_file, METADATA)


@pytest.mark.asyncio
async def test_who_wants_nothing_compared_can_say_so(gcs: GcsStub) -> None:
    manager = await manager_on(gcs.endpoint, consistency="none")
    gcs.damage = lambda content: content[:-1]
    await manager.put("a", b"content", METADATA)
    await manager.close()


@pytest.mark.asyncio
async def test_no_more_of_a_file_than_8_mib_is_in_memory(
    gcs: GcsStub, blobs: BlobStoreManager, large_file: Path
) -> None:
    await blobs.put("a", large_file, METADATA)
    assert gcs.sizes == [8 * MIB, MIB]


@pytest.mark.asyncio
@pytest.mark.parametrize(("status", "kind"), [(429, ThrottledError), (503, RetriableError)])
async def test_the_first_request_that_is_throttled_or_not_served_is_reported(
    gcs: GcsStub, blobs: BlobStoreManager, status: int, kind: type[Exception]
) -> None:
    gcs.scripted["GET"] = [(status, {}, b"slow down")]
    with pytest.raises(kind):
        await blobs.list("a/")
    assert len(gcs.requests) == 1
    assert await blobs.list("a/") == []


@pytest.mark.asyncio
async def test_an_upload_that_the_server_does_not_read_has_an_end(
    gcs: GcsStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_client, "_REQUEST_S", 0.3)
    manager = await manager_on(gcs.endpoint)
    gcs.is_deaf = True
    with pytest.raises(RetriableError):
        await manager.put("a", bytes(16 * MIB), METADATA)
    await manager.close()

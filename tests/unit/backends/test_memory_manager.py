import asyncio
import hashlib
from pathlib import Path

import pytest
from log_kit import InlineExecutor
from typing_extensions import override

from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.errors import BlobExistsError, BlobNotFoundError, ConfigError

pytestmark = pytest.mark.asyncio

METADATA = BlobMetadata(task=None, store_name=None, payload_name="test")


@pytest.fixture
def executor() -> InlineExecutor:
    return InlineExecutor()


async def test_managers_of_one_root_share_blobs_until_it_is_forgotten(
    executor: InlineExecutor,
) -> None:
    await MemoryBlobStoreManager("shared", executor).put("a/b", b"x", METADATA)

    assert await MemoryBlobStoreManager("shared", executor).get("a/b") == b"x"
    assert await MemoryBlobStoreManager("other", executor).list("") == []
    forget_root("shared")
    assert await MemoryBlobStoreManager("shared", executor).list("") == []


async def test_taken_and_missing_names_are_reported(executor: InlineExecutor) -> None:
    blobs = MemoryBlobStoreManager("names", executor)
    await blobs.put("a", b"x", METADATA, if_absent=True)

    with pytest.raises(BlobExistsError):
        await blobs.put("a", b"y", METADATA, if_absent=True)
    await blobs.delete("a")
    await blobs.delete("a")
    with pytest.raises(BlobNotFoundError):
        await blobs.get("a")


async def test_files_go_in_and_out_with_their_digest(
    executor: InlineExecutor, tmp_path: Path
) -> None:
    blobs = MemoryBlobStoreManager("files", executor)
    (tmp_path / "source").write_bytes(b"content")
    reported: list[int] = []

    await blobs.put("a", tmp_path / "source", METADATA)
    digest = await blobs.download(
        "a", tmp_path / "target", reported.append, max_bytes=MAX_FILE_BYTES
    )

    assert digest == hashlib.sha256(b"content").hexdigest()
    assert (tmp_path / "target").read_bytes() == b"content"
    assert reported == [7]


class Denying(MemoryBlobStoreManager):
    """Counts the deletes that are under way, and the attempts; denies them from some number on."""

    def __init__(self, root: str, allowed: int) -> None:
        super().__init__(root, InlineExecutor())
        self._allowed = allowed
        self.tried = self.most = self._under_way = 0

    @override
    async def delete(self, blob_id: str) -> None:
        self.tried += 1
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        if self.tried > self._allowed:
            raise ConfigError(f"access denied: name={blob_id}")
        await super().delete(blob_id)


@pytest.mark.parametrize("allowed", [0, 2_000], ids=["denied", "allowed"])
async def test_many_deletes_wait_for_each_other_and_end_with_the_first_that_is_denied(
    tmp_path: Path, allowed: int
) -> None:
    manager = Denying(str(tmp_path), allowed)
    names = [f"a/{number}" for number in range(1_000)]
    if allowed:
        await manager.delete_all(names)
        assert manager.tried == 1_000
    else:
        with pytest.raises(ConfigError):
            await manager.delete_all(names)
        assert manager.tried <= 32
    assert manager.most <= 16

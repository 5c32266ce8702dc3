"""The conformance kit for `BlobStoreManager`: subclass `BlobStoreManagerTests`, fill in its hooks."""
# ruff: noqa: D102  # the tests' names are sentences that say it

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from statekeep.backends.base import BlockingExecutor, TaskIdentity
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata, BlobStoreManager
from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.commit.executor import BoundedExecutor
from statekeep.errors import (
    BlobExistsError,
    BlobNotFoundError,
    CheckpointCorruptError,
    StateBackupError,
)
from statekeep.testing.executor import SerialExecutor

METADATA = BlobMetadata(
    TaskIdentity("job", "operator", TaskName("Partition 0")), StoreName("s1"), "000001.sst"
)
_RACERS = 8
CONTENTS = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\x00\xff\r\n" * 5, id="binary"),
    pytest.param(bytes(range(256)) * (9 << 12), id="9 MiB"),
]


def ignore_bytes(size: int) -> None:
    """Ignore progress."""


class BackupPlaceTests:
    """What every client of an object store or filesystem promises, one that creates atomically or not.

    Enough to hold backups, not to hold the job log: `BlobStoreManagerTests` has the rest.
    """

    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        """Build a manager; two of one ``place`` see the same blobs, as two processes would."""
        raise NotImplementedError

    def read_back(self, place: Path, blob_id: str) -> bytes:
        """Return a blob's bytes, read without the code under test."""
        raise NotImplementedError

    @pytest.fixture
    def executor(self) -> BlockingExecutor:
        """Where blocking calls go."""
        return SerialExecutor()

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """Where the blobs are, or a name for it."""
        return tmp_path / "place"

    @pytest_asyncio.fixture
    async def manager(
        self, place: Path, executor: BlockingExecutor
    ) -> AsyncIterator[BlobStoreManager]:
        """A manager that is ready."""
        manager = self.make_manager(place, executor)
        await manager.init()
        yield manager
        await manager.close()

    @pytest.mark.asyncio
    @pytest.mark.parametrize("content", CONTENTS)
    async def test_bytes_that_were_put_are_got(
        self, manager: BlobStoreManager, place: Path, content: bytes
    ) -> None:
        blob_id = await manager.put("a/b c/1-x%20.sst", content, METADATA)
        assert await manager.get(blob_id) == content
        assert self.read_back(place, blob_id) == content

    @pytest.mark.asyncio
    @pytest.mark.parametrize("content", CONTENTS)
    async def test_a_file_that_was_put_is_downloaded_with_its_digest(
        self, manager: BlobStoreManager, tmp_path: Path, content: bytes
    ) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(content)
        blob_id = await manager.put("a/file", source, METADATA)
        source.write_bytes(b"changed later")
        sizes: list[int] = []
        digest = await manager.download(blob_id, target, sizes.append, max_bytes=MAX_FILE_BYTES)
        assert target.read_bytes() == content
        assert digest == hashlib.sha256(content).hexdigest()
        assert sum(sizes) == len(content)

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("start", "size", "expected"),
        [(0, 3, b"012"), (4, 3, b"456"), (7, 100, b"789"), (0, 10, b"0123456789"), (10, 5, b"")],
    )
    async def test_a_range_of_a_blob_is_what_stands_there(
        self, manager: BlobStoreManager, start: int, size: int, expected: bytes
    ) -> None:
        blob_id = await manager.put("a/pack", b"0123456789", METADATA)
        assert await manager.get_range(blob_id, start, size) == expected

    @pytest.mark.asyncio
    async def test_a_range_of_a_blob_that_is_not_there_is_an_error(
        self, manager: BlobStoreManager
    ) -> None:
        with pytest.raises(BlobNotFoundError):
            await manager.get_range("a/nothing", 0, 10)

    @pytest.mark.asyncio
    async def test_an_id_ends_with_the_name(self, manager: BlobStoreManager) -> None:
        assert (await manager.put("a/b/c", b"1", METADATA)).endswith("a/b/c")

    @pytest.mark.asyncio
    async def test_blobs_are_seen_by_another_manager(
        self, manager: BlobStoreManager, place: Path, executor: BlockingExecutor
    ) -> None:
        blob_id = await manager.put("a/1", b"1", METADATA)
        other = self.make_manager(place, executor)
        await other.init()
        assert await other.get(blob_id) == b"1"
        await other.close()

    @pytest.mark.asyncio
    async def test_a_listing_has_exactly_the_blobs_of_the_prefix_in_order(
        self, manager: BlobStoreManager
    ) -> None:
        names = ["a/1-1/x", "a/1-10/x", "a/1-1/sub/y", "ab/z", "b/1"]
        ids = {name: await manager.put(name, b"1", METADATA) for name in names}
        assert list(await manager.list("a/1-1/")) == [ids["a/1-1/sub/y"], ids["a/1-1/x"]]
        assert list(await manager.list("a/1-1")) == [
            ids["a/1-1/sub/y"],
            ids["a/1-1/x"],
            ids["a/1-10/x"],
        ]
        assert set(await manager.list("")) == set(ids.values())
        assert list(await manager.list("nothing/here/")) == []
        for below_a_blob in ("a/1-1/x/", "a/1-1/x/y/"):
            assert list(await manager.list(below_a_blob)) == []

    @pytest.mark.asyncio
    async def test_folders_are_listed_one_level_at_a_time(self, manager: BlobStoreManager) -> None:
        names = ["a/1-1/x", "a/1-1/sub/y", "a/1-10/x", "a/plain", "ab/z"]
        for name in names:
            await manager.put(name, b"1", METADATA)
        assert list(await manager.list_folders("a/")) == ["1-1", "1-10"]
        assert list(await manager.list_folders("a/1-1/")) == ["sub"]
        assert list(await manager.list_folders("nothing/here/")) == []

    @pytest.mark.asyncio
    async def test_a_deleted_blob_is_gone(self, manager: BlobStoreManager, tmp_path: Path) -> None:
        kept = await manager.put("a/kept", b"2", METADATA)
        blob_id = await manager.put("a/1", b"1", METADATA)
        await manager.delete(blob_id)
        with pytest.raises(BlobNotFoundError):
            await manager.get(blob_id)
        with pytest.raises(BlobNotFoundError):
            await manager.download(
                blob_id, tmp_path / "target", ignore_bytes, max_bytes=MAX_FILE_BYTES
            )
        assert list(await manager.list("a/")) == [kept]

    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        "blob_id",
        ["../../etc/passwd", "/etc/passwd", "", "a//b", "a/\0", "x" * 300, "x/" * 600 + "x"],
        ids=["above", "absolute", "empty", "empty part", "control", "long name", "long path"],
    )
    async def test_an_id_that_no_blob_has_is_one_that_is_not_there(
        self, manager: BlobStoreManager, tmp_path: Path, blob_id: str
    ) -> None:
        target = tmp_path / "target"
        for call in (
            manager.get(blob_id),
            manager.get_range(blob_id, 0, 10),
            manager.download(blob_id, target, ignore_bytes, max_bytes=10),
        ):
            with pytest.raises(BlobNotFoundError):
                await call
        assert not target.exists()

    @pytest.mark.asyncio
    @pytest.mark.parametrize("size", [11, 3 << 20])
    async def test_a_blob_that_is_larger_than_it_may_be_is_not_fetched(
        self, manager: BlobStoreManager, tmp_path: Path, size: int
    ) -> None:
        blob_id = await manager.put("a/large", bytes(size), METADATA)
        target = tmp_path / "target"
        with pytest.raises(CheckpointCorruptError):
            await manager.get(blob_id, max_bytes=10)
        with pytest.raises(CheckpointCorruptError):
            await manager.download(blob_id, target, ignore_bytes, max_bytes=10)
        assert not target.exists() or target.stat().st_size <= 10
        assert await manager.get(blob_id, max_bytes=size) == bytes(size)

    @pytest.mark.asyncio
    async def test_many_blobs_are_deleted_at_once(self, manager: BlobStoreManager) -> None:
        names = [f"a/{number} é&<" for number in range(5)]
        blob_ids = [await manager.put(name, b"1", METADATA) for name in names]
        await manager.delete(blob_ids[1])
        for _ in range(2):
            await manager.delete_all(blob_ids[:4])
            assert list(await manager.list("a/")) == blob_ids[4:]
        await manager.delete_all([])

    @pytest.mark.asyncio
    async def test_deleting_twice_is_deleting_once(self, manager: BlobStoreManager) -> None:
        blob_id = await manager.put("a/1", b"1", METADATA)
        await manager.delete(blob_id)
        await manager.delete(blob_id)

    @pytest.mark.asyncio
    async def test_a_put_of_a_file_that_is_not_there_leaves_no_blob(
        self, manager: BlobStoreManager, tmp_path: Path
    ) -> None:
        with pytest.raises((OSError, StateBackupError)):
            await manager.put("a/1", tmp_path / "missing", METADATA)
        assert list(await manager.list("a/")) == []

    @pytest.mark.asyncio
    async def test_the_ttl_of_any_blob_can_be_removed_twice(
        self, manager: BlobStoreManager
    ) -> None:
        blob_id = await manager.put("a/1", b"1", METADATA)
        await manager.remove_ttl(blob_id)
        await manager.remove_ttl(blob_id)
        assert await manager.get(blob_id) == b"1"

    @pytest.mark.asyncio
    async def test_init_and_close_may_be_repeated(self, manager: BlobStoreManager) -> None:
        await manager.init()
        await manager.close()
        await manager.close()

    @pytest.mark.asyncio
    async def test_nothing_is_left_running_after_close(
        self, place: Path, executor: BlockingExecutor
    ) -> None:
        threads = set(threading.enumerate())
        manager = self.make_manager(place, executor)
        await manager.init()
        await manager.put("a/1", b"1", METADATA)
        await manager.close()
        assert set(threading.enumerate()) <= threads
        assert asyncio.all_tasks() == {asyncio.current_task()}


class BlobStoreManagerTests(BackupPlaceTests):
    """What a client promises whose store creates atomically, as the job log needs it."""

    @pytest.mark.asyncio
    async def test_a_name_that_is_taken_is_refused_and_left_alone(
        self, manager: BlobStoreManager
    ) -> None:
        blob_id = await manager.put("a/1", b"first", METADATA, if_absent=True)
        with pytest.raises(BlobExistsError):
            await manager.put("a/1", b"second", METADATA, if_absent=True)
        assert await manager.get(blob_id) == b"first"

    @pytest.mark.asyncio
    async def test_of_racing_creates_exactly_one_succeeds(self, place: Path) -> None:
        executor = BoundedExecutor(_RACERS, "racers")
        racers = [self.make_manager(place, executor) for _ in range(_RACERS)]
        for racer in racers:
            await racer.init()
        results = await asyncio.gather(
            *(
                racer.put("a/1", b"from %d" % index, METADATA, if_absent=True)
                for index, racer in enumerate(racers)
            ),
            return_exceptions=True,
        )
        winners = [index for index, result in enumerate(results) if isinstance(result, str)]
        losers = [result for result in results if isinstance(result, BlobExistsError)]
        assert len(winners) == 1
        assert len(losers) == len(racers) - 1
        assert self.read_back(place, str(results[winners[0]])) == b"from %d" % winners[0]
        for racer in racers:
            await racer.close()
        await executor.close()

"""Files that are read while they are fetched."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.blob_store import BlobMetadata
from statekeep.backends.hdfs import streaming
from statekeep.backends.hdfs.streaming import FilesAhead
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.errors import BlobNotFoundError
from statekeep.testing.executor import SerialExecutor

METADATA = BlobMetadata(None, None, "test")


class Place(MemoryBlobStoreManager):
    """Notes what is asked for.

    Attributes:
        asked: (name, start), in order.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), SerialExecutor())
        self.asked: list[tuple[str, int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        self.asked.append((blob_id, start))
        await self.go_on.wait()
        return await super().get_range(blob_id, start, size)


@pytest.fixture(autouse=True)
def pieces_of_4_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_PIECE_BYTES", 4)


async def place_with(root: Path, files: Iterable[bytes]) -> tuple[Place, list[str]]:
    place = Place(root)
    await place.init()
    return place, [await place.put(f"f{n}", data, METADATA) for n, data in enumerate(files)]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_files_come_in_order_and_each_is_whole(tmp_path: Path) -> None:
    contents = [b"123456789", b"", b"1234", b"12345678", b"x"]
    place, names = await place_with(tmp_path, contents)
    found = [b""]
    async with FilesAhead(place, names) as ahead:
        while len(found) <= len(contents):
            piece = await ahead.next_piece()
            found[-1] += piece.data
            if piece.is_last:
                found.append(b"")
        with pytest.raises(EOFError):
            await ahead.next_piece()
    assert found[:-1] == contents
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_one_piece_is_fetched_ahead_also_of_the_next_file_and_no_more(tmp_path: Path) -> None:
    place, names = await place_with(tmp_path, [b"12345", b"678"])
    async with FilesAhead(place, names) as ahead:
        for asked in (2, 3, 3):
            await ahead.next_piece()
            await settle()
            assert place.asked == [("f0", 0), ("f0", 4), ("f1", 0)][:asked]
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_a_file_that_is_gone_is_reported_when_its_turn_comes(tmp_path: Path) -> None:
    place, names = await place_with(tmp_path, [b"123"])
    async with FilesAhead(place, [*names, "gone"]) as ahead:
        assert (await ahead.next_piece()).data == b"123"
        await settle()
        with pytest.raises(BlobNotFoundError, match="gone"):
            await ahead.next_piece()
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_a_reader_that_leaves_early_leaves_nothing_running(tmp_path: Path) -> None:
    place, names = await place_with(tmp_path, [b"12345"])
    before = asyncio.all_tasks()
    async with FilesAhead(place, [*names, "gone"]) as ahead:
        await ahead.next_piece()
        place.go_on.clear()
        await settle()
    assert asyncio.all_tasks() == before
    async with FilesAhead(place, ["gone"]):
        place.go_on.set()
        await settle()
    assert asyncio.all_tasks() == before
    forget_root(str(tmp_path))

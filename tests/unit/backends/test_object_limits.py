"""Transfers to an object store within their limits: memory, requests under way, bandwidth, throttling."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from lagging_kit import OverlappingCalls
from object_store_kit import Failing, ObjectsInMemory, ObjectStoreRig
from typing_extensions import override

from statekeep.backends.blob_store import MAX_FILE_BYTES
from statekeep.backends.storage.client import ObjectRange, ObjectStamps
from statekeep.backends.storage.manager import StorageManager
from statekeep.errors import (
    RetriableError,
    ThrottledError,
)
from statekeep.testing.blob_store_tests import METADATA, ignore_bytes
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

CONTENT = bytes(range(95))


class Memory:
    """Takes note of how many bytes of what was read were in memory at once."""

    def __init__(self) -> None:
        self.bytes = self.most = 0
        self._changing = threading.RLock()  # memory may be freed in the middle of anything

    def change(self, size: int) -> None:
        with self._changing:
            self.bytes += size
            self.most = max(self.most, self.bytes)


class Counted(bytes):
    memory: Memory

    def __del__(self) -> None:
        self.memory.change(-len(self))


class CountedReads(ObjectsInMemory):
    """Gives parts that are counted as long as they are referenced."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.short_reads_left = 3

    @override
    def read(self, name: str, start: int, length: int) -> ObjectRange:
        found = super().read(name, start, length)
        is_short = start == 40 and self.short_reads_left > 0
        self.short_reads_left -= is_short
        data = Counted(found.data[:-1] if is_short else found.data)
        data.memory = self.memory
        self.memory.change(len(data))
        return ObjectRange(data, found.object_bytes)


@pytest.fixture
def client() -> CountedReads:
    return CountedReads()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest_asyncio.fixture
async def crowd(
    client: ObjectsInMemory,
) -> AsyncIterator[tuple[OverlappingCalls, list[StorageManager]]]:
    """Managers of three tasks with the bounds of one container."""
    executor = OverlappingCalls()
    rig = ObjectStoreRig(client, executor, buffer_bytes=25)
    managers = [rig.manager() for _ in range(3)]
    for manager in managers:
        await manager.init()
    yield executor, managers
    for manager in managers:
        await manager.close()


@pytest.mark.asyncio
async def test_restored_parts_in_memory_never_exceed_the_buffer(
    client: CountedReads,
    crowd: tuple[OverlappingCalls, list[StorageManager]],
    tmp_path: Path,
) -> None:
    _, managers = crowd
    contents = {f"a/{number}": bytes([number]) * 95 for number in range(6)}
    client.objects.update(contents)
    # Ranges fail or come short now and then: a task that holds memory then must not stop the others.
    client.before = Failing("read 20", RetriableError("lost"), times=3)
    downloads = [
        manager.download(name, tmp_path / name[2:], ignore_bytes, max_bytes=MAX_FILE_BYTES)
        for name, manager in zip(contents, managers * 2, strict=True)
    ]
    digests = await asyncio.wait_for(asyncio.gather(*downloads), 20)
    assert digests == [hashlib.sha256(content).hexdigest() for content in contents.values()]
    assert client.memory.most == 20
    assert client.memory.bytes == 0
    assert client.short_reads_left == 0


@pytest.mark.asyncio
async def test_sent_parts_in_memory_never_exceed_the_buffer(
    client: ObjectsInMemory,
    crowd: tuple[OverlappingCalls, list[StorageManager]],
    source: Path,
    tmp_path: Path,
) -> None:
    executor, managers = crowd
    small = tmp_path / "small"
    small.write_bytes(CONTENT[:9])
    client.before = Failing("part 2", RetriableError("lost"), times=3)
    await asyncio.gather(
        *(manager.put(f"large/{n}", source, METADATA) for n, manager in enumerate(managers)),
        *(manager.put(f"small/{n}", small, METADATA) for n, manager in enumerate(managers)),
    )
    assert set(client.objects.values()) == {CONTENT, CONTENT[:9]}
    assert 18 <= executor.most_bytes <= 25


@pytest.mark.asyncio
@pytest.mark.parametrize(("tasks", "most"), [(1, 4), (3, 8)], ids=["a task", "a container"])
async def test_no_more_requests_are_under_way_than_a_task_and_a_container_may_have(
    crowd: tuple[OverlappingCalls, list[StorageManager]], tasks: int, most: int
) -> None:
    executor, managers = crowd
    await asyncio.gather(
        *(manager.delete(f"a/{n}") for n in range(20) for manager in managers[:tasks])
    )
    assert executor.most_calls == most


class TimedPuts(ObjectsInMemory):
    """Notes when each object's put begins."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.begun_ns: dict[str, list[int]] = {}

    @override
    def put(self, name: str, data: bytes, stamps: ObjectStamps, *, if_absent: bool) -> None:
        self.begun_ns.setdefault(name, []).append(self.clock.monotonic_ns())
        super().put(name, data, stamps, if_absent=if_absent)


@pytest.mark.asyncio
async def test_all_transfers_rest_after_a_throttled_request() -> None:
    client = TimedPuts()
    # Without a back-off: it would move the clock for both.
    rig = ObjectStoreRig(client, SerialExecutor(), client.clock, max_retries=0)
    throttled, other = rig.manager(), rig.manager()
    for manager in (throttled, other):
        await manager.init()
    client.before = Failing("put", ThrottledError("slow down"))
    with pytest.raises(ThrottledError):
        await throttled.put("a/1", b"1", METADATA)
    await other.put("a/2", b"2", METADATA)
    assert client.begun_ns == {"a/1": [0], "a/2": [250_000_000]}
    for manager in (throttled, other):
        await manager.close()


@pytest.mark.asyncio
async def test_bytes_wait_for_the_bandwidth(client: ObjectsInMemory) -> None:
    clock = FakeClock()
    rig = ObjectStoreRig(client, SerialExecutor(), clock, bytes_per_second=10)
    manager = rig.manager()
    await manager.init()
    for number in range(5):
        await manager.put(f"a/{number}", bytes(10), METADATA)
    # 50 bytes at 10 a second, the first second saved up.
    assert clock.monotonic_ns() == 4_000_000_000
    await manager.close()


@pytest.mark.asyncio
async def test_a_small_blob_pays_for_its_own_bytes_and_not_for_a_part(
    client: ObjectsInMemory, tmp_path: Path
) -> None:
    clock = FakeClock()
    rig = ObjectStoreRig(client, SerialExecutor(), clock, part_bytes=1000, bytes_per_second=10)
    manager = rig.manager()
    await manager.init()
    client.objects["a/1"] = bytes(30)
    await manager.get("a/1")
    await manager.download("a/1", tmp_path / "target", ignore_bytes, max_bytes=MAX_FILE_BYTES)
    assert clock.monotonic_ns() == 5_000_000_000
    await manager.close()

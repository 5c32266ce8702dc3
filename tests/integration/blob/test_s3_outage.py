"""An S3 server whose connections break, or that dies, in the middle of a transfer."""

import asyncio
import hashlib
import random
import uuid
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from servers.relay import Relay
from servers.seaweedfs import S3Server
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import MAX_FILE_BYTES, BlobMetadata, BlobStoreManager
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

T = TypeVar("T")

METADATA = BlobMetadata(task=None, store_name=None, payload_name="x")
PART_BYTES = 5 << 20
IN_FLIGHT = 2
BREAK_EVERY_BYTES = 11 << 20
"""Of all connections together: in the middle of some part."""


class BreakingRelay(Relay):
    """Now and then breaks the connection that is just in use."""

    def __init__(self, to_port: int) -> None:
        super().__init__(to_port)
        self._bytes_left = BREAK_EVERY_BYTES
        self.broken_count = 0

    @override
    def passes(self, data: bytes, *, is_answer: bool) -> bool:
        self._bytes_left -= len(data)
        if self._bytes_left >= 0:
            return True
        self._bytes_left = BREAK_EVERY_BYTES
        self.broken_count += 1
        return False


@pytest.fixture
def content() -> bytes:
    return random.Random(7).randbytes(48 << 20)


@pytest_asyncio.fixture
async def executor() -> AsyncIterator[BoundedExecutor]:
    executor = BoundedExecutor(4, "outage")
    yield executor
    await executor.close()


def manager_by(port: int, bucket: str, executor: BoundedExecutor) -> BlobStoreManager:
    settings = {
        "uri": f"s3://{bucket}/{uuid.uuid4().hex}",
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "part.bytes": str(PART_BYTES),
        "task.max.in.flight": str(IN_FLIGHT),
        "retry.policy.backoff.delay.millis": "10",
        "retry.policy.backoff.max.delay.millis": "100",
    }
    factory = BlobBackendFactory(BackendName("blob"), settings)
    return factory.blob_store_manager(executor, SystemClock())


@pytest.mark.asyncio
async def test_transfers_survive_connections_that_break_under_them(
    s3_server: S3Server, s3_bucket: str, content: bytes, executor: BoundedExecutor, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    async with BreakingRelay(s3_server.port) as relay:
        manager = manager_by(relay.port, s3_bucket, executor)
        await manager.init()
        blob_id = await manager.put("a/1", source, METADATA)
        broken_by_put = relay.broken_count
        sizes: list[int] = []
        digest = await manager.download(blob_id, target, sizes.append, max_bytes=MAX_FILE_BYTES)
        assert digest == hashlib.sha256(content).hexdigest()
        assert target.read_bytes() == content
        assert sum(sizes) == len(content)
        assert relay.broken_count > broken_by_put > 0
        await manager.close()


class CountingRelay(Relay):
    """Counts bytes and begun uploads; sets an event in the middle of what is moved."""

    def __init__(self, to_port: int) -> None:
        super().__init__(to_port)
        self.forget(0)

    def forget(self, middle: int) -> None:
        """Count anew, up to a new middle."""
        self._middle = middle
        self.moved_bytes = self.begun_uploads = 0
        self.is_half_way = asyncio.Event()

    @override
    def passes(self, data: bytes, *, is_answer: bool) -> bool:
        self.moved_bytes += len(data)
        self.begun_uploads += data.count(b"?uploads ")
        if self.moved_bytes >= self._middle:
            self.is_half_way.set()
        return True


@pytest.mark.asyncio
async def test_a_server_that_dies_in_the_middle_of_a_transfer_costs_the_parts_under_way(
    mortal_s3_server: S3Server,
    mortal_s3_bucket: str,
    content: bytes,
    executor: BoundedExecutor,
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    most = len(content) + (IN_FLIGHT + 1) * PART_BYTES
    async with CountingRelay(mortal_s3_server.port) as relay:

        async def struck(transfer: Coroutine[Any, Any, T]) -> T:
            """Kill the server in the middle of a transfer, and start it again."""
            relay.forget(len(content) // 2)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(transfer)
                await relay.is_half_way.wait()
                assert not running.done()
                await asyncio.to_thread(mortal_s3_server.restart)
            assert len(content) < relay.moved_bytes < most
            return running.result()

        manager = manager_by(relay.port, mortal_s3_bucket, executor)
        await manager.init()
        await struck(manager.put("a/1", source, METADATA))
        assert relay.begun_uploads == 1
        digest = await struck(
            manager.download("a/1", target, lambda _: None, max_bytes=MAX_FILE_BYTES)
        )
        assert digest == hashlib.sha256(content).hexdigest()
        assert hashlib.sha256(target.read_bytes()).hexdigest() == digest
        await manager.close()

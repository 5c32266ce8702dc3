"""An S3 server whose connections break in the middle of a transfer."""

import hashlib
import random
import uuid
from pathlib import Path

import pytest
from servers.relay import Relay
from servers.seaweedfs import S3Server
from typing_extensions import override

from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.clock import SystemClock
from statekeep.commit.executor import BoundedExecutor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

METADATA = BlobMetadata(task=None, store_name=None, payload_name="x")
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


@pytest.mark.asyncio
async def test_transfers_survive_connections_that_break_under_them(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    async with BreakingRelay(s3_server.port) as relay:
        settings = {
            "uri": f"s3://{s3_bucket}/{uuid.uuid4().hex}",
            "s3.endpoint": f"http://127.0.0.1:{relay.port}",
            "part.bytes": "5MiB",
            "retry.policy.backoff.delay.millis": "10",
            "retry.policy.backoff.max.delay.millis": "100",
        }
        executor = BoundedExecutor(4, "outage")
        factory = BlobBackendFactory(BackendName("blob"), settings)
        manager = factory.blob_store_manager(executor, SystemClock())
        await manager.init()
        content = random.Random(7).randbytes(48 << 20)
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(content)
        blob_id = await manager.put("a/1", source, METADATA)
        broken_by_put = relay.broken_count
        sizes: list[int] = []
        digest = await manager.download(blob_id, target, sizes.append)
        assert digest == hashlib.sha256(content).hexdigest()
        assert target.read_bytes() == content
        assert sum(sizes) == len(content)
        assert relay.broken_count > broken_by_put > 0
        await manager.close()
        await executor.close()

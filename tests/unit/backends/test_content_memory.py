"""Encoded and packed content is moved with bounded memory, in both directions."""

import asyncio
import random
import tracemalloc
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from encoded_kit import KEY_LINE
from increments_kit import IncrementJob
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.pacing import ByteBudget
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

MIB = 1 << 20
BUFFER_BYTES = 10 * MIB
SETTINGS = {
    "part.bytes": "1MiB",
    "buffer.bytes": str(BUFFER_BYTES),
    "encryption": "aes-256-gcm",
    "encryption.keys": "env:STATEKEEP_TEST_KEYS",
}
CONTENT = {
    "large.sst": bytes(range(256)) * (20 * MIB // 256),
    "larger.sst": bytes(range(255)) * (24 * MIB // 256),
    **{f"{number}.sst": bytes([number]) * (200 << 10) for number in range(60)},
}


class CountingManager(MemoryBlobStoreManager):
    """A slow place that counts the bytes on their way; what a caller holds is at least as much."""

    under_way = 0
    most = 0
    requests = 0
    most_requests = 0

    async def _move(self, size: int) -> None:
        cls = type(self)
        cls.under_way += size
        cls.most = max(cls.most, cls.under_way)
        cls.requests += 1
        cls.most_requests = max(cls.most_requests, cls.requests)
        for _ in range(50):
            await asyncio.sleep(0)
        cls.under_way -= size
        cls.requests -= 1

    @override
    async def put(
        self, name: str, content: bytes | Path, metadata: BlobMetadata, *, if_absent: bool = False
    ) -> str:
        assert isinstance(content, bytes)
        await self._move(len(content))
        return await super().put(name, content, metadata, if_absent=if_absent)

    @override
    async def get_range(self, blob_id: str, start: int, size: int) -> bytes:
        await self._move(size)
        return await super().get_range(blob_id, start, size)


@pytest.mark.asyncio
async def test_what_is_on_its_way_never_exceeds_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATEKEEP_TEST_KEYS", KEY_LINE)

    def make(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
        return CountingManager(settings["uri"], executor)

    settings = {"uri": str(tmp_path), **SETTINGS}
    factory = BlobBackendFactory(BackendName("blob"), settings, make_manager=make)
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    commit = await task.commit(task.seal(CONTENT))
    # Raw and encoded bytes count, so what is stored is half of what is held.
    assert MIB < CountingManager.most <= BUFFER_BYTES / 2 * 1.02
    CountingManager.most = 0
    assert (await task.restore(commit.checkpoint)).content == {STORE: CONTENT}
    assert MIB < CountingManager.most <= BUFFER_BYTES / 2 * 1.02
    await task.close()
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_what_compressed_content_becomes_counts_too(tmp_path: Path) -> None:
    def make(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
        return CountingManager(settings["uri"], executor)

    settings = {"part.bytes": "1MiB", "buffer.bytes": str(BUFFER_BYTES), "compression": "zstd"}
    factory = BlobBackendFactory(
        BackendName("blob"), {"uri": str(tmp_path), **settings}, make_manager=make
    )
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    commit = await task.commit(task.seal({"zeros.sst": bytes(24 * MIB)}))
    CountingManager.most_requests = 0
    await task.restore(commit.checkpoint)
    assert 1 < CountingManager.most_requests < BUFFER_BYTES / MIB
    await task.close()
    forget_root(str(tmp_path))


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [24 * MIB, 4 * MIB], ids=["pieces", "pack"])
async def test_a_restore_takes_no_more_memory_than_it_holds_of_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    found: list[tuple[int, int]] = []
    hold = ByteBudget.hold

    @asynccontextmanager
    async def measured(self: ByteBudget, claim: int) -> AsyncGenerator[None]:
        tracemalloc.start()
        try:
            async with hold(self, claim):
                yield
            found.append((tracemalloc.get_traced_memory()[1], claim))
        finally:
            tracemalloc.stop()

    settings = {"uri": str(tmp_path), "part.bytes": "32MiB", "pack.max.file.bytes": "4MiB"}
    factory = BlobBackendFactory(
        BackendName("blob"),
        {**settings, "compression": "zstd"},
        make_manager=lambda given, executor: MemoryBlobStoreManager(given["uri"], executor),
    )
    task = BackendHarness(factory, SerialExecutor(), FakeClock(), tmp_path)
    await task.start()
    commit = await task.commit(task.seal({"zeros.sst": bytes(size)}))
    monkeypatch.setattr(ByteBudget, "hold", measured)
    await task.restore(commit.checkpoint)
    ((most, held),) = found
    assert most <= held
    await task.close()
    forget_root(str(tmp_path))


def watched_job(root: Path, **settings: str) -> tuple[IncrementJob, dict[str, tuple[int, int]]]:
    """Return a job, and what its puts found: bytes, and claimed bytes of the buffer, by payload."""
    held: dict[str, tuple[int, int]] = {}

    class Watching(MemoryBlobStoreManager):
        @override
        async def put(
            self,
            name: str,
            content: bytes | Path,
            metadata: BlobMetadata,
            *,
            if_absent: bool = False,
        ) -> str:
            assert isinstance(content, bytes)
            claimed = MIB - job.factory._limits.buffers._free
            held[metadata.payload_name] = (len(content), claimed)
            return await super().put(name, content, metadata, if_absent=if_absent)

    job = IncrementJob(
        root,
        settings={"buffer.bytes": "1MiB", **settings},
        make_blobs=lambda: Watching(str(root), SerialExecutor()),
    )
    return job, held


@pytest.mark.asyncio
@pytest.mark.parametrize("form", [{}, {"compression": "zstd"}], ids=["plain", "compressed"])
@pytest.mark.parametrize("value_bytes", [30_000, MIB], ids=["small", "above the buffer"])
async def test_a_delta_that_is_made_of_others_holds_its_share_of_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: dict[str, str], value_bytes: int
) -> None:
    monkeypatch.setattr("statekeep.backends.blob.settings._FREE_DELTA_BYTES", 100 * MIB)
    job, held = watched_job(tmp_path, **form)
    await job.manager.init()
    draw = random.Random(1)
    first = await job.commit(job.seal(None, {b"key": draw.randbytes(4 * MIB)}))
    batches = [{b"%d" % number: draw.randbytes(value_bytes)} for number in range(3)]
    second = await job.commit(job.seal(first.version, *batches))
    assert len(second.index.deltas) == 1
    size, claimed = held["changes.delta"]
    assert claimed >= min(2 * size, MIB)
    forget_root(str(tmp_path))


@pytest.mark.asyncio
async def test_an_index_with_a_delta_in_it_holds_its_share_of_the_buffer(tmp_path: Path) -> None:
    job, held = watched_job(tmp_path)
    await job.manager.init()
    first = await job.commit(job.seal(None, {b"key": bytes(MIB)}))
    held.clear()
    await job.commit(job.seal(first.version, {b"other": random.Random(1).randbytes(40_000)}))
    ((size, claimed),) = held.values()
    assert size > 40_000 * 4 // 3
    assert claimed >= 2 * size
    forget_root(str(tmp_path))

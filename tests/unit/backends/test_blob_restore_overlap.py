"""What a restore does at the same time: it applies deltas while later ones are on their way."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from increments_kit import TASK, IncrementJob
from typing_extensions import override

from statekeep.backends.base import RestoreContext
from statekeep.backends.blob import backup
from statekeep.backends.blob_store import MAX_DOCUMENT_BYTES
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.commit.executor import BoundedExecutor
from statekeep.stores.delta import Change
from statekeep.stores.memory import MemoryStore
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE


class HoldingManager(MemoryBlobStoreManager):
    """Keeps the answer to one blob back."""

    held = ""
    release = asyncio.Event()

    @override
    async def get(self, blob_id: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        if blob_id == self.held:
            await self.release.wait()
        return await super().get(blob_id, max_bytes=max_bytes)


class ReleasingStore(MemoryStore):
    """Lets the blob go when it is loaded."""

    closed = 0

    @override
    def load(self, records: Iterable[Change]) -> None:
        super().load(records)
        HoldingManager.release.set()

    @override
    def close(self) -> None:
        type(self).closed += 1
        super().close()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[IncrementJob]:
    monkeypatch.setattr(backup, "MAX_INDEX_DELTA_BYTES", 0)
    HoldingManager.held, HoldingManager.release = "", asyncio.Event()
    ReleasingStore.closed = 0
    yield IncrementJob(tmp_path, make_blobs=lambda: HoldingManager(str(tmp_path), SerialExecutor()))
    forget_root(str(tmp_path))


async def restore(job: IncrementJob, directory: Path, executor: BoundedExecutor) -> None:
    context = RestoreContext(
        task=TASK,
        directories={STORE: directory},
        reusable=(),
        open_store=partial(ReleasingStore, is_new=True),
        open_image=partial(ReleasingStore, is_new=False),
        on_bytes=lambda _: None,
        on_total=lambda _: None,
        executor=executor,
        clock=FakeClock(),
    )
    manager = job.factory.restore_manager(context)
    try:
        await manager.init(job.commits[-1].checkpoint)
        await manager.restore()
    finally:
        await manager.close()


async def commit_two_deltas(job: IncrementJob) -> None:
    version = None
    for number in range(3):
        version = job.seal(version, {b"%d" % number: bytes(1000)})
        await job.commit(version)
    assert len(job.commits[-1].index.deltas) == 2


@pytest.mark.asyncio
async def test_a_delta_is_applied_while_the_next_one_is_on_its_way(
    job: IncrementJob, tmp_path: Path
) -> None:
    await commit_two_deltas(job)
    HoldingManager.held = job.commits[-1].index.deltas[-1].blob_id
    executor = BoundedExecutor(3, "restore")
    target = tmp_path / "restored" / "db"
    target.parent.mkdir()
    await asyncio.wait_for(restore(job, target, executor), 5)
    await executor.close()
    assert sorted(job.content_at(target)) == [b"0", b"1", b"2"]
    assert ReleasingStore.closed == 1


@pytest.mark.asyncio
async def test_the_store_is_closed_where_a_later_delta_cannot_be_fetched(
    job: IncrementJob, tmp_path: Path
) -> None:
    await commit_two_deltas(job)
    HoldingManager.held = job.commits[-1].index.deltas[-1].blob_id
    await job.blobs.delete(HoldingManager.held)
    executor = BoundedExecutor(3, "restore")
    target = tmp_path / "restored" / "db"
    target.parent.mkdir()
    with pytest.raises(FileNotFoundError):
        await asyncio.wait_for(restore(job, target, executor), 5)
    await executor.close()
    assert ReleasingStore.closed == 1

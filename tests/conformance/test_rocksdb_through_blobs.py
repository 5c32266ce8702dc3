"""A real RocksDB store through the blob backend: increments are small, restores are exact."""

from pathlib import Path

import pytest

from statekeep.backends.base import BackupContext, CommitContext, RestoreContext, TaskIdentity
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, CheckpointV2, TaskName
from statekeep.stores.factory import open_to_load
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor
from statekeep.testing.versions import STORE, content_at, seal_version

BLOB = BackendName("blob")
TASK = TaskIdentity("job", "main", TaskName("Partition 3"))


class Job:
    """Commits versions of one task, each on the one before."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.factory = BlobBackendFactory(BLOB, {"uri": f"file://{place}"})
        self.contexts: dict[CheckpointId, CommitContext] = {}
        self.last: tuple[CheckpointV2, SealedVersion] | None = None
        self.manager = self.factory.backup_manager(
            BackupContext(TASK, (STORE,), self.contexts.__getitem__, SerialExecutor(), FakeClock())
        )

    async def commit(self, version: SealedVersion) -> CheckpointV2:
        number = len(self.contexts) + 1
        base, base_version = self.last or (None, None)
        checkpoint_id = CheckpointId(0, number)
        self.contexts[checkpoint_id] = CommitContext(
            checkpoint_id, 1, number, version, base, base_version.id if base_version else None
        )
        markers = await self.manager.upload(checkpoint_id, self.manager.snapshot(checkpoint_id))
        checkpoint = CheckpointV2(checkpoint_id, {}, {BLOB: markers})
        self.last = (checkpoint, version)
        return checkpoint

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.place.rglob("*") if path.is_file())

    async def restore(
        self, checkpoint: CheckpointV2, directory: Path, *reusable: SealedVersion
    ) -> int:
        sizes: list[int] = []
        manager = self.factory.restore_manager(
            RestoreContext(
                TASK,
                {STORE: directory},
                reusable,
                lambda name, path: open_to_load(name, "rocksdb", path, is_new=True),
                lambda name, path: open_to_load(name, "rocksdb", path, is_new=False),
                sizes.append,
                lambda total: None,
                SerialExecutor(),
                FakeClock(),
            )
        )
        await manager.init(checkpoint)
        await manager.restore()
        await manager.close()
        return sum(sizes)


@pytest.mark.asyncio
async def test_each_commit_of_a_rocksdb_store_restores_its_own_content(tmp_path: Path) -> None:
    versions = TaskDirectory.of(tmp_path / "local", TASK)
    job = Job(tmp_path / "place")
    await job.manager.init()
    large = {b"%06d" % number: b"v" * 200 for number in range(5_000)}
    first = seal_version(versions, "0_00000000", None, large)
    second = seal_version(versions, "1_00000001", first, {b"000001": b"new", b"000002": None})
    one = await job.commit(first)
    after_first = job.stored_bytes()
    two = await job.commit(second)
    assert job.stored_bytes() - after_first < after_first

    assert await job.restore(one, tmp_path / "one") > 0
    assert content_at(tmp_path / "one") == large
    await job.restore(two, tmp_path / "two")
    changed = {**large, b"000001": b"new"}
    del changed[b"000002"]
    assert content_at(tmp_path / "two") == changed
    await job.manager.close()


@pytest.mark.asyncio
async def test_a_restore_beside_the_identical_version_fetches_nothing(tmp_path: Path) -> None:
    versions = TaskDirectory.of(tmp_path / "local", TASK)
    job = Job(tmp_path / "place")
    await job.manager.init()
    version = seal_version(versions, "0_00000000", None, {b"k": b"v"})
    checkpoint = await job.commit(version)
    assert await job.restore(checkpoint, tmp_path / "restored", version) == 0
    version.verify()
    await job.manager.close()

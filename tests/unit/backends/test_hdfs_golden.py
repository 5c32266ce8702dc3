"""Files that an earlier release wrote stay readable."""

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from statekeep.backends.base import RestoreContext, TaskIdentity
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    Marker,
    StoreName,
    TaskName,
)
from statekeep.stores.memory import MemoryStore
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

GOLDEN = Path(__file__).parents[2] / "golden" / "hdfs"
STATE = StoreName("state")
PLACE = "flights/state-77aa/hdfs/main/Partition%203/state"


@pytest.mark.asyncio
async def test_a_snapshot_and_a_delta_that_were_written_once_are_restored(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "place" / PLACE)
    context = RestoreContext(
        TaskIdentity("flights", "main", TaskName("Partition 3"), "77aa"),
        {STATE: tmp_path / "restored" / "db"},
        (),
        partial(MemoryStore, is_new=True),
        partial(MemoryStore, is_new=False),
        lambda size: None,
        lambda size: None,
        SerialExecutor(),
        FakeClock(),
    )
    uri = f"file://{os.fspath(tmp_path)}/place"
    factory = HdfsBackendFactory(BackendName("hdfs"), {"uri": uri})
    manager = factory.restore_manager(context)
    marker = Marker(f"{PLACE}/21_00000001000000060123456789abcdef")
    await manager.init(CheckpointV2(CheckpointId(1, 2), {}, {BackendName("hdfs"): {STATE: marker}}))
    await manager.restore()
    await manager.close()
    store = MemoryStore(STATE, tmp_path / "restored" / "db", is_new=True)
    content = {b"key %03d" % n: b"value " * 10 for n in range(20)}
    content[b"key 001"] = b"new"
    del content[b"key 002"]
    assert dict(store.scan()) == content
    store.close()

"""What a cancel leaves of a restore: nothing is written once it has ended."""

import asyncio
from pathlib import Path

import pytest
from lagging_kit import TURNS, LaggingExecutor
from object_store_kit import ObjectsInMemory, ObjectStoreRig

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.restored_file import write_small_file
from statekeep.backends.memory import MemoryBackendFactory, forget_place
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.stores.version import SealedVersion
from statekeep.testing.backend_harness import STORE, BackendHarness, Commit
from statekeep.testing.clock import FakeClock
from statekeep.testing.executor import SerialExecutor

OLDER = {"a.sst": b"a" * 100, "CURRENT": b"1", "empty": b""}
NEWER = {**OLDER, "CURRENT": b"2", "sub/b.sst": b"b" * 30, "c.sst": b"c" * 2500}


def blobs_in_memory(root: Path, settings: dict[str, str]) -> BlobBackendFactory:
    return BlobBackendFactory(
        BackendName("blob"),
        {"uri": "elsewhere", **settings},
        make_manager=lambda _, executor: MemoryBlobStoreManager(str(root), executor),
    )


def blobs_in_objects(root: Path, settings: dict[str, str]) -> BlobBackendFactory:
    del root
    client = ObjectsInMemory()
    return BlobBackendFactory(
        BackendName("blob"),
        {"uri": "elsewhere", **settings},
        make_manager=lambda _, executor: ObjectStoreRig(
            client, executor, part_bytes=1000, buffer_bytes=4000
        ).manager(),
    )


def blobs_in_files(root: Path, settings: dict[str, str]) -> BlobBackendFactory:
    return BlobBackendFactory(BackendName("blob"), {"uri": f"{root}/blobs", **settings})


def images_in_memory(root: Path, settings: dict[str, str]) -> MemoryBackendFactory:
    return MemoryBackendFactory(BackendName("memory"), {"place": str(root), **settings})


UNPACKED = {"pack.max.file.bytes": "0"}
ENCODED = {**UNPACKED, "compression": "zstd"}
MAKERS = {
    "packs": (blobs_in_memory, {}),
    "blobs": (blobs_in_memory, UNPACKED),
    "encoded": (blobs_in_memory, ENCODED),
    "files": (blobs_in_files, UNPACKED),
    "objects": (blobs_in_objects, UNPACKED),
    "memory": (images_in_memory, {}),
}


class Rig:
    """A task with an older version on this disk and a newer commit that is to be restored."""

    def __init__(self, factory: StateBackendFactory, root: Path) -> None:
        self.factory = factory
        self.writer = BackendHarness(factory, SerialExecutor(), FakeClock(), root / "writer")

    async def commit(self) -> tuple[SealedVersion, Commit]:
        await self.writer.start()
        version = self.writer.seal(OLDER)
        commit = await self.writer.commit(self.writer.seal(NEWER))
        await self.writer.close()
        return version, commit


def files(reader: Path) -> dict[str, bytes]:
    """Return everything that a restore has written."""
    below = reader.rglob("*")
    return {str(path): path.read_bytes() for path in below if path.is_file()}


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", MAKERS)
async def test_nothing_is_written_once_a_cancelled_restore_has_ended(
    tmp_path: Path, kind: str
) -> None:
    make, settings = MAKERS[kind]
    rig = Rig(make(tmp_path, settings), tmp_path)
    older, commit = await rig.commit()
    number = 0
    while True:
        number += 1
        executor = LaggingExecutor()
        root = tmp_path / f"reader-{number}"
        reader = BackendHarness(rig.factory, executor, FakeClock(), root)
        executor.lagging = number
        restoring = asyncio.create_task(reader.restore(commit.checkpoint, reusable=[older]))
        lagging = asyncio.create_task(executor.is_lagging.wait())
        await asyncio.wait({restoring, lagging}, return_when=asyncio.FIRST_COMPLETED)
        if restoring.done():
            lagging.cancel()
            break
        restoring.cancel()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not restoring.done():
            await executor.catch_up()
            await asyncio.wait({restoring})
        assert restoring.cancelled()
        left = files(root)
        await executor.catch_up()
        assert files(root) == left
    assert number > 1
    assert restoring.result().content == {STORE: NEWER}
    forget_root(str(tmp_path))
    forget_place(str(tmp_path))


def test_a_small_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    sealed, restored = tmp_path / "sealed", tmp_path / "restored"
    sealed.write_bytes(b"sealed")
    restored.hardlink_to(sealed)
    write_small_file(restored, [b"new"])
    assert (sealed.read_bytes(), restored.read_bytes()) == (b"sealed", b"new")

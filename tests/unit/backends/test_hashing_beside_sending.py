"""Large files are hashed while they are sent, and never by all of the threads that send them."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob import content_writer
from statekeep.backends.blob.diff import LocalFile
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.image import FileDigests, digest_sealed_file
from statekeep.backends.blob_store import BlobMetadata, BlobStoreManager
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.commit.executor import BoundedExecutor
from statekeep.testing.backend_harness import STORE, BackendHarness
from statekeep.testing.clock import FakeClock

pytestmark = pytest.mark.timeout(30)
THREADS = 4
CONTENT = {f"{number}.sst": bytes([number]) * (2 << 20) for number in range(6)}


@pytest.mark.asyncio
async def test_files_are_sent_while_others_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[Path] = set()
    all_sent = threading.Event()

    class Noting(MemoryBlobStoreManager):
        @override
        async def put(
            self,
            name: str,
            content: bytes | Path,
            metadata: BlobMetadata,
            *,
            if_absent: bool = False,
        ) -> str:
            blob_id = await super().put(name, content, metadata, if_absent=if_absent)
            if isinstance(content, Path):
                sent.add(content)
                if len(sent) == len(CONTENT):
                    all_sent.set()
            return blob_id

    def make(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
        return Noting(settings["uri"], executor)

    def digest_late(path: Path, file: LocalFile) -> FileDigests:
        assert all_sent.wait(10)
        return digest_sealed_file(path, file)

    monkeypatch.setattr(content_writer, "digest_sealed_file", digest_late)
    settings = {"uri": str(tmp_path), "part.bytes": "1MiB"}
    factory = BlobBackendFactory(BackendName("blob"), settings, make_manager=make)
    executor = BoundedExecutor(THREADS, "test")
    task = BackendHarness(factory, executor, FakeClock(), tmp_path)
    await task.start()
    commit = await task.commit(task.seal(CONTENT))
    assert (await task.restore(commit.checkpoint)).content == {STORE: CONTENT}
    await task.close()
    await executor.close()
    forget_root(str(tmp_path))

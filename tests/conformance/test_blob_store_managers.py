"""Our blob store managers and the wrappers around them keep to one contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.retry import RetryPolicy
from statekeep.backends.storage.memory import MemoryBlobStoreManager, forget_root
from statekeep.backends.storage.requests import RequestingBlobStoreManager, Requests, TransferLimits
from statekeep.testing.blob_store_tests import BlobStoreManagerTests
from statekeep.testing.clock import FakeClock
from statekeep.testing.storage import bare_manager


class TestFsspecManagerOnADirectory(BlobStoreManagerTests):
    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        return bare_manager(f"file://{place}", {}, executor)

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        return (place / blob_id).read_bytes()


class TestMemoryManager(BlobStoreManagerTests):
    @pytest.fixture(autouse=True)
    def forgotten(self, place: Path) -> Iterator[None]:
        yield
        forget_root(str(place))

    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        manager = MemoryBlobStoreManager(str(place), executor)
        self.blobs = manager._blobs
        return manager

    @override
    def read_back(self, place: Path, blob_id: str) -> bytes:
        return self.blobs[blob_id]


class TestWrappedManager(TestFsspecManagerOnADirectory):
    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        limits = TransferLimits(
            "blob",
            max_in_flight=2,
            task_max_in_flight=2,
            buffer_bytes=1 << 20,
            bytes_per_second=1 << 20,
        )
        requests = Requests(limits, executor, FakeClock(), RetryPolicy())
        return RequestingBlobStoreManager(super().make_manager(place, executor), requests)

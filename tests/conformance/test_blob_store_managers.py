"""Our blob store managers and the wrappers around them keep to one contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor
from statekeep.backends.blob.managers.fsspec_manager import FsspecBlobStoreManager
from statekeep.backends.blob.managers.memory_manager import MemoryBlobStoreManager, forget_root
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.pacing import TokenBucket
from statekeep.backends.retry import Retrier, RetryPolicy
from statekeep.backends.wrappers import (
    InFlightLimit,
    LimitedBlobStoreManager,
    LoggedBlobStoreManager,
    PacedBlobStoreManager,
    RetryingBlobStoreManager,
)
from statekeep.testing.blob_store_tests import BlobStoreManagerTests
from statekeep.testing.clock import FakeClock


class TestFsspecManagerOnADirectory(BlobStoreManagerTests):
    @override
    def make_manager(self, place: Path, executor: BlockingExecutor) -> BlobStoreManager:
        return FsspecBlobStoreManager(f"file://{place}", {}, executor)

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
        clock = FakeClock()
        logged = LoggedBlobStoreManager(super().make_manager(place, executor), "blob", clock)
        limited = LimitedBlobStoreManager(logged, InFlightLimit(2))
        paced = PacedBlobStoreManager(limited, TokenBucket(1 << 20, clock), executor)
        return RetryingBlobStoreManager(paced, Retrier(RetryPolicy(), clock), executor)

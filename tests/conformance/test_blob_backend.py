"""The blob backend keeps to the contract, on a directory and on blobs in memory."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from statekeep.backends.base import BlobStoreManager, BlockingExecutor, StateBackendFactory
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob.managers.memory_manager import (
    MemoryBlobStoreManager,
    forget_root,
)
from statekeep.checkpoint.checkpoints import BackendName, Marker
from statekeep.testing.backend_tests import StateBackendTests
from statekeep.testing.sealed_files import StoreContent


def files_of(index: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield (path, blob ids) of an index's files, read as plain JSON."""
    for file in index["files-present"]:
        blobs = sorted(file["blobs"], key=lambda blob: blob["offset"])
        yield path + file["file-name"], [blob["blob-id"] for blob in blobs]
    for sub_dir in index["sub-dirs-present"]:
        yield from files_of(sub_dir, f"{path}{sub_dir['dir-name']}/")


class TestBlobBackendOnADirectory(StateBackendTests):
    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        return BlobBackendFactory(BackendName("blob"), {"uri": f"file://{place}"})

    def path(self, factory: StateBackendFactory, name: str) -> Path:
        return Path(factory.settings["uri"].removeprefix("file://")) / name

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        index = json.loads(self.path(factory, marker).read_bytes())
        return {
            path: b"".join(self.path(factory, blob_id).read_bytes() for blob_id in blob_ids)
            for path, blob_ids in files_of(index["dir-index"])
        }

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        root = self.path(factory, "")
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        index = json.loads(self.path(factory, marker).read_bytes())
        blobs = {blob_id for _, ids in files_of(index["dir-index"]) for blob_id in ids}
        return {marker, *blobs}

    @override
    def damage(self, factory: StateBackendFactory, name: str) -> None:
        path = self.path(factory, name)
        path.write_bytes(flipped(path.read_bytes()))

    @override
    def remove(self, factory: StateBackendFactory, name: str) -> None:
        self.path(factory, name).unlink()


class MemoryFactory(BlobBackendFactory):
    """A blob backend on blobs in memory, as a plug-in's client would be."""


def memory_manager(settings: Mapping[str, str], executor: BlockingExecutor) -> BlobStoreManager:
    return MemoryBlobStoreManager(settings["uri"], executor)


class TestBlobBackendOnMemory(StateBackendTests):
    @pytest.fixture(autouse=True)
    def forgotten(self, tmp_path: Path) -> Iterator[None]:
        yield
        forget_root(str(tmp_path / "place"))

    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        settings = {"uri": str(place)}
        return BlobBackendFactory(BackendName("blob"), settings, make_manager=memory_manager)

    def blobs(self, factory: StateBackendFactory) -> dict[str, bytes]:
        return memory_root(factory.settings["uri"])

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        blobs = self.blobs(factory)
        index = json.loads(blobs[marker])
        return {
            path: b"".join(blobs[blob_id] for blob_id in blob_ids)
            for path, blob_ids in files_of(index["dir-index"])
        }

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        return set(self.blobs(factory))

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        index = json.loads(self.blobs(factory)[marker])
        return {marker}.union(*(ids for _, ids in files_of(index["dir-index"])))

    @override
    def damage(self, factory: StateBackendFactory, name: str) -> None:
        blobs = self.blobs(factory)
        blobs[name] = flipped(blobs[name])

    @override
    def remove(self, factory: StateBackendFactory, name: str) -> None:
        del self.blobs(factory)[name]


def memory_root(root: str) -> dict[str, bytes]:
    """Return the dictionary behind a root."""
    return MemoryBlobStoreManager(root, NoExecutor())._blobs


class NoExecutor:
    """For a manager that makes no call."""

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError


def flipped(data: bytes) -> bytes:
    """Flip a bit; nothing becomes something and that nothing again."""
    if len(data) < 2:
        return b"" if data else b"x"
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]

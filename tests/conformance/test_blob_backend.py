"""The blob backend keeps to the contract, on a directory and on blobs in memory."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from encoded_kit import KEY_LINE, place_of, plain_index, read_stream
from typing_extensions import override

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.backends.blob.factory import BlobBackendFactory
from statekeep.backends.blob_store import BlobStoreManager
from statekeep.backends.storage.memory import (
    MemoryBlobStoreManager,
    forget_root,
)
from statekeep.checkpoint.checkpoints import BackendName, Marker
from statekeep.testing.backend_tests import StateBackendTests
from statekeep.testing.sealed_files import StoreContent


def files_of(index: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (path, file) of an index's files, read as plain JSON."""
    for file in index["files-present"]:
        yield path + file["file-name"], file
    for sub_dir in index["sub-dirs-present"]:
        yield from files_of(sub_dir, f"{path}{sub_dir['dir-name']}/")


def blobs_of(index: Mapping[str, Any]) -> set[str]:
    return {blob["blob-id"] for _, file in files_of(index) for blob in file["blobs"]}


def content_of(file: Mapping[str, Any], read: Callable[[str], bytes]) -> bytes:
    """Put a file together by its index."""
    blobs = sorted(file["blobs"], key=lambda blob: blob["offset"])
    stored = b"".join(part_of_blob(blob, read(blob["blob-id"])) for blob in blobs)
    if "stored-form" not in file:
        return stored
    return read_stream(stored, place_of(blobs[0]["blob-id"], blobs[0]["range"]["start"]))


def part_of_blob(blob: Mapping[str, Any], stored: bytes) -> bytes:
    if "range" not in blob:
        return stored
    start = blob["range"]["start"]
    return stored[start : start + blob["range"]["size"]]


class TestBlobBackendOnADirectory(StateBackendTests):
    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        return BlobBackendFactory(BackendName("blob"), {"uri": f"file://{place}"})

    def path(self, factory: StateBackendFactory, name: str) -> Path:
        return Path(factory.settings["uri"].removeprefix("file://")) / name

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        index = json.loads(plain_index(self.path(factory, marker).read_bytes(), marker))
        return {
            path: content_of(file, lambda blob_id: self.path(factory, blob_id).read_bytes())
            for path, file in files_of(index["dir-index"])
        }

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        root = self.path(factory, "")
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        index = json.loads(plain_index(self.path(factory, marker).read_bytes(), marker))
        return {marker, *blobs_of(index["dir-index"])}

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
    settings: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture(autouse=True)
    def forgotten(self, tmp_path: Path) -> Iterator[None]:
        yield
        forget_root(str(tmp_path / "place"))

    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        settings = {"uri": str(place), **self.settings}
        return BlobBackendFactory(BackendName("blob"), settings, make_manager=memory_manager)

    def blobs(self, factory: StateBackendFactory) -> dict[str, bytes]:
        return memory_root(factory.settings["uri"])

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        blobs = self.blobs(factory)
        index = json.loads(plain_index(blobs[marker], marker))
        files = files_of(index["dir-index"])
        return {path: content_of(file, blobs.__getitem__) for path, file in files}

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        return set(self.blobs(factory))

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        index = json.loads(plain_index(self.blobs(factory)[marker], marker))
        return {marker, *blobs_of(index["dir-index"])}

    @override
    def damage(self, factory: StateBackendFactory, name: str) -> None:
        blobs = self.blobs(factory)
        blobs[name] = flipped(blobs[name])

    @override
    def remove(self, factory: StateBackendFactory, name: str) -> None:
        del self.blobs(factory)[name]


class TestUnpackedBlobBackend(TestBlobBackendOnMemory):
    settings: ClassVar[Mapping[str, str]] = {"pack.max.file.bytes": "0"}


class TestEncodedBlobBackend(TestBlobBackendOnMemory):
    settings: ClassVar[Mapping[str, str]] = {
        "compression": "zstd",
        "encryption": "aes-256-gcm",
        "encryption.keys": "env:STATEKEEP_TEST_KEYS",
    }

    @pytest.fixture(autouse=True)
    def keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STATEKEEP_TEST_KEYS", KEY_LINE)


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

"""The HDFS backend keeps to the contract, on a directory and on a filesystem of fsspec."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from hdfs_kit import HdfsKit
from typing_extensions import override

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.hdfs.factory import HdfsBackendFactory
from statekeep.checkpoint.checkpoints import BackendName


class TestHdfsBackendOnADirectory(HdfsKit):
    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        settings = {"uri": f"file://{place}", "compression": "none"}
        return HdfsBackendFactory(BackendName("hdfs"), settings)

    def root(self, factory: StateBackendFactory) -> Path:
        return Path(factory.settings["uri"].removeprefix("file://"))

    @override
    def stored_files(self, factory: StateBackendFactory) -> dict[str, bytes]:
        root = self.root(factory)
        paths = [path for path in root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}

    @override
    def replace(self, factory: StateBackendFactory, name: str, data: bytes | None) -> None:
        path = self.root(factory) / name
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)


class TestHdfsBackendOnAFilesystemOfFsspec(HdfsKit):
    """One that is neither local nor HDFS, and writes a file whole."""

    @pytest.fixture(autouse=True)
    def clean(self) -> Iterator[None]:
        yield
        MemoryFileSystem.store.clear()

    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        settings = {"uri": f"memory:/{place}", "compression": "none"}
        return HdfsBackendFactory(BackendName("hdfs"), settings)

    def root(self, factory: StateBackendFactory) -> str:
        return factory.settings["uri"].removeprefix("memory:/")

    @override
    def stored_files(self, factory: StateBackendFactory) -> dict[str, bytes]:
        root = self.root(factory)
        files: dict[str, Any] = MemoryFileSystem.store
        return {
            path.removeprefix(f"{root}/"): file.getvalue()
            for path, file in files.items()
            if path.startswith(f"{root}/")
        }

    @override
    def replace(self, factory: StateBackendFactory, name: str, data: bytes | None) -> None:
        path = f"{self.root(factory)}/{name}"
        filesystem = MemoryFileSystem()
        filesystem.rm_file(path)
        if data is not None:
            filesystem.pipe_file(path, data)

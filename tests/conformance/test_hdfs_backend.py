"""The HDFS backend keeps to the contract, on a directory."""

from pathlib import Path

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

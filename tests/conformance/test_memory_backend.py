"""The in-memory backend keeps to the contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.memory import MemoryBackendFactory, forget_place, memory_place
from statekeep.checkpoint.checkpoints import BackendName, Marker
from statekeep.testing.backend_tests import StateBackendTests
from statekeep.testing.sealed_files import StoreContent


class TestMemoryBackend(StateBackendTests):
    @pytest.fixture(autouse=True)
    def forgotten(self, tmp_path: Path) -> Iterator[None]:
        yield
        forget_place(str(tmp_path / "place"))

    @override
    def make_factory(self, place: Path) -> StateBackendFactory:
        return MemoryBackendFactory(BackendName("memory"), {"place": str(place)})

    @override
    def read_back(self, factory: StateBackendFactory, marker: Marker) -> StoreContent:
        image = memory_place(factory.settings["place"]).images[marker]
        return {str(path): data for path, data in image.files.items()}

    @override
    def stored(self, factory: StateBackendFactory) -> set[str]:
        return set(memory_place(factory.settings["place"]).images)

    @override
    def reached(self, factory: StateBackendFactory, marker: Marker) -> set[str]:
        return {marker}

    @override
    def damage(self, factory: StateBackendFactory, name: str) -> None:
        files = dict(memory_place(factory.settings["place"]).images[Marker(name)].files)
        path = next(path for path, data in files.items() if data)
        files[path] = bytes([files[path][0] ^ 1]) + files[path][1:]
        images = memory_place(factory.settings["place"]).images
        images[Marker(name)] = type(images[Marker(name)])(
            images[Marker(name)].owner,
            images[Marker(name)].attempt,
            files,
            images[Marker(name)].checksums,
            images[Marker(name)].directories,
        )

    @override
    def remove(self, factory: StateBackendFactory, name: str) -> None:
        del memory_place(factory.settings["place"]).images[Marker(name)]

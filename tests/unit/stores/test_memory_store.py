"""MemoryStore: the conformance kit, damage, shared images."""

from pathlib import Path

import pytest
from hypothesis import settings
from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.errors import VersionDamagedError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import IMAGE_FILE, MemoryStore
from statekeep.testing.store_tests import KeyValueStoreMachine, KeyValueStoreTests

NAME = StoreName("state")


class TestMemoryStore(KeyValueStoreTests):
    @override
    def open_store(self, directory: Path) -> KeyValueStore:
        return MemoryStore(NAME, directory, is_new=not directory.exists())


class MemoryMachine(KeyValueStoreMachine):
    @override
    def open_store(self, directory: Path) -> KeyValueStore:
        return MemoryStore(NAME, directory, is_new=not directory.exists())


MemoryMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, derandomize=True
)
TestMemoryMachine = MemoryMachine.TestCase


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(NAME, tmp_path / "a", is_new=True)
    store.put(b"key", b"value")
    store.checkpoint(tmp_path / "b")
    store.close()
    image = tmp_path / "b" / IMAGE_FILE
    image.write_bytes(image.read_bytes()[:-1])
    with pytest.raises(VersionDamagedError, match=r"store is damaged.*hint: start again"):
        MemoryStore(NAME, tmp_path / "b", is_new=True)


def test_a_store_that_was_not_written_leaves_its_image_alone(tmp_path: Path) -> None:
    store = MemoryStore(NAME, tmp_path, is_new=True)
    store.put(b"key", b"value")
    store.close()
    before = (tmp_path / IMAGE_FILE).stat().st_ino
    MemoryStore(NAME, tmp_path, is_new=True).close()
    assert (tmp_path / IMAGE_FILE).stat().st_ino == before

"""The harness for backends that upload changes: its versions are real stores of keys and values."""

from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.stores.base import KeyValueStore
from statekeep.stores.factory import open_store
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion
from statekeep.testing.backend_harness import BackendHarness
from statekeep.testing.sealed_files import StoreContent


class KeyValueHarness(BackendHarness):
    """One task whose stores are in memory, with captured changes.

    What the kit calls a file is a key, and the file's bytes are its value.
    """

    @override
    def open_store(self, name: StoreName, directory: Path) -> KeyValueStore:
        return open_store(name, "memory", directory, is_new=not directory.exists())

    @override
    def read_content(self, store: StoreName, directory: Path) -> StoreContent:
        opened = self.open_store(store, directory)
        try:
            return {key.decode(): value for key, value in opened.scan()}
        finally:
            opened.close()

    @override
    def _seal(
        self,
        number: int,
        content: Mapping[StoreName, StoreContent],
        parent: SealedVersion | None,
    ) -> SealedVersion:
        directory = TaskDirectory(self.versions, self.task)
        uid = f"{number:08x}"
        with directory.begin(uid, parent, self.stores, captured=self.stores) as work:
            for name, entries in content.items():
                store = work.open_store(name, "memory")
                wanted = {path.encode(): data for path, data in entries.items()}
                gone = [key for key, _ in store.scan() if key not in wanted]
                changed = {key: value for key, value in wanted.items() if store.get(key) != value}
                store.write({**dict.fromkeys(gone), **changed})
            return work.seal(number, uid, parent)

"""Opens local stores by the name of their engine."""

from pathlib import Path

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.store_keys import StoreFactoryName
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import MemoryStore
from statekeep.stores.rocksdb import RocksDbOptions, RocksDbStore


def open_store(
    name: StoreName,
    kind: StoreFactoryName,
    directory: Path,
    options: RocksDbOptions | None = None,
) -> KeyValueStore:
    """Open the store in ``directory``, an empty one where there is none.

    Args:
        name: The store's name, for errors.
        kind: The engine, as ``stores.<name>.factory`` says.
        directory: Holds nothing but this store.
        options: Of the RocksDB engine; None: its defaults.

    Raises:
        VersionDamagedError: What lies in ``directory`` is damaged.
        ConfigError: The disk is full or the directory not writable.
        StateBackupError: The store is open already.
    """
    match kind:
        case "rocksdb":
            return RocksDbStore(name, directory, options)
        case "memory":
            return MemoryStore(name, directory)


def open_to_load(
    name: StoreName,
    kind: StoreFactoryName,
    directory: Path,
    options: RocksDbOptions | None = None,
) -> KeyValueStore:
    """Open a store as `open_store` does, for a restore: much is written, then all is read at most.

    What was loaded and closed is opened by `open_store` like any other.
    """
    match kind:
        case "rocksdb":
            return RocksDbStore(name, directory, options, is_to_load=True)
        case "memory":
            return MemoryStore(name, directory)

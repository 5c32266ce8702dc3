"""Opens local stores by the name of their engine, and checks that an image can be opened."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from statekeep.checkpoint.checkpoints import StoreName
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import ConfigError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.memory import IMAGE_FILE, MemoryStore, check_memory_image
from statekeep.stores.rocksdb import (
    CURRENT_FILE,
    RocksDbOptions,
    RocksDbStore,
    check_rocksdb_image,
)


def open_store(
    name: StoreName,
    kind: StoreFactoryName,
    directory: Path,
    options: RocksDbOptions | None = None,
    *,
    is_new: bool,
    on_damage: Callable[[], None] = lambda: None,
) -> KeyValueStore:
    """Open the store in ``directory``.

    Args:
        name: The store's name, for errors.
        kind: The engine, as ``stores.<name>.factory`` says.
        directory: Holds nothing but this store.
        options: Of the RocksDB engine; None: its defaults.
        is_new: Nothing was ever stored: an empty store is created where there is none. Else an
            empty directory is damage.
        on_damage: Called when RocksDB reads what is damaged, on the thread that reads.

    Raises:
        VersionDamagedError: What lies in ``directory`` is damaged or missing.
        ConfigError: The disk is full or the directory not writable.
        StateBackupError: The store is open already.
    """
    match kind:
        case "rocksdb":
            return RocksDbStore(name, directory, options, is_new=is_new, on_damage=on_damage)
        case "memory":
            return MemoryStore(name, directory, is_new=is_new)


def open_to_load(
    name: StoreName,
    kind: StoreFactoryName,
    directory: Path,
    options: RocksDbOptions | None = None,
    *,
    is_new: bool,
) -> KeyValueStore:
    """Open a store as `open_store` does, for a restore: much is written, then all is read at most.

    What was loaded and closed is opened by `open_store` like any other.
    """
    match kind:
        case "rocksdb":
            return RocksDbStore(name, directory, options, is_new=is_new, is_to_load=True)
        case "memory":
            return MemoryStore(name, directory, is_new=is_new)


def check_image(
    name: StoreName,
    kind: StoreFactoryName,
    directory: Path,
    *,
    is_deep: bool,
    is_cancelled: threading.Event | None = None,
) -> None:
    """Make sure that the image in ``directory`` holds what the engine needs, by opening it once.

    Checksums of an image prove that it is what was sealed or stored, not that it was sound then.

    Args:
        name: The store's name, for errors.
        kind: The engine that is to open it.
        directory: A private copy of the image.
        is_deep: Read every record too. An image in memory is always read.
        is_cancelled: Ends a deep check soon.

    Raises:
        VersionDamagedError: It is empty, lacks a file or is damaged.
        ConfigError: Another engine made it; or the disk is full or not writable.
        UnknownFormatError: A newer version of Statekeep wrote it.
    """
    match kind:
        case "rocksdb":
            own, other = CURRENT_FILE, IMAGE_FILE
        case "memory":
            own, other = IMAGE_FILE, CURRENT_FILE
        case _:
            assert_never(kind)
    if (directory / other).exists() and not (directory / own).exists():
        raise ConfigError(
            f"another engine made the image of the store: store={name} factory={kind} "
            f"directory={directory}",
            key=f"stores.{name}.factory",
            hint="set the engine that the job had when it was backed up",
        )
    if kind == "memory":
        check_memory_image(directory)
    else:
        check_rocksdb_image(
            name, directory, is_deep=is_deep, is_cancelled=is_cancelled or threading.Event()
        )

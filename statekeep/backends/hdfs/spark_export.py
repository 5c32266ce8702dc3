"""Going back to files without unique ids: a store's content for Spark's own provider."""

import os
from pathlib import Path

from statekeep.backends.hdfs.spark_files import write_spark_file
from statekeep.stores.base import KeyValueStore
from statekeep.stores.local_files import explained_errors, sync_directory


def export_snapshot(store: KeyValueStore, directory: Path, version: int) -> Path:
    """Write a store's content as ``<directory>/<version>.snapshot``; return that path.

    Spark's ``HDFSBackedStateStoreProvider`` reads it as the state before the batch of that number,
    if keys and values are as the operator of Spark encodes them: those of a state that was started
    from Spark's files are. Blocking. The file has its name once it is whole and durable; one of
    that name is replaced.

    Args:
        store: Open; not written meanwhile.
        directory: ``<checkpoint location>/state/<operator>/<partition>``, or where it is copied
            from. Files of later versions there must be removed first.
        version: From 1: the number of batches that the content holds.

    Raises:
        ValueError: The version is below 1.
        ConfigError: The disk is full or not writable.
    """
    if version < 1:
        msg = f"a version of a state store is below 1: version={version}"
        raise ValueError(msg)
    target = directory / f"{version}.snapshot"
    temporary = target.with_name(f".{target.name}.tmp")
    with explained_errors(directory):
        with temporary.open("wb") as file:
            write_spark_file(store.scan(), file)
            file.flush()
            os.fsync(file.fileno())
        # On a local disk, Hadoop keeps a checksum beside each file, and believes an old one.
        target.with_name(f".{target.name}.crc").unlink(missing_ok=True)
        temporary.replace(target)
        sync_directory(directory)
    return target

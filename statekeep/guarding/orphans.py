"""Files of state that no batch needs: Spark's maintenance has not deleted them yet, or never will.

Spark deletes old versions in the background of a query that runs for long enough. What a query leaves that is
started by a timer and ends soon, a task that was killed, or a run with more partitions, stays.

Source: Spark 4.3 ``RocksDBFileManager.deleteOldVersions``, ``HDFSBackedStateStoreProvider.cleanup``,
``CheckpointFileManager`` (temporary files).
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from statekeep.guarding.batch_files import BatchFiles
from statekeep.guarding.spark_location import DamageError, SparkLocation
from statekeep.guarding.store_files import parts_of_name, rocksdb_files

_TEMPORARY: Final = re.compile(r"\..+\.tmp")
"""What Spark renames once it is written, unless it is killed before."""
_DESCRIPTIONS: Final = frozenset({"_metadata", "_stateSchema"})
_OF_SNAPSHOTS: Final = ("/SSTs/", "/logs/")


def orphans_of(location: SparkLocation, looks: Sequence[BatchFiles]) -> Mapping[str, int]:
    """Return files that none of these batches needs, with their sizes. It reads small files, and blocks.

    What belongs to a batch that has begun is none of them, but for SST files whose snapshot it has not written yet.

    Args:
        location: As it was listed.
        looks: All batches after which Spark can go on.

    Raises:
        ConfigError: The location cannot be reached.
    """
    needed = {file for look in looks for file in look.files} | _of_open_batch(location)
    stems: dict[str, set[str]] = {}
    for file in needed:
        directory, _, name = file.rpartition("/")
        found = parts_of_name(name)
        if found is not None:
            stems.setdefault(directory, set()).add(found.stem)
    newest = _newest_version(location)

    def is_orphan(path: str) -> bool:
        directory, _, name = path.rpartition("/")
        if name.startswith(".") and name.endswith(".crc"):  # Hadoop's checksum of the file
            name = name[1:].removesuffix(".crc")
        if _TEMPORARY.fullmatch(name):
            return True
        file = f"{directory}/{name}"
        if not file.startswith("state/") or _DESCRIPTIONS & {*file.split("/")}:
            return False
        found = parts_of_name(name.removesuffix(".crc"))
        if found is not None:  # a change beside a snapshot of its version stands in for it
            return found.version <= newest and found.stem not in stems.get(directory, ())
        return any(kind in file for kind in _OF_SNAPSHOTS) and file not in needed

    return {path: file.size for path, file in sorted(location.found.items()) if is_orphan(path)}


def _newest_version(location: SparkLocation) -> int:
    return max(location.numbers("commits"), default=-1) + 1


def _of_open_batch(location: SparkLocation) -> set[str]:
    """Return the files that snapshots of RocksDB name which are newer than each commit."""
    newest = _newest_version(location)
    found: set[str] = set()
    for directory, names in location.directories.items():
        for name in names:
            parts = parts_of_name(name)
            if parts is not None and parts.ending == "zip" and parts.version > newest:
                path = f"{directory}/{name}"
                with suppress(DamageError):  # it is being written, or gone
                    files = rocksdb_files(location.read(path), path)
                    found |= {f"{directory}/{kind}/{file}" for kind, file, _ in files}
    return found

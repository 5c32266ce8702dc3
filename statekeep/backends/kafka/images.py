"""Looking into sealed versions; every function blocks, on the local disk."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import CheckpointCorruptError, UnknownFormatError, VersionDamagedError
from statekeep.stores.base import KeyValueStore
from statekeep.stores.delta import Change, DeltaReader, Records
from statekeep.stores.local_files import open_regular
from statekeep.stores.memory import IMAGE_FILE
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

_MAX_MERGED_BYTES: Final = 64 << 20
"""Changes that are larger than this are not merged in memory."""


@contextmanager
def opened_image(version: SealedVersion, store: StoreName, uid: str) -> Generator[KeyValueStore]:
    """Open a store of a version for reading, on a clone of its image.

    The clone is a work directory beside the version: a sweep finds what a crash leaves.

    Args:
        version: Not changed.
        store: Empty where the version has no image of it.
        uid: Never used before.

    Raises:
        VersionDamagedError: The version is gone or not whole.
    """
    names = {entry.path for entry in version.store_files(store)}
    kind: StoreFactoryName = "memory" if IMAGE_FILE in names else "rocksdb"
    task = TaskDirectory(version.directory.parent, version.manifest)
    with task.begin(uid, version, (store,)) as work:
        yield work.open_store(store, kind)


def find_beside(version: SealedVersion, other: VersionId) -> SealedVersion | None:
    """Return another version of the same task if it is on this disk and can be read."""
    if other == version.id:
        return version
    try:
        return TaskDirectory(version.directory.parent, version.manifest).find(other)
    except (VersionDamagedError, UnknownFormatError):
        return None


def are_few(paths: Sequence[Path]) -> bool:
    """Return whether a row of deltas can be merged in memory.

    Raises:
        FileNotFoundError: One is gone.
    """
    return sum(path.stat().st_size for path in paths) <= _MAX_MERGED_BYTES


def merged_changes(paths: Sequence[Path]) -> Mapping[bytes, bytes | None]:
    """Return what a row of deltas comes to: the last change of each key.

    Raises:
        VersionDamagedError: One is damaged or gone.
    """
    merged: dict[bytes, bytes | None] = {}
    for block in _blocks(paths):
        merged.update(block)
    return merged


def changes_in_order(paths: Sequence[Path]) -> Iterator[Change]:
    """Yield the changes of a row of deltas as they stand there: the last one of a key holds.

    Raises:
        VersionDamagedError: One is damaged or gone, here or further on.
    """
    for block in _blocks(paths):
        yield from block


def _blocks(paths: Sequence[Path]) -> Iterator[Records]:
    try:
        for path in paths:
            with open_regular(path) as file:
                yield from DeltaReader(file, where=f"path={path}").blocks()
    except (FileNotFoundError, CheckpointCorruptError) as exc:
        raise VersionDamagedError(f"changes of a version are damaged: paths={paths}") from exc

"""What is done on the local disk; but for `work_directory`, every function blocks."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import BlockingExecutor
from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.config.store_settings import StoreFactoryName
from statekeep.errors import CheckpointCorruptError, VersionDamagedError
from statekeep.stores.block_codec import BlockCodec
from statekeep.stores.delta import DeltaHeader, DeltaReader, DeltaWriter
from statekeep.stores.local_files import explained_errors, open_regular
from statekeep.stores.memory import IMAGE_FILE
from statekeep.stores.task_directory import TaskDirectory, WorkDirectory
from statekeep.stores.version import SealedVersion


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is to be uploaded."""

    size: int
    """Bytes."""
    sha256: str
    """Hex."""


@asynccontextmanager
async def work_directory(
    executor: BlockingExecutor, version: SealedVersion, stores: Sequence[StoreName], uid: str
) -> AsyncGenerator[WorkDirectory]:
    """Make a work directory beside a version, with a clone of some of its stores.

    It is gone after, also when this is cancelled; what a crash leaves is swept with others.

    Args:
        executor: For the blocking calls.
        version: Not changed.
        stores: Those to clone; may be none.
        uid: Names the directory; never used before.

    Raises:
        VersionDamagedError: The version is gone or not whole.
        ConfigError: The disk is full or not writable.
    """
    made: list[WorkDirectory] = []

    def begin() -> None:
        task = TaskDirectory(version.directory.parent, version.manifest)
        made.append(task.begin(uid, version if stores else None, tuple(stores)))

    try:
        await run_to_end(executor, begin)
        yield made[0]
    finally:
        for work in made:
            await run_to_end(executor, work.discard)


def write_delta(
    changes: Sequence[Path], target: Path, header: DeltaHeader, codec: BlockCodec
) -> WrittenFile:
    """Write the records of a version's deltas, in order, as one delta.

    Raises:
        VersionDamagedError: A delta of the version is gone or damaged.
        ConfigError: The disk is full or not writable.
    """
    with explained_errors(target.parent), target.open("xb") as file:
        writer = DeltaWriter(file, header, codec=codec)
        for path in changes:
            try:
                with open_regular(path) as source:
                    for block in DeltaReader(source, where=f"path={path}").blocks():
                        writer.write_entries(block)
            except (FileNotFoundError, CheckpointCorruptError) as exc:
                raise VersionDamagedError(f"changes of a version are damaged: path={path}") from exc
        writer.finish()
    return _written(target)


def write_snapshot(
    work: WorkDirectory,
    version: SealedVersion,
    store: StoreName,
    *,
    target: Path,
    header: DeltaHeader,
    codec: BlockCodec,
) -> WrittenFile:
    """Write the whole content of a store, in order of its keys.

    Args:
        work: Holds a clone of the version's store.
        version: Says which engine wrote the store.
        store: The store.
        target: A file in ``work`` that does not exist yet.
        header: Of the file.
        codec: For the blocks.

    Raises:
        VersionDamagedError: The store's image is damaged.
        ConfigError: The disk is full or not writable.
    """
    names = {entry.path for entry in version.store_files(store)}
    kind: StoreFactoryName = "memory" if IMAGE_FILE in names else "rocksdb"
    opened = work.open_store(store, kind)
    with explained_errors(target.parent), target.open("xb") as file:
        writer = DeltaWriter(file, header, codec=codec)
        writer.write_entries(opened.scan())
        writer.finish()
    return _written(target)


def _written(path: Path) -> WrittenFile:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return WrittenFile(file.tell(), sha256)


def path_of(work: WorkDirectory, file_id: VersionId) -> Path:
    """Return where in a work directory a file is written before it is uploaded."""
    return work.path / f"{file_id}.part"

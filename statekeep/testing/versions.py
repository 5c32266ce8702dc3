"""Short ways to make and to read sealed versions in tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from statekeep.checkpoint.checkpoints import StoreName, VersionId
from statekeep.stores.delta import Change, DeltaReader
from statekeep.stores.factory import open_store
from statekeep.stores.local_files import clone_image
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

STORE: Final = StoreName("state")


@dataclass(frozen=True, slots=True)
class FakeTask:
    """Whose state it is, for tests that need no backend."""

    job_name: str = "job"
    operator: str = "main"
    task_name: str = "Partition 3"


def seal_version(
    task: TaskDirectory,
    version: str,
    base: SealedVersion | None,
    changes: Mapping[bytes, bytes | None],
    *,
    committed: VersionId | None = None,
) -> SealedVersion:
    """Make ``version`` from ``base`` by ``changes`` of `STORE`, as an attempt on Spark does."""
    name = VersionId.parse(version)
    with task.begin(name.uid, base, [STORE], captured=[STORE]) as work:
        work.open_store(STORE, "rocksdb").write(changes)
        return work.seal(name.batch, name.uid, base, committed=committed)


def content_of(version: SealedVersion, scratch: Path) -> Mapping[bytes, bytes]:
    """Return the entries of a version's `STORE`, read by way of a clone below ``scratch``."""
    directory = scratch / f"clone-of-{version.id}"
    clone_image(version.store_directory(STORE), directory)
    return content_at(directory)


def content_at(directory: Path) -> Mapping[bytes, bytes]:
    """Return the entries of the RocksDB store in ``directory``, which is not open."""
    store = open_store(STORE, "rocksdb", directory, is_new=False)
    try:
        return dict(store.scan())
    finally:
        store.close()


def changes_in(path: Path) -> list[Change]:
    """Return the records of a delta file."""
    with path.open("rb") as file:
        return list(DeltaReader(file, where=f"path={path}"))

"""A copy, or some of its stores, fetched from whichever backend has them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Never

from statekeep.backends.awaiting import run_to_end
from statekeep.backends.base import RestoreContext, TaskIdentity
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.checkpoint.log_view import LogView, version_of
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.config.model import Config
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, ConfigError
from statekeep.guarding.catalog import CATALOG_FILE, CATALOG_STORE, FILES_STORE, TASK, Catalog
from statekeep.inspection.job import InspectedJob, LogStorage
from statekeep.inspection.task_restore import COPIES_OF_A_LOCATION
from statekeep.stores.local_files import remove_tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedCopy:
    """A copy on the local disk, with all that the location had when it was made."""

    position: int
    batch: int
    root: Path
    """The directory that holds its files as the location did."""
    files: Sequence[str]
    """Sorted, relative to ``root``."""


async def fetch_copy(
    config: Config,
    job: InspectedJob,
    which: str | None,
    directory: Path,
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    backend: BackendName | None = None,
) -> FetchedCopy:
    """Fetch all files of a copy, every byte verified.

    Args:
        config: Of the job that holds the copies.
        job: That job.
        which: Position, checkpoint id or pin of a copy; None: the newest one.
        directory: An empty one.
        on_bytes: Called with what was fetched since the last call.
        backend: The only one that is asked; None: whichever has the copy.

    Raises:
        CheckpointCorruptError: No backend has it whole, or BlobNotFoundError.
        ConfigError: There is no such copy, or the job is no job of copies.
        RetriableError: A service may answer later.
    """
    position, commit = job.find_commit(which)
    require_copies(commit.identity)
    stores = {FILES_STORE: directory / "files", CATALOG_STORE: directory / "catalog"}
    async with job.held(position):
        await fetch_stores(
            config, job.storage, job.view, commit, stores, on_bytes=on_bytes, backend=backend
        )
    root = stores[FILES_STORE]
    files = await job.executor.run(_whole, root, stores[CATALOG_STORE])
    return FetchedCopy(position, commit.batch, root, files)


def _whole(root: Path, catalog: Path) -> list[str]:
    """Return the files of a copy; each is there in its size, and there is no other."""
    expected = Catalog.decode((catalog / CATALOG_FILE).read_bytes()).files
    found = {
        p.relative_to(root).as_posix(): p.stat().st_size for p in root.rglob("*") if p.is_file()
    }
    if found != {name: file.size for name, file in expected.items()}:
        raise CheckpointCorruptError(
            f"the copy is not whole: files={len(found)} expected={len(expected)}"
        )
    return sorted(found)


def require_copies(identity: JobIdentity) -> None:
    """Make sure that a job is one of copies.

    Raises:
        ConfigError: It is another one.
    """
    if identity.settings != COPIES_OF_A_LOCATION:
        raise ConfigError(
            f"the job does not hold copies of a location: job={identity.job_name}",
            key="job.name",
            hint="name another one with --as",
        )


async def fetch_stores(
    config: Config,
    storage: LogStorage,
    view: LogView,
    commit: CommitRecord,
    directories: Mapping[StoreName, Path],
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
    backend: BackendName | None = None,
) -> None:
    """Fill a directory with each store of a copy, every byte verified.

    Unlike the stores of a job these are files alone: no engine opens them.

    Args:
        config: Of the job that holds the copies.
        storage: Its backends.
        view: Says which markers are bad.
        commit: The copy.
        directories: None of them exists yet.
        on_bytes: Called with what was fetched since the last call.
        backend: The only one that is asked; None: those to restore from, in their order.

    Raises:
        CheckpointCorruptError: No backend has it whole, or BlobNotFoundError.
        RetriableError: A service may answer later.
    """
    for store, directory in directories.items():
        checkpoint = view.usable_checkpoint(commit, TASK)
        failure: Exception = CheckpointCorruptError(f"no backend has the store: store={store}")
        asked = config.store(store).restore_factories if backend is None else [backend]
        for name in map(BackendName, asked):
            if checkpoint is None or store not in checkpoint.markers_of(name):
                continue
            context = RestoreContext(
                task=TaskIdentity(
                    commit.identity.job_name, MAIN_OPERATOR, TASK, job_uid=commit.identity.job_uid
                ),
                directories={store: directory},
                reusable=(),
                open_store=_open_nothing,
                open_image=_open_nothing,
                on_bytes=on_bytes,
                on_total=lambda _: None,
                executor=storage.executor,
                clock=storage.clock,
                version=version_of(commit, TASK),
            )
            manager = storage.factories[name].restore_manager(context)
            try:
                await manager.init(checkpoint)
                await manager.restore()
                break
            except (BlobNotFoundError, CheckpointCorruptError) as exc:
                logger.warning("copy is damaged: backend=%s store=%s error=%s", name, store, exc)
                failure = exc
                await run_to_end(storage.executor, partial(_remove, directory))
            finally:
                await manager.close()
        else:
            raise failure


def _open_nothing(store: StoreName, directory: Path) -> Never:
    raise CheckpointCorruptError(
        f"a copy has no store that can be opened: store={store} directory={directory}"
    )


def _remove(directory: Path) -> None:
    if directory.exists():
        remove_tree(directory)

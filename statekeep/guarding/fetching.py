"""Stores of a copy, fetched from whichever backend has them."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Never

from statekeep.backends.base import RestoreContext, TaskIdentity
from statekeep.backends.run_to_end import run_to_end
from statekeep.checkpoint.checkpoints import BackendName, StoreName
from statekeep.checkpoint.log_scope import MAIN_OPERATOR
from statekeep.checkpoint.log_view import LogView, version_of
from statekeep.checkpoint.records import CommitRecord
from statekeep.config.model import Config
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError
from statekeep.guarding.catalog import TASK
from statekeep.inspection.job import LogStorage
from statekeep.stores.local_files import remove_tree

logger = logging.getLogger(__name__)


async def fetch_stores(
    config: Config,
    storage: LogStorage,
    view: LogView,
    commit: CommitRecord,
    directories: Mapping[StoreName, Path],
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
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

    Raises:
        CheckpointCorruptError: No backend has it whole, or BlobNotFoundError.
        RetriableError: A service may answer later.
    """
    for store, directory in directories.items():
        checkpoint = view.usable_checkpoint(commit, TASK)
        failure: Exception = CheckpointCorruptError(f"no backend has the store: store={store}")
        for name in map(BackendName, config.store(store).restore_factories):
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
    raise CheckpointCorruptError(f"a copy has files alone: store={store} directory={directory}")


def _remove(directory: Path) -> None:
    if directory.exists():
        remove_tree(directory)

"""The job that holds the copies of a location, and the newest copy, on which the next one is built."""

import logging
from dataclasses import dataclass
from pathlib import Path

from statekeep.backends.base import TaskIdentity
from statekeep.backends.optional_powers import FindsLosses
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, VersionId
from statekeep.checkpoint.error_summary import message_of
from statekeep.checkpoint.log_reset import read_remains
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import version_of
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.checkpoint.records import CommitRecord
from statekeep.config.model import Config
from statekeep.errors import BlobNotFoundError, CheckpointCorruptError, StateBackupError
from statekeep.events import Report
from statekeep.guarding.catalog import CATALOG_FILE, CATALOG_STORE, FILES_STORE, TASK, Catalog
from statekeep.guarding.fetching import fetch_stores
from statekeep.inspection.clean_up import Sweep, delete_leftovers
from statekeep.inspection.job import LogStorage
from statekeep.inspection.state_copy import Uploads, validate_backend

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyJob:
    """The job that holds copies, whose log was taken over."""

    config: Config
    storage: LogStorage
    log: LogSession
    uploads: Uploads
    report: Report
    new_uid: str
    """Of the job, if none of its copies was completed yet."""


@dataclass(frozen=True, slots=True)
class Base:
    """The newest copy."""

    position: int
    commit: CommitRecord
    catalog: Catalog | None
    """None: it cannot be read."""
    is_usable: bool
    """False: something of it is lost, so that the next copy is whole."""
    is_everywhere: bool = True
    """False: a backend has not all of it, and gets all files of the next copy."""

    def to_build_on(self, log: LogSession) -> tuple[CheckpointV2, VersionId] | None:
        """Return what an upload builds on; None where all files are at hand."""
        if not self.is_usable:
            return None
        checkpoint = log.view.usable_checkpoint(self.commit, TASK)
        version = version_of(self.commit, TASK)
        return None if checkpoint is None or version is None else (checkpoint, version)


async def find_base(job: CopyJob, target: Path) -> Base | None:
    """Return the newest copy; delete what a first one left that was never completed.

    Args:
        job: Of the copies.
        target: A directory that is not there yet, for the catalog.

    Raises:
        RetriableError: A service may answer later.
    """
    commit = job.log.view.last_commit
    if commit is None:
        for sweep in Sweep.of_remains(await read_remains(job.storage.log), job.log.epoch):
            await delete_leftovers(job.storage, job.config, sweep)
        return None
    position, catalog, is_usable = job.log.view.last_commit_position, None, False
    is_everywhere = True
    try:
        stores = {CATALOG_STORE: target}
        await fetch_stores(job.config, job.storage, job.log.view, commit, stores)
        data = await job.storage.executor.run((target / CATALOG_FILE).read_bytes)
        catalog = Catalog.decode(data)
        await _require_whole(job, commit)
        is_usable = True
        is_everywhere = await _is_everywhere(job, commit)
    except (BlobNotFoundError, CheckpointCorruptError) as exc:
        logger.warning("the newest copy is damaged, all files are copied: error=%s", exc)
    return Base(position, commit, catalog, is_usable, is_everywhere)


async def _is_everywhere(job: CopyJob, commit: CommitRecord) -> bool:
    """Return whether each backend that can take the next copy has this one to build on.

    One that was added, or is optional and was left out, has not.
    """
    checkpoint = job.log.view.usable_checkpoint(commit, TASK)
    if checkpoint is None:
        return True
    lacking: set[BackendName] = set()
    for store in (FILES_STORE, CATALOG_STORE):
        settings = job.config.store(store)
        for name in map(BackendName, settings.backup_factories):
            if store in checkpoint.markers_of(name):
                continue
            if name not in settings.optional_factories:
                return False
            lacking.add(name)
    for name in lacking:
        factory = job.storage.factories[name]
        try:
            await validate_backend(factory, job.storage.executor, job.storage.clock)
        except StateBackupError as exc:  # else all would be fetched for nothing
            logger.warning(
                "optional backend does not have the copies and does not answer: "
                "backend=%s error=%s",
                name,
                message_of(exc),
            )
        else:
            return False
    return True


async def _require_whole(job: CopyJob, commit: CommitRecord) -> None:
    """Make sure that all of a copy is there still: the next one refers to it.

    Raises:
        BlobNotFoundError: Something is gone.
        CheckpointCorruptError: What describes the copy is damaged.
        RetriableError: A service may answer later.
    """
    storage = job.storage
    checkpoint = job.log.view.usable_checkpoint(commit, TASK)
    task = TaskIdentity(
        commit.identity.job_name, MAIN_OPERATOR, TASK, job_uid=commit.identity.job_uid
    )
    if checkpoint is None:
        return
    for backend, of_stores in checkpoint.state_markers.items():
        factory: object = storage.factories.get(backend)
        if not isinstance(factory, FindsLosses):
            continue
        for marker in of_stores.values():
            lost = await factory.lost(task, marker, storage.executor, storage.clock)
            if lost:
                raise BlobNotFoundError(min(lost))

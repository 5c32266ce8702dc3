"""The state of a job in plain Python as files of Spark's own HDFSBackedStateStoreProvider."""

import re
from functools import partial
from pathlib import Path
from typing import Final

from statekeep.backends.awaiting import shielded
from statekeep.backends.base import TaskIdentity
from statekeep.backends.storage.locations import explained_missing_package
from statekeep.checkpoint.checkpoints import StoreName, TaskName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR, escape_name
from statekeep.checkpoint.records import CommitRecord
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.task_restore import Progress
from statekeep.stores.local_files import explained_errors
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

_STATE_FILE: Final = re.compile(r"([0-9]+)\.(?:delta|snapshot)")


async def export_spark_state(
    job: InspectedJob,
    commit: CommitRecord,
    task: TaskName,
    store: StoreName,
    target: Path,
    *,
    version: int,
    scratch: Path,
    on_progress: Progress,
) -> int:
    """Write a task's store as ``<target>/<version>.snapshot``; return its entries.

    Args:
        job: Only read.
        commit: Whose state; held by the caller.
        task: Of the commit.
        store: Its keys and values are as Spark has encoded them.
        target: The directory of the partition; made if missing.
        version: From 1: the number of batches that Spark takes it for.
        scratch: For the restored state.
        on_progress: How the restore gets on.

    Raises:
        ConfigError: The job has no such store, or the directory holds later versions.
        RestoreFailedError: The state is out of reach.
    """
    if store not in {name for names in job.stores(commit).values() for name in names}:
        raise ConfigError(f"the job has no such store: store={store} task={task}")
    await job.executor.run(_require_newest, target, version)
    outcome = await job.restore(commit, task, scratch, on_progress=on_progress)
    identity = TaskIdentity(commit.identity.job_name, MAIN_OPERATOR, task)
    task_directory = TaskDirectory(
        scratch / escape_name(f"export {task}")
        if outcome.version is None
        else outcome.version.directory.parent,
        identity,
    )
    write = partial(
        _write, job, task_directory, outcome.version, store, target=target, version=version
    )
    return await shielded(job.executor.run(write))


def _require_newest(target: Path, version: int) -> None:
    """Make sure that Spark would take the new file for the newest."""
    with explained_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        found = [_STATE_FILE.fullmatch(path.name) for path in target.iterdir()]
    newest = max((int(match[1]) for match in found if match), default=0)
    if newest > version:
        raise ConfigError(
            f"the directory holds a later version: directory={target} version={newest}",
            hint=f"Spark would go on from that one; remove its files after {version}, or give the "
            "number of batches that its location has committed",
        )


def _write(
    job: InspectedJob,
    task_directory: TaskDirectory,
    restored: SealedVersion | None,
    store: StoreName,
    *,
    target: Path,
    version: int,
) -> int:
    with explained_missing_package("hdfs"):
        from statekeep.backends.hdfs.spark_files import export_snapshot  # noqa: PLC0415 - an extra

    with task_directory.begin(random_nonce(), restored, (store,)) as work:
        opened = work.open_store(store, job.config.store(store).factory)
        export_snapshot(opened, target, version)
        return sum(1 for _ in opened.scan())

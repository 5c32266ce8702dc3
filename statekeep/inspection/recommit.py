"""A stopped job's newest commit, made again: in one more backend, or whole under a name."""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from statekeep.backends.awaiting import run_all
from statekeep.backends.base import StateBackendFactory, TaskIdentity
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    TaskName,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR, escape_name
from statekeep.checkpoint.records import CommitRecord
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.errors import ConfigError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.state_copy import (
    UNSEEN,
    CommitBackups,
    Uploads,
    listing_only,
    prepare_backends,
)
from statekeep.inspection.task_restore import Progress
from statekeep.stores.local_files import remove_tree

TASKS_AT_ONCE: Final = 4
"""Enough to overlap fetching with sending; each needs local disk for its state."""


@dataclass(frozen=True, slots=True)
class Recommit:
    """What was made."""

    position: int
    """Of the new commit, which is the current one."""
    tasks: int
    """Tasks whose state was copied; one whose state is empty has nothing to copy."""
    bytes_uploaded: int


async def recommit(
    job: InspectedJob,
    backends: Mapping[BackendName, StateBackendFactory],
    directory: Path,
    *,
    owner: str,
    pin: str | None = None,
    only: Collection[TaskName] | None = None,
    on_progress: Progress = lambda _: None,
    uploads: Uploads = UNSEEN,
) -> Recommit:
    """Copy the newest commit's state to backends and make a commit of it with their markers too.

    Batch, versions and input offsets are those of the newest commit; its markers stay, and those
    of ``backends`` are added or take their backups. Each task's state is restored from whichever
    backend can, verified, and uploaded whole. Takes the log over: a running driver of the job is fenced.
    Nothing changes for the job if it fails half way: its newest commit is still current.

    Args:
        job: Stopped.
        backends: Where the state goes.
        directory: For the state of `TASKS_AT_ONCE` tasks.
        owner: Host and process, for people.
        pin: Name to keep the new commit under.
        only: The tasks whose state is copied; None: all.
        on_progress: How the restores get on.
        uploads: Follows what is uploaded.

    Raises:
        ConfigError: There is no commit with state, the name is in use, or a backend refuses us.
        RestoreFailedError: A task's state is out of reach.
        CommitFailedError: A backend did not take it.
        TaskFencedError: The job was started meanwhile.
    """
    require_commit_with_state(job)
    require_free(pin, job.view)
    await prepare_backends(backends, job.executor, job.clock)
    log = await LogSession.of_tool(job.log, owner)
    # The driver that was just fenced may have committed after the job was opened; others may pin.
    require_free(pin, log.view)
    commit = log.view.last_commit
    if commit is None:
        raise ConfigError(f"the job has no commit yet: job={job.config.job.name}")
    copying = _Copying(
        job,
        log,
        commit,
        backends=backends,
        directory=directory,
        on_progress=on_progress,
        uploads=uploads,
    )
    copied = await copying.run(only)
    if pin is not None:
        await log.pin(pin, copied.position)
    return copied


def require_free(name: str | None, view: LogView) -> None:
    """Make sure that no commit is kept under a name.

    Raises:
        ConfigError: One is.
    """
    if name is not None and name in view.pins:
        raise ConfigError(f"the name is in use: name={name} commit={view.pins[name]}")


def require_commit_with_state(job: InspectedJob) -> CommitRecord:
    """Return the newest commit.

    Raises:
        ConfigError: It is the empty one, or there is none.
    """
    _, commit = job.find_commit()
    if not any(commit.versions.values()):
        raise ConfigError(f"the job has no state yet: job={job.config.job.name}")
    return commit


def require_all_committed(job: InspectedJob, commit: CommitRecord) -> None:
    """Make sure that the job has processed nothing since its newest commit.

    Raises:
        ConfigError: It has, or may have.
    """
    newest = job.view.newest_possible_batch
    if newest > commit.batch:
        raise ConfigError(
            "the job has processed more than its newest commit holds: "
            f"job={job.config.job.name} batch={newest} committed={commit.batch}",
            hint="start the job and stop it: its last commit then holds everything",
        )


class _Copying:
    """One attempt at the new commit."""

    def __init__(
        self,
        job: InspectedJob,
        log: LogSession,
        commit: CommitRecord,
        *,
        backends: Mapping[BackendName, StateBackendFactory],
        directory: Path,
        on_progress: Progress,
        uploads: Uploads,
    ) -> None:
        self._job = job
        self._log = log
        self._commit = commit
        self._backends = backends
        self._directory = directory
        self._on_progress = on_progress
        self._uploads = uploads
        self._bytes = 0
        self._limit = asyncio.Semaphore(TASKS_AT_ONCE)

    async def run(self, only: Collection[TaskName] | None) -> Recommit:
        """Copy the state of the tasks, then append the commit record."""
        commit, checkpoint_id = self._commit, CheckpointId.at(self._job.clock.time_ns())
        tasks = [TaskName(task) for task, version in sorted(commit.versions.items()) if version]
        tasks = [task for task in tasks if only is None or task in only]
        attempt = await self._log.begin_attempt(commit.batch, checkpoint_id, commit.versions, tasks)
        backups = self._commit_backups(attempt, checkpoint_id)
        try:
            made = await run_all(self._copy(task, backups) for task in tasks)
            checkpoints = dict(zip(tasks, made, strict=True))
            fault_point("commit_record.before")
            position = await self._log.append(self._record(attempt, backups, checkpoints))
            fault_point("commit_record.after")
        except BaseException:
            with suppress(StateBackupError):  # then the next owner aborts it
                await self._log.close_attempt("the copy failed")
            raise
        return Recommit(position, len(tasks), self._bytes)

    def _commit_backups(self, attempt: int, checkpoint_id: CheckpointId) -> CommitBackups:
        settings = {
            store: self._job.config.store(store) for store in _held(self._job, self._commit)
        }
        return CommitBackups(
            factories=self._backends,
            stores=listing_only(settings, tuple(self._backends)),
            epoch=self._log.epoch,
            attempt=attempt,
            checkpoint_id=checkpoint_id,
            executor=self._job.executor,
            clock=self._job.clock,
            uploads=self,
        )

    async def _copy(self, task: TaskName, backups: CommitBackups) -> CheckpointV2:
        """Restore a task and back it up; return its checkpoint with the markers of both."""
        before = self._log.view.usable_checkpoint(self._commit, task)
        if before is None:
            raise ConfigError(f"the task has a version but no checkpoint: task={task}")
        identity = self._commit.identity
        async with self._limit:
            own = self._directory / escape_name(task)
            outcome = await self._job.restore(
                self._commit, task, own, on_progress=self._on_progress
            )
            if outcome.version is None:
                raise ConfigError(f"the task has no state: task={task}")
            made = await backups.back_up(
                TaskIdentity(identity.job_name, MAIN_OPERATOR, task, job_uid=identity.job_uid),
                outcome.version,
                before.input_offsets,
            )
            await self._job.executor.run(remove_tree, own)
        return replace(made, state_markers={**before.state_markers, **made.state_markers})

    def _record(
        self, attempt: int, backups: CommitBackups, checkpoints: Mapping[TaskName, CheckpointV2]
    ) -> CommitRecord:
        made = {
            str(task): msgspec.Raw(encode_checkpoint_v2(checkpoint))
            for task, checkpoint in checkpoints.items()
        }
        return msgspec.structs.replace(
            self._commit,
            attempt_epoch=self._log.epoch,
            attempt=attempt,
            checkpoint_id=backups.checkpoint_id.serialize(),
            checkpoints={**self._commit.checkpoints, **made},
            change=None,
        )

    def expect(self, size: int, /) -> None:
        """As `Uploads` has it."""
        self._uploads.expect(size)

    def add(self, size: int, /) -> None:
        """As `Uploads` has it."""
        self._bytes += size
        self._uploads.add(size)


def _held(job: InspectedJob, commit: CommitRecord) -> list[StoreName]:
    """Return the stores of which some backend holds anything."""
    checkpoints = (job.checkpoint(commit, TaskName(task)) for task in commit.checkpoints)
    markers = (found.state_markers.values() for found in checkpoints if found is not None)
    return sorted({store for backends in markers for stores in backends for store in stores})

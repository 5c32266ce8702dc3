"""A stopped job's state, changed by a person: a new commit at the batch of the newest one.

Nothing is taken over or uploaded before every changed task is there in its new form, so what does not
fit changes nothing. The commit record is the point at which the change counts, for all tasks at once.
"""

import asyncio
import getpass
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from statekeep.backends.awaiting import run_all, shielded
from statekeep.checkpoint.checkpoints import (
    BackendName,
    CheckpointId,
    CheckpointV2,
    StoreName,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.log_session import LogSession, random_nonce
from statekeep.checkpoint.log_view import LogView, version_of
from statekeep.checkpoint.names import escape_name
from statekeep.checkpoint.records import (
    RESHAPE,
    BaseRecord,
    BatchRecord,
    CommitRecord,
    EpochRecord,
    StateChange,
)
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.config.redact import redact_text
from statekeep.errors import ConfigError, RetriableError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.inspection.job import InspectedJob
from statekeep.inspection.recommit import (
    TASKS_AT_ONCE,
    require_all_committed,
    require_commit_with_state,
)
from statekeep.inspection.state_copy import (
    UNSEEN,
    CommitBackups,
    Uploads,
    prepare_backends,
    require_markers,
)
from statekeep.inspection.task_restore import Progress, checkpoint_in, stores_of, task_identity
from statekeep.stores.task_directory import TaskDirectory
from statekeep.stores.version import SealedVersion

Edit = Callable[[TaskDirectory, SealedVersion | None, str], SealedVersion | None]
"""Given the directory of a task, its restored version (None: empty) and a fresh uid, seals the changed
version; None where nothing changes. Blocking."""

ERASE: Final = "erase"
"""The kind of a change that leaves nothing of some keys."""
UNDO: Final = "undo"
"""The kind of a change that takes the one before it back."""


@dataclass(frozen=True, slots=True)
class Changing:
    """What every change of the state needs."""

    directory: Path
    """For the state of all tasks that change."""
    owner: str
    """Host and process, for people."""
    is_taking_over: bool = False
    """Also if no event says that the newest driver has stopped."""
    on_progress: Progress = field(default=lambda _: None)
    """How the restores get on."""
    uploads: Uploads = UNSEEN


@dataclass(frozen=True, slots=True)
class Changed:
    """What was made."""

    position: int
    """Of the newest commit: the new one, or that of before where nothing had to change."""
    tasks: int
    """How many changed."""
    log: LogSession
    """The owner of the log since then; a pin writer where nothing had to change."""


def person() -> str:
    """Return user and host, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = "unknown user"
    return f"{user}@{socket.gethostname()}"


async def require_stopped(job: InspectedJob) -> None:
    """Make sure that the newest driver of a job has ended, as far as its events say.

    Raises:
        ConfigError: No event says so; names the driver.
        RetriableError: The service may answer later.
    """
    by_drivers = [r.epoch for _, r in job.records if isinstance(r, BaseRecord | BatchRecord)]
    # That of the newest one too, however many tools have taken over since.
    events = await job.progress(by_drivers[-1:])
    newest = max([*by_drivers, *(event.epoch for event in events)], default=0)
    if not newest or any(e.kind == "stopped" and e.epoch == newest for e in events):
        return
    owners = {r.epoch: r.owner for _, r in job.records if isinstance(r, EpochRecord)}
    raise ConfigError(
        "the job may be running, and only a stopped one can be changed: "
        f"job={job.config.job.name} holder={owners.get(newest, 'unknown')} epoch={newest}",
        hint="stop the query, which commits, or put and delete by query.write_state in its program; if you"
        " know that this process is dead, give --take-over (take_over=True), which fences it",
    )


async def find_changeable(job: InspectedJob, changing: Changing) -> tuple[int, CommitRecord]:
    """Return the newest commit with its position, if its state may be changed now.

    Raises:
        ConfigError: The job may be running, has no state, or more than the commit holds; or the settings
            do not list all of its backends.
        RetriableError: The service may answer later.
    """
    commit = require_commit_with_state(job)
    if commit.query is None or commit.batch < 0:
        raise ConfigError(
            "only a query on Spark that has committed a batch can be changed: "
            f"job={job.config.job.name} batch={commit.batch}",
            hint="start the query and stop it",
        )
    if not changing.is_taking_over:
        await require_stopped(job)
    require_all_committed(job, commit)
    _require_backends(job, commit)
    return job.view.last_commit_position, commit


def holders_of(commit: CommitRecord) -> set[tuple[BackendName, StoreName]]:
    """Return which backends hold which stores of any task."""
    return {
        (backend, store)
        for task in commit.checkpoints
        if (checkpoint := checkpoint_in(commit, TaskName(task))) is not None
        for backend, stores in checkpoint.state_markers.items()
        for store in stores
    }


def _require_backends(job: InspectedJob, commit: CommitRecord) -> None:
    """Make sure that the settings list every backend of every store: another would lack the change.

    Raises:
        ConfigError: They do not.
    """
    listed = {
        store: job.config.store(store).backup_factories
        for stores in stores_of(commit).values()
        for store in stores
    }
    lacking = [("none", store) for store, backends in listed.items() if not backends]
    lacking += sorted(
        (backend, store)
        for backend, store in holders_of(commit)
        if store in listed and backend not in listed[store]
    )
    for backend, store in lacking:
        raise ConfigError(
            "the settings do not list where a store of the job is backed up: "
            f"job={job.config.job.name} store={store} held_by={backend} "
            f"listed={','.join(listed[store])}",
            key=f"stores.{store}.backup.factories",
            hint="give the settings that the job runs with, with all of its backends",
        )


async def change_state(
    job: InspectedJob,
    change: StateChange,
    edits: Mapping[TaskName, Edit],
    changing: Changing,
    *,
    check: Callable[[LogView], None] = lambda _: None,
    is_whole: bool = False,
) -> Changed:
    """Make a commit of the newest one in which some tasks are edited.

    Takes the log over: a driver that starts meanwhile is fenced, or fences this.

    Args:
        job: Stopped; see `find_changeable`.
        change: For the log.
        edits: By task.
        changing: What it needs.
        check: Refuses the log as it is once it was taken over.
        is_whole: Upload the changed tasks whole: nothing of an earlier upload is referred to.

    Raises:
        ConfigError: As `find_changeable`; the job has committed meanwhile; or as the edits.
        StateSchemaError: As the edits.
        RestoreFailedError: The state of a task is out of reach.
        CommitFailedError: A backend did not take it.
        TaskFencedError: The job was started meanwhile.
    """
    position, commit = await find_changeable(job, changing)
    work = _Work(job, position, commit, changing)
    made = dict(
        zip(edits, await run_all(work.edit(task, edits[task]) for task in edits), strict=True)
    )
    versions = {task: version for task, version in made.items() if version is not None}
    if not versions and not is_whole:
        return Changed(position, 0, job.pin_writer)
    return await work.commit(change, versions, check=check, is_whole=is_whole)


async def undo_change(job: InspectedJob, reason: str, changing: Changing) -> Changed:
    """Make a commit with the state of the one before the newest change, which is uploaded anew.

    Args:
        job: Stopped, and not started since the change.
        reason: For the log.
        changing: What it needs.

    Raises:
        ConfigError: The newest commit is no change, or an erasure, or the one that it was made from is gone;
            or as `change_state`.
        StateBackupError: As `change_state`.
    """
    position, commit = await find_changeable(job, changing)
    if commit.change is None:
        raise ConfigError(
            f"the newest commit does not come from a change of the state: commit={position}",
            hint="what the job has done since a change stays; `statekeep savepoint restore COMMIT --as"
            " JOB` makes a new job from any retained commit",
        )
    if commit.change.kind == RESHAPE:
        raise ConfigError(
            f"the newest commit changed the number of tasks, not the state: commit={position}",
            hint="start the query with the former task.count to have that many tasks again",
        )
    if commit.change.kind == ERASE:
        raise ConfigError(
            f"what was erased cannot be taken back: commit={position}",
            hint="write the former values, if you have them",
        )
    made_from = commit.change.made_from
    before = next((p for p, c in job.view.commits.items() if c.checkpoint_id == made_from), None)
    if before is None:
        raise ConfigError(
            f"the commit before the change is not retained any more: commit={position}",
            hint="write the former values, if you have them",
        )
    old = job.commit_at(before)
    work = _Work(job, position, commit, changing)
    tasks = [TaskName(t) for t, version in old.versions.items() if version != commit.versions[t]]
    restored = await run_all(work.fetch(old, task) for task in tasks)
    versions = {
        task: version for task, version in zip(tasks, restored, strict=True) if version is not None
    }
    change = StateChange(kind=UNDO, by=person(), reason=reason)
    emptied = [task for task in tasks if task not in versions]
    return await work.commit(change, versions, emptied=emptied, is_whole=True)


async def _has_landed(log: LogSession, error: BaseException) -> bool:
    """Return whether the commit record is in the log, though its append has failed; else abort the attempt."""
    try:
        has_landed = await log.close_attempt("the state was not changed")
    except StateBackupError:  # then the next owner aborts it, unless it has landed
        if isinstance(error, RetriableError):
            error.add_note(
                "hint: once the backend answers, `statekeep checkpoints list` shows whether the state was changed"
            )
        return False
    if has_landed and not isinstance(error, RetriableError):
        error.add_note("the state was changed before this")
    return has_landed


class _Work:
    """One change, from the restores to the commit record."""

    def __init__(
        self, job: InspectedJob, position: int, commit: CommitRecord, changing: Changing
    ) -> None:
        self._job = job
        self._position = position
        self._commit = commit
        self._changing = changing
        self._limit = asyncio.Semaphore(TASKS_AT_ONCE)

    @property
    def _stores(self) -> list[StoreName]:
        return [store for stores in stores_of(self._commit).values() for store in stores]

    async def fetch(self, commit: CommitRecord, task: TaskName) -> SealedVersion | None:
        """Restore a task at a commit; None where it is empty."""
        own = self._changing.directory / escape_name(task)
        async with self._limit:
            outcome = await self._job.restore(
                commit, task, own, on_progress=self._changing.on_progress
            )
        return outcome.version

    async def edit(self, task: TaskName, edit: Edit) -> SealedVersion | None:
        """Restore a task and edit it; None where nothing changes."""
        version = await self.fetch(self._commit, task)
        own = self._changing.directory / escape_name(task)
        directory = TaskDirectory.of(own, task_identity(self._commit, task))
        async with self._limit:
            # A thread goes on when its waiter is cancelled: the directory is removed after it.
            return await shielded(self._job.executor.run(edit, directory, version, random_nonce()))

    async def commit(
        self,
        change: StateChange,
        versions: Mapping[TaskName, SealedVersion],
        *,
        emptied: Sequence[TaskName] = (),
        check: Callable[[LogView], None] = lambda _: None,
        is_whole: bool,
    ) -> Changed:
        """Take the log over, upload the changed tasks, and append the commit record."""
        job, commit = self._job, self._commit
        await prepare_backends(job.storage.factories, job.executor, job.clock)
        if (await job.pin_writer.poll()).epoch != job.view.epoch:
            raise self._went_on()
        log = await LogSession.of_tool(job.log, self._changing.owner)
        is_same = log.view.last_commit_position == self._position
        is_next = log.epoch == job.view.epoch + 1  # else a driver took over in between
        if not (is_same and is_next) or log.view.newest_possible_batch > commit.batch:
            raise self._went_on()
        check(log.view)
        checkpoint_id = CheckpointId.at(job.clock.time_ns())
        sealed = {str(task): str(version.id) for task, version in versions.items()}
        named = {**commit.versions, **sealed, **dict.fromkeys(map(str, emptied), "")}
        fault_point("attempt_record.before")
        attempt = await log.begin_attempt(commit.batch, checkpoint_id, named, list(versions))
        fault_point("attempt_record.after")
        backups = self._commit_backups(log, attempt, checkpoint_id)
        try:
            made = await run_all(
                self._back_up(log, backups, task, version, is_whole=is_whole)
                for task, version in versions.items()
            )
            checkpoints = dict(zip(versions, made, strict=True))
            for task, version in versions.items():
                require_markers(task, version, checkpoints[task], self._stores)
            for task in emptied:
                checkpoints[task] = CheckpointV2(checkpoint_id, self._offsets(task))
            record = msgspec.structs.replace(
                commit,
                attempt_epoch=log.epoch,
                attempt=attempt,
                checkpoint_id=checkpoint_id.serialize(),
                checkpoints={
                    **commit.checkpoints,
                    **{t: msgspec.Raw(encode_checkpoint_v2(c)) for t, c in checkpoints.items()},
                },
                versions=named,
                change=msgspec.structs.replace(
                    change,
                    reason=redact_text(change.reason),
                    made_from=commit.checkpoint_id,
                ),
            )
            fault_point("commit_record.before")
            position = await log.append(record)
        except BaseException as exc:
            if not await _has_landed(log, exc) or not isinstance(exc, RetriableError):
                raise
            position = log.view.last_commit_position
        fault_point("commit_record.after")
        return Changed(position, len({*versions, *emptied}), log)

    def _went_on(self) -> ConfigError:
        return ConfigError(
            "the job was started while its state was read, and nothing is changed: "
            f"job={self._job.config.job.name}",
            hint="stop the job, then try again",
        )

    def _commit_backups(
        self, log: LogSession, attempt: int, checkpoint_id: CheckpointId
    ) -> CommitBackups:
        job = self._job
        return CommitBackups(
            factories=job.storage.factories,
            stores={store: job.config.store(store) for store in self._stores},
            epoch=log.epoch,
            attempt=attempt,
            checkpoint_id=checkpoint_id,
            executor=job.executor,
            clock=job.clock,
            uploads=self._changing.uploads,
        )

    async def _back_up(
        self,
        log: LogSession,
        backups: CommitBackups,
        task: TaskName,
        version: SealedVersion,
        *,
        is_whole: bool,
    ) -> CheckpointV2:
        before = log.view.usable_checkpoint(self._commit, task)
        before_version = version_of(self._commit, task)
        base = None if before is None or before_version is None else (before, before_version)
        async with self._limit:
            return await backups.back_up(
                task_identity(self._commit, task),
                version,
                self._offsets(task),
                None if is_whole else base,
            )

    def _offsets(self, task: TaskName) -> dict[SystemStreamPartition, str]:
        checkpoint = self._job.checkpoint(self._commit, task)
        return {} if checkpoint is None else dict(checkpoint.input_offsets)

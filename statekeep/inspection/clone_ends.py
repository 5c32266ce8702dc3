"""How a clone ends: it gets backups of its own, or goes with all that it has."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from statekeep.backends.optional_powers import SharesBackups
from statekeep.checkpoint.checkpoints import BackendName, CheckpointId, TaskName
from statekeep.checkpoint.log_reset import LogRemains, read_remains
from statekeep.checkpoint.log_session import LogSession, require_no_clones
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import ReleaseRecord
from statekeep.commit.origins import OriginPins, commits_that_share, shared_tasks
from statekeep.config.model import Config
from statekeep.errors import ConfigError, RetriableError
from statekeep.fault_points import fault_point
from statekeep.inspection.clean_up import Sweep, delete_leftovers
from statekeep.inspection.job import InspectedJob, LogStorage, origins_of
from statekeep.inspection.recommit import Recommit, recommit
from statekeep.inspection.removal import reset_job
from statekeep.inspection.state_change import require_stopped
from statekeep.inspection.state_copy import UNSEEN, Uploads
from statekeep.inspection.task_restore import Progress


@dataclass(frozen=True, slots=True)
class Promoted:
    """What was made of a clone."""

    position: int
    """Of its newest commit."""
    tasks: int
    """Whose state was copied."""
    bytes_uploaded: int


async def promote_clone(
    job: InspectedJob,
    directory: Path,
    *,
    owner: str,
    is_taking_over: bool = False,
    on_progress: Progress = lambda _: None,
    uploads: Uploads = UNSEEN,
) -> Promoted:
    """Give a stopped clone backups of its own, so that it uses nothing of another job any more.

    Copies the state of the tasks that have not changed since the clone was made. Commits that name backups
    of other jobs are released. If it was cut off, the same call does the rest.

    Args:
        job: The clone.
        directory: For the state of some tasks.
        owner: Host and process, for people.
        is_taking_over: Also if no event says that the newest driver has stopped.
        on_progress: How the restores get on.
        uploads: Follows what is uploaded.

    Raises:
        ConfigError: The job is no clone, or may be running; or a commit that names backups of other jobs
            is kept under a name, or for a clone of the clone.
        RestoreFailedError: The state of a task is out of reach.
        CommitFailedError: A backend did not take it.
        TaskFencedError: The job was started meanwhile.
        RetriableError: A service may answer later; the call may be repeated.
    """
    _, commit = job.find_commit()
    _require_clone(job.config.job.name, is_clone=bool(commit.identity.shares))
    origins_of(job.storage).check(commit.identity.shares)
    if not is_taking_over:
        await require_stopped(job)
    factories = job.storage.factories
    sharing = await commits_that_share(job.view, factories, job.read_commits)
    _require_unnamed(job.view, sharing)
    copied = Recommit(job.view.last_commit_position, 0, 0)
    tasks = shared_tasks(commit, factories)
    if tasks:
        names = _backends_of(job, tasks)
        copied = await recommit(
            job,
            {name: factories[name] for name in names},
            directory,
            owner=owner,
            only=tasks,
            on_progress=on_progress,
            uploads=uploads,
        )
    log = await LogSession.of_tool(job.log, owner)
    return Promoted(await _end_sharing(job, log), copied.tasks, copied.bytes_uploaded)


def _backends_of(job: InspectedJob, tasks: list[TaskName]) -> list[BackendName]:
    """Return the backends that tasks use backups of another job in."""
    _, commit = job.find_commit()
    found = (job.checkpoint(commit, task) for task in tasks)
    names = {name for one in found if one is not None for name in one.state_markers}
    if unnamed := names - job.storage.factories.keys():
        raise ConfigError(
            f"the settings do not name a backend of the clone: backend={min(unnamed)}",
            key="stores.backup.factories",
            hint="give the settings of the job with --config or --set",
        )
    return sorted(n for n in names if isinstance(job.storage.factories[n], SharesBackups))


async def _end_sharing(job: InspectedJob, log: LogSession) -> int:
    """Release what names backups of other jobs, drop the pins there, and make a commit that says so."""
    factories = job.storage.factories
    sharing = await commits_that_share(log.view, factories, log.read_commits)
    if log.view.last_commit_position in sharing:
        raise RetriableError(
            f"the job has committed meanwhile: job={job.config.job.name}; try again"
        )
    _require_unnamed(log.view, sharing)
    commit = log.view.last_commit
    assert commit is not None  # noqa: S101 - it was there, and this owner alone may end that
    fault_point("clone.before_release")
    if sharing:
        await log.append(ReleaseRecord(positions=sharing))
    sweep = await Sweep.of(log.view, commit.identity, log.read_commits)
    await delete_leftovers(job.storage, job.config, sweep)
    if not await OriginPins(log, factories, origins_of(job.storage)).drop_unneeded():
        raise RetriableError(f"a commit was pinned meanwhile: job={job.config.job.name}; try again")
    fault_point("clone.before_last_record")
    # Like the commit before it, but for what it shares: it has an attempt of the number 0, which no
    # attempt has, as it needs none.
    return await log.append(
        msgspec.structs.replace(
            commit,
            attempt_epoch=log.epoch,
            attempt=0,
            checkpoint_id=CheckpointId.at(job.clock.time_ns()).serialize(),
            identity=msgspec.structs.replace(commit.identity, shares=[]),
        )
    )


def _require_unnamed(view: LogView, positions: list[int]) -> None:
    """Make sure that commits which are to be released are not kept under names.

    Raises:
        ConfigError: One is.
    """
    names = {name for name, position in view.pins.items() if position in positions}
    require_no_clones(view.clones, names)
    if names:
        raise ConfigError(
            "commits that use backups of another job are kept under names: "
            f"names={','.join(sorted(names))}",
            hint=f"`statekeep savepoint drop {min(names)}` first",
        )


def _require_clone(name: str, *, is_clone: bool) -> None:
    if not is_clone:
        raise ConfigError(
            f"the job is no clone, or uses nothing of another job any more: job={name}",
            key="job.name",
            hint="`statekeep reset` deletes a job that is no clone",
        )


async def require_droppable(storage: LogStorage, config: Config) -> LogRemains:
    """Return what the log of a clone says.

    Raises:
        ConfigError: The job is no clone, or there is no such job.
        RetriableError: A service may answer later.
    """
    if not await storage.log.is_there():
        raise ConfigError(
            f"there is no job of that name: job={config.job.name} backend={storage.log_backend}",
            key="job.name",
            hint="check job.name and the uri of the backend; if the log of a clone is lost, give --lost with"
            " the settings of its origin",
        )
    remains = await read_remains(storage.log)
    _require_clone(config.job.name, is_clone=remains.is_clone)
    return remains


async def drop_clone(
    storage: LogStorage, config: Config, *, owner: str, is_dropping_savepoints: bool
) -> None:
    """Delete a clone with its backups, then give the commits of other jobs back.

    A running driver of it is fenced. If it was cut off, the same call does the rest; so does it for a
    clone that was not made to its end.

    Args:
        storage: Of the clone.
        config: Of the clone.
        owner: Host and process, for people.
        is_dropping_savepoints: Also if commits of the clone are kept under names.

    Raises:
        ConfigError: The job is no clone, has savepoints, or has a clone itself: nothing was changed.
        RetriableError: A service may answer later; the call may be repeated.
    """
    await require_droppable(storage, config)
    await reset_job(storage, config, owner=owner, is_dropping_savepoints=is_dropping_savepoints)


async def drop_pins_of_lost(origin: InspectedJob, clone: str) -> list[str]:
    """Drop the pins of a clone whose log is lost, and return their names.

    Args:
        origin: The job that it was made of.
        clone: The name of the clone.

    Raises:
        ConfigError: It has none.
        RetriableError: A service may answer later.
    """
    names = sorted(name for name, job in origin.view.clones.items() if job == clone)
    if not names:
        raise ConfigError(
            f"the job has no such clone: job={origin.config.job.name} clone={clone}",
            hint="`statekeep savepoint list` shows the pins of clones",
        )
    for name in names:
        await origin.pin_writer.unpin(name, clone=clone)
    return names

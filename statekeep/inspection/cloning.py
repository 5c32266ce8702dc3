"""Clones: jobs on the state of a commit of another one, without a copy of its backups."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.optional_powers import Encrypts, SharesBackups
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, TaskName
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.records import NO_QUERY, CommitRecord, QueryState, Share
from statekeep.clock import Clock
from statekeep.commit.origins import CLONE_PREFIX, shared_tasks
from statekeep.config.load import load_dict, merge
from statekeep.config.model import Config
from statekeep.errors import ConfigError, StateBackupError
from statekeep.fault_points import fault_point
from statekeep.inspection.job import InspectedJob, open_log_storage, origins_of
from statekeep.inspection.locations import check_locations, copy_location, end_copy
from statekeep.inspection.new_job import NewJob, begin_job
from statekeep.inspection.restore_sources import require_sources
from statekeep.inspection.task_restore import COPIES_OF_A_LOCATION, stores_of

_PIN_DIGITS: Final = 8
_COPY_INSTEAD: Final = (
    "`statekeep savepoint restore COMMIT --as JOB` makes a job with a copy of the state"
)


@dataclass(frozen=True, slots=True)
class Cloning:
    """What a clone is made with."""

    config: Config
    """Of the clone: its name, and the backends of its origin."""
    clock: Clock
    owner: str
    """Host and process, for people."""
    locations: tuple[str, str] | None = None
    """The checkpoint locations of the origin's query and of the clone's; None: the clone has none yet."""


@dataclass(frozen=True, slots=True)
class Clone:
    """A clone that was made."""

    job: str
    position: int
    """Of its first commit."""
    batch: int
    origin: str
    origin_position: int
    """Of the commit that it shares."""


def settings_of(config: Config, job: str) -> Config:
    """Return the settings of a job with the backends of another one."""
    return merge(config, load_dict({"job.name": job}, "the name of the clone"))


async def make_clone(origin: InspectedJob, which: str | None, cloning: Cloning) -> Clone:
    """Make a job on the state and offsets of a retained commit of another one, which may go on.

    No state is read or written: the first commit of the clone names the backups of the origin, where a pin
    keeps them. Its later commits upload what changes to a place of its own. A try that was cut off is made
    up for by the same call, or cleared away by `drop_clone`.

    The log of the clone names the pins before they are made, and each try has its own. A later try fences
    the one before. So it may drop the pins of that one, as may the call that drops the clone.

    Args:
        origin: The other job.
        which: As of `InspectedJob.find_commit`.
        cloning: How the clone is made.

    Raises:
        ConfigError: There is no such commit, its backups cannot be shared, there is a job of the name
            already, or an origin of the origin was reset.
        CheckpointLocationError: As of `copy_location`.
        RetriableError: A service may answer later; the call may be repeated.
        TaskFencedError: Another process makes a job of the same name.
    """
    if cloning.config.job.name == origin.config.job.name:
        raise ConfigError(
            f"the clone needs a name of its own: job={origin.config.job.name}", key="job.name"
        )
    position, commit = origin.find_commit(which)
    made = await _find_made(commit, None if which is None else position, cloning)
    if made is not None:
        await _end_copy(origin, cloning)
        return made
    checkpoints = _shared_checkpoints(origin, commit, cloning.config)
    if cloning.locations is not None:
        await origin.executor.run(
            check_locations, *cloning.locations, commit, claim=cloning.config.job.name
        )
    shares = _shares_of(origin, position, commit, cloning.config.job.name)
    own = await _make(origin, commit, checkpoints, shares, cloning)
    fault_point("clone.after_record")
    await _end_copy(origin, cloning)
    return Clone(cloning.config.job.name, own, commit.batch, commit.identity.job_name, position)


async def _make(
    origin: InspectedJob,
    commit: CommitRecord,
    checkpoints: dict[TaskName, CheckpointV2 | None],
    shares: list[Share],
    cloning: Cloning,
) -> int:
    new: NewJob | None = None
    try:
        async with begin_job(
            cloning.config,
            commit,
            cloning.clock,
            owner=cloning.owner,
            partitions=commit.identity.partitions,
            shares=shares,
        ) as new:
            fault_point("clone.before_pins")
            # First in the origin: it then retains the commit, and with it what that shares of others.
            for share in shares:
                await origins_of(origin.storage).pin(share, cloning.config.job.name)
            fault_point("clone.after_pins")
            for task, version in commit.versions.items():
                new.share(TaskName(task), version, checkpoints[TaskName(task)])
            query = await _query(origin, commit, cloning)
            fault_point("clone.before_record")
            return await new.finish(query)
    except BaseException:
        if new is not None and not new.may_be_made:
            await _drop_pins(origin, shares, cloning.config.job.name)
        raise


async def _drop_pins(origin: InspectedJob, shares: Iterable[Share], clone: str) -> None:
    """Drop the pins of a try that came to nothing; what cannot be dropped, the next try drops."""
    for share in shares:
        with suppress(StateBackupError):
            await origins_of(origin.storage).drop_pin(share, clone)


async def _query(origin: InspectedJob, commit: CommitRecord, cloning: Cloning) -> QueryState | None:
    if cloning.locations is None:
        # The query of the origin runs at its location: the clone must not go on there.
        query = commit.query
        return None if query is None else msgspec.structs.replace(query, query_id=NO_QUERY)
    return await origin.executor.run(
        copy_location, *cloning.locations, commit, claim=cloning.config.job.name
    )


async def _end_copy(origin: InspectedJob, cloning: Cloning) -> None:
    if cloning.locations is not None:
        await origin.executor.run(end_copy, cloning.locations[1])


async def _find_made(origin: CommitRecord, position: int | None, cloning: Cloning) -> Clone | None:
    """Return the clone that an earlier try has made, if it was cut off just before it said so.

    Raises:
        ConfigError: There is a job of that name, and it is none that was just made.
    """
    name = cloning.config.job.name
    async with open_log_storage(cloning.config, cloning.clock) as storage:
        if not await storage.log.is_there():
            return None
        reader = LogReader(storage.log)
        await reader.catch_up()
    view = reader.view
    commit = view.last_commit
    if commit is None:
        return None
    shares = commit.identity.shares
    is_just_made = (
        not view.has_begun
        and len(view.commits) == 1
        and bool(shares)
        and shares[0].job_uid == origin.identity.job_uid
        and position in {None, shares[0].position}
    )
    if not is_just_made:
        what = f", a clone of {shares[0].job_name}" if shares else ""
        raise ConfigError(
            f"there is a job of that name{what}: job={name} backend={storage.log_backend}",
            key="job.name",
            hint="choose another name, or `statekeep reset` that job first"
            if not shares
            else f"choose another name, or `statekeep clone drop {name}` first",
        )
    return Clone(
        name,
        view.last_commit_position,
        commit.batch,
        shares[0].job_name,
        shares[0].position,
    )


def _shares_of(
    origin: InspectedJob, position: int, commit: CommitRecord, clone: str
) -> list[Share]:
    """Return what a clone of a commit shares: of its job, and of those that this one shares with."""
    pin = f"{CLONE_PREFIX}{clone}:{random_nonce()[:_PIN_DIGITS]}"
    own = Share(
        job_name=commit.identity.job_name,
        job_uid=commit.identity.job_uid,
        log=origin.storage.log_backend,
        position=position,
        pin=pin,
    )
    if not shared_tasks(commit, origin.storage.factories):
        return [own]
    return [own, *(msgspec.structs.replace(share, pin=pin) for share in commit.identity.shares)]


def _shared_checkpoints(
    origin: InspectedJob, commit: CommitRecord, config: Config
) -> dict[TaskName, CheckpointV2 | None]:
    """Return what the clone's first commit takes over of each task: markers of backups that can be shared.

    Raises:
        ConfigError: Not all of the state is in such backups.
    """
    job = commit.identity.job_name
    if commit.identity.settings == COPIES_OF_A_LOCATION:
        raise ConfigError(
            f"the job holds copies of a checkpoint location, which cannot be cloned: job={job}",
            hint="`statekeep guard restore` makes a location of a copy",
        )
    if commit.query is None:
        raise ConfigError(
            f"only a commit of a query on Spark can be cloned: job={job}", hint=_COPY_INSTEAD
        )
    if not any(commit.versions.values()):
        raise ConfigError(f"the commit has no state: job={job} batch={commit.batch}")
    factories = origin.storage.factories
    for name, factory in factories.items():
        if isinstance(factory, Encrypts) and factory.encryption() is not None:
            raise ConfigError(
                f"a job that encrypts its state cannot be cloned: job={job} backend={name}",
                hint=f"each backup is encrypted for its own job. {_COPY_INSTEAD}",
            )
    found: dict[TaskName, CheckpointV2 | None] = {}
    settings = {store: config.store(store) for of in stores_of(commit).values() for store in of}
    for task in map(TaskName, sorted(commit.versions)):
        held = origin.checkpoint(commit, task)
        usable = origin.view.usable_checkpoint(commit, task)
        if held is None or usable is None:
            found[task] = None
            continue
        shared = found[task] = replace(
            usable,
            state_markers={
                backend: markers
                for backend, markers in usable.state_markers.items()
                if _is_shareable(factories, backend)
            },
        )
        stores = {store for markers in held.state_markers.values() for store in markers}
        lacking = stores.difference(*shared.state_markers.values())
        if lacking:
            raise ConfigError(
                "the commit has state that only backends hold whose backups cannot be shared: "
                f"task={task} stores={','.join(sorted(lacking))} "
                f"backends={','.join(sorted(held.state_markers))}",
                hint="clone a savepoint that is in a blob backend: stop the job, then `statekeep savepoint"
                " create NAME --to blob` and --at NAME",
            )
        require_sources(shared, settings)
    return found


def _is_shareable(
    factories: Mapping[BackendName, StateBackendFactory], backend: BackendName
) -> bool:
    return isinstance(factories.get(backend), SharesBackups)

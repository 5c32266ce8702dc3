"""Releasing commits by hand, and resetting a job."""

import logging
from collections.abc import Sequence
from functools import partial

from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_reset import LogRemains, read_remains, reset_log
from statekeep.checkpoint.log_session import LogSession, require_no_clones
from statekeep.checkpoint.records import ReleaseRecord
from statekeep.config.model import Config
from statekeep.errors import ConfigError, UnknownFormatError
from statekeep.inspection.clean_up import Leftovers, Sweep, delete_leftovers, find_leftovers
from statekeep.inspection.job import InspectedJob, LogStorage, origins_of
from statekeep.inspection.reading_pin import HOLD_PREFIX

logger = logging.getLogger(__name__)


async def remove_commits(job: InspectedJob, which: Sequence[str], *, owner: str) -> list[int]:
    """Release commits of a stopped job and delete what only they reach.

    Takes the log over: a running driver is fenced, as it may be about to restore one of the
    commits.

    Args:
        job: Stopped.
        which: Positions or checkpoint ids.
        owner: Host and process, for people.

    Returns:
        The positions.

    Raises:
        ConfigError: There is no such commit, it is the current one, or it is pinned: nothing was
            changed.
        TaskFencedError: The job was started meanwhile.
        RetriableError: A service may answer later; the commits may be released already.
    """
    positions = sorted({job.find_commit(name)[0] for name in which})
    for position in positions:
        _require_removable(job, position)
    log = await LogSession.of_tool(job.log, owner)
    await log.append(ReleaseRecord(positions=positions))
    identity = job.commit_at(positions[0]).identity
    sweep = await Sweep.of(log.view, identity, log.read_commits)
    await delete_leftovers(job.storage, job.config, sweep)
    return positions


def _require_removable(job: InspectedJob, position: int) -> None:
    if position == job.view.last_commit_position:
        raise ConfigError(
            f"the current commit stays: commit={position}",
            hint="`statekeep reset` makes the job start anew",
        )
    names = [name for name, pinned in job.view.pins.items() if pinned == position]
    require_no_clones(job.view.clones, names)
    if names:
        raise ConfigError(
            f"the commit is pinned: commit={position} names={','.join(names)}",
            hint=f"`statekeep checkpoints unpin {names[0]}` first",
        )


async def find_what_a_reset_deletes(
    storage: LogStorage, config: Config
) -> tuple[LogRemains, list[Leftovers]]:
    """Return what a log says, and what of the backups would go with it; change nothing.

    Warns of each backend that holds backups and that the settings do not name: it cannot be reached.

    Raises:
        ConfigError: There is no log, or it has moved.
        UnknownFormatError: A newer version of Statekeep has written to it.
        RetriableError: A service may answer later.
    """
    remains = await _read_remains(storage.log)
    _require_here(remains)
    remains.pins = _savepoints(remains)
    leftovers: list[Leftovers] = []
    for sweep in Sweep.of_remains(remains, remains.newest_epoch + 1):
        leftovers += await find_leftovers(storage, config, sweep)
    for backend in sorted(remains.backends - storage.factories.keys()):
        logger.warning(
            "the settings do not name a backend that commits are in, what is there stays: "
            "backend=%s log=%s (add it to stores.<name>.backup.factories before the reset)",
            backend,
            storage.scope,
        )
    return remains, leftovers


async def require_resettable(storage: LogStorage, *, is_dropping_savepoints: bool) -> None:
    """Make sure that `reset_job` would not refuse; for callers that reset several logs or none.

    Raises:
        ConfigError: There is no log, it has moved or is the copy of one that has not, or it
            has savepoints.
        UnknownFormatError: A newer version of Statekeep has written to it.
        RetriableError: A service may answer later.
    """
    remains = await _read_remains(storage.log)
    _require_resettable(remains, is_dropping_savepoints=is_dropping_savepoints)
    origins_of(storage).check(remains.shares)
    for backend, factory in storage.factories.items():
        if backend != storage.log_backend and factory.properties.can_hold_job_log:
            log = storage.log_in(backend)
            try:
                await _require_no_original(log, backend, remains)
            finally:
                await log.close()


async def _require_no_original(log: JobLog, backend: str, remains: LogRemains) -> None:
    """Make sure that what goes with the reset of a log is not in use by the log it was copied from.

    A move that was cut off leaves such a copy: of the same job, while the other log still counts.
    """
    if not await log.is_there():
        return
    other = await _read_remains(log)
    if other.moved_to is None and other.identities.keys() & remains.identities.keys():
        raise ConfigError(
            f"the log is the copy of one whose backups are in use: backend={backend}",
            key="job.log.backend",
            hint="end the move with `statekeep migrate-log`, or reset the job where its log is",
        )


async def reset_job(
    storage: LogStorage, config: Config, *, owner: str, is_dropping_savepoints: bool
) -> LogRemains:
    """Make a job start anew: fence it, delete its backups, then drop what its log says.

    After a crash half way the next reset deletes what is left. The job starts anew all the same, unless
    a record of its log cannot be read; but once it commits, its clean-up trims what names the rest.

    Args:
        storage: Of the log, whether it can be read or not.
        config: Of the job.
        owner: Host and process, for people.
        is_dropping_savepoints: Also if commits are kept under names.

    Returns:
        What the log said.

    Raises:
        ConfigError: As `require_resettable`: nothing was changed.
        RetriableError: A service may answer later; the log may be reset already.
    """
    await require_resettable(storage, is_dropping_savepoints=is_dropping_savepoints)
    check = partial(_require_resettable, is_dropping_savepoints=is_dropping_savepoints)

    async def delete(epoch: int, remains: LogRemains) -> None:
        for sweep in Sweep.of_remains(remains, epoch):
            await delete_leftovers(storage, config, sweep)
        for share in remains.shares:  # before the log forgets them
            await origins_of(storage).drop_pin(share, config.job.name)

    _, remains = await reset_log(storage.log, owner, check=check, delete=delete)
    return remains


def _require_resettable(remains: LogRemains, *, is_dropping_savepoints: bool) -> None:
    _require_here(remains)
    require_no_clones(remains.clones)
    if remains.has_damaged_clone_pins and not is_dropping_savepoints:
        raise ConfigError(
            "a record that keeps a commit for a clone is damaged",
            hint="promote each clone of the job first; if there is none, give --with-savepoints",
        )
    names = _savepoints(remains)
    if names and not is_dropping_savepoints:
        raise ConfigError(
            f"commits are kept under names: names={','.join(sorted(names))}",
            hint="drop them first, or give --with-savepoints",
        )


async def _read_remains(log: JobLog) -> LogRemains:
    """Read a log that is to be reset; damage is no obstacle, a newer release is."""
    try:
        return await read_remains(log)
    except UnknownFormatError as exc:
        exc.add_note("the log is not reset: this version cannot read which backups it names")
        raise


def _require_here(remains: LogRemains) -> None:
    if remains.moved_to is not None:
        raise ConfigError(
            f"the job log has moved, its backups are in use: backend={remains.moved_to}",
            key="job.log.backend",
        )


def _savepoints(remains: LogRemains) -> set[str]:
    return {name for name in remains.pins if not name.startswith(HOLD_PREFIX)}

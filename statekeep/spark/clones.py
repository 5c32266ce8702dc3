"""Clones of jobs, for programs."""

import os
from socket import gethostname

from statekeep.clock import SystemClock
from statekeep.errors import ConfigError
from statekeep.inspection.clone_ends import drop_clone as drop_it
from statekeep.inspection.clone_ends import promote_clone as promote_it
from statekeep.inspection.cloning import Clone, Cloning, make_clone, settings_of
from statekeep.inspection.job import open_job, open_log_storage
from statekeep.spark.given_settings import Settings, read_settings
from statekeep.spark.own_loop import run_apart
from statekeep.stores.temporary_directory import temporary_directory


def clone(
    settings: Settings,
    name: str,
    *,
    at: str | None = None,
    from_location: str | None = None,
    to_location: str | None = None,
) -> Clone:
    """Make a job on the state and offsets of a commit of another one, which may go on; copy no state.

    The clone shares the backups of that commit, and writes what changes to a place of its own. A pin in the
    other job keeps the commit until the clone needs it no longer, is promoted, or is dropped. The same call
    completes one that was cut off.

    Args:
        settings: Names the job to clone and its backends, as the query has them.
        name: Of the clone. Its query runs with ``job.name`` set to it, and with the same backends.
        at: Position, checkpoint id or pin of a retained commit; None: the current one.
        from_location: The checkpoint location of the job's query; only read.
        to_location: Where that of the clone's query is made. Without the two the clone is for a query with a
            fresh checkpoint location, which goes on from topics of Kafka.

    Raises:
        ConfigError: There is no such commit, a job of the name is there already, or the backups of the
            commit cannot be shared: they are encrypted, or in a backend that cannot.
        CheckpointLocationError: A checkpoint location is in use or another query's, or lacks a file.
        RetriableError: A service may answer later.
        TaskFencedError: Another process makes a job of this name.
    """
    config = read_settings(settings)
    if (from_location is None) != (to_location is None):
        raise ConfigError("from_location and to_location are given together or not at all")
    locations = None
    if from_location is not None and to_location is not None:
        locations = (from_location, to_location)
    cloning = Cloning(settings_of(config, name), SystemClock(), _owner(), locations)

    async def run() -> Clone:
        async with open_job(config, cloning.clock) as origin:
            return await make_clone(origin, at, cloning)

    return run_apart(run())


def promote_clone(settings: Settings, name: str, *, take_over: bool = False) -> int:
    """Give a stopped clone backups of its own, so that it uses nothing of another job any more.

    Needs local disk for the state of some tasks. The same call completes one that was cut off.

    Args:
        settings: Names the backends, as of `clone`.
        name: Of the clone.
        take_over: Also if no event says that its driver has stopped. It is fenced.

    Returns:
        The position of its newest commit.

    Raises:
        ConfigError: The job is no clone, or may be running; or commits that use backups of another job are
            kept under names, or for a clone of the clone.
        RestoreFailedError: No backend can give the state of a task.
        CommitFailedError: A backend did not take it.
        TaskFencedError: The job was started meanwhile.
        RetriableError: A service may answer later.
    """
    config = settings_of(read_settings(settings), name)

    async def run() -> int:
        with temporary_directory("statekeep-promote-") as directory:
            async with open_job(config, SystemClock()) as job:
                done = await promote_it(job, directory, owner=_owner(), is_taking_over=take_over)
        return done.position

    return run_apart(run())


def drop_clone(settings: Settings, name: str, *, with_savepoints: bool = False) -> None:
    """Delete a clone with its backups, and let its origin go; the origin stays as it is.

    A driver that still runs the clone is fenced. The same call completes one that was cut off, and clears
    away a clone that was not made to its end.

    Args:
        settings: Names the backends, as of `clone`.
        name: Of the clone.
        with_savepoints: Also if commits of the clone are kept under names.

    Raises:
        ConfigError: The job is no clone, has savepoints, or has a clone itself: nothing was changed.
        RetriableError: A service may answer later.
    """
    config = settings_of(read_settings(settings), name)

    async def run() -> None:
        async with open_log_storage(config, SystemClock()) as storage:
            await drop_it(storage, config, owner=_owner(), is_dropping_savepoints=with_savepoints)

    run_apart(run())


def _owner() -> str:
    return f"{gethostname()}:{os.getpid()}"

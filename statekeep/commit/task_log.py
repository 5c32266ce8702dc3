"""The log of one task in plain Python: how an owner takes it over, and what its commits say."""

from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import CheckpointId, CheckpointV2, StoreName, VersionId
from statekeep.checkpoint.log_session import LogSession, random_nonce
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import CommitRecord, JobIdentity
from statekeep.checkpoint.serde import encode_checkpoint_v2
from statekeep.errors import ConfigError
from statekeep.fault_points import fault_point


async def no_check() -> None:
    """Let every log begin."""


async def take_over_task(
    log: LogSession,
    task: TaskIdentity,
    stores: Collection[StoreName],
    *,
    owner: str,
    checkpoint_id: CheckpointId,
    check_new: Callable[[], Awaitable[None]] = no_check,
) -> JobIdentity:
    """Read a task's log, begin a new epoch, and close what older owners left open.

    Each task has a log of its own, with one "partition". So a task may move from one container to
    another: the new owner begins an epoch, and the old one is fenced at its next append, before it
    commits or deletes anything.

    Args:
        log: Nothing is read yet.
        task: Whose log it is.
        stores: The task's stores.
        owner: Host and process, for people.
        checkpoint_id: Id of the empty commit, if the log has no commit yet.
        check_new: Awaited before the first record of a log is written; raises if none may be.

    Returns:
        What the commits of this owner say of the job.

    Raises:
        ConfigError: The backend cannot hold a log, or holds another job's, or one whose making has
            not ended.
        CheckpointCorruptError: A record cannot be read.
        TaskFencedError: Yet another owner came in between.
    """
    await log.open()
    await _check_new(log, check_new)
    if log.view.last_commit is not None:
        _check_identity(log.view.last_commit.identity, task)
    _require_made(log.view, task)
    fault_point("take_over.before_epoch")
    await log.take_over(owner)
    fault_point("take_over.before_base")
    _require_made(log.view, task)
    store_names = {task.operator: sorted(map(str, stores))}
    current = log.view.last_commit
    if current is not None:
        await log.go_on_from("", current.batch)
        return msgspec.structs.replace(current.identity, stores=store_names)
    identity = JobIdentity(
        job_uid=random_nonce(), job_name=task.job_name, partitions=1, stores=store_names
    )
    await log.append(
        CommitRecord(
            attempt_epoch=log.epoch,
            attempt=0,
            batch=-1,
            checkpoint_id=checkpoint_id.serialize(),
            identity=identity,
        )
    )
    return identity


def versions_of_task(task: TaskIdentity, version: VersionId) -> Mapping[str, str]:
    """Return a version as records of the task's log hold it."""
    return {task.task_name: str(version)}


def commit_of_task(
    task: TaskIdentity,
    identity: JobIdentity,
    attempt: tuple[int, int],
    version: VersionId,
    checkpoint: CheckpointV2,
    *,
    batch: int,
) -> CommitRecord:
    """Return the record from which on a checkpoint counts.

    Args:
        task: Whose log it is.
        identity: What `take_over_task` returned.
        attempt: (epoch, attempt).
        version: The task's version, perhaps of an earlier commit.
        checkpoint: Its checkpoint, durable.
        batch: The number of the commit.
    """
    return CommitRecord(
        attempt_epoch=attempt[0],
        attempt=attempt[1],
        batch=batch,
        checkpoint_id=checkpoint.checkpoint_id.serialize(),
        identity=identity,
        checkpoints={task.task_name: msgspec.Raw(encode_checkpoint_v2(checkpoint))},
        versions=versions_of_task(task, version),
    )


def _require_made(view: LogView, task: TaskIdentity) -> None:
    """Make sure that the log is not that of a job which is being made from another one's state.

    Raises:
        ConfigError: It is: the state would be lost without a word.
    """
    if view.is_half_made:
        raise ConfigError(
            f"the job was only partly made: job={task.job_name} task={task.task_name}",
            key="job.name",
            hint="run the command again that was making it: `statekeep savepoint restore`, "
            "`rescale` or `spark-state import`; or `statekeep reset` this job, to start it with "
            "empty state",
        )


async def _check_new(log: LogSession, check_new: Callable[[], Awaitable[None]]) -> None:
    """Have a log checked that is empty; what speaks against it may be of an owner who began it now."""
    if log.view.next_position == 0:
        try:
            await check_new()
        except ConfigError:
            if (await log.poll()).next_position == 0:
                raise


def _check_identity(found: JobIdentity, task: TaskIdentity) -> None:
    if (found.job_name, found.partitions) != (task.job_name, 1):
        msg = (
            f"the log belongs to another job: job={task.job_name} "
            f"found_job={found.job_name} found_partitions={found.partitions}"
        )
        raise ConfigError(msg, key="job.name", hint="name another job or another backend")

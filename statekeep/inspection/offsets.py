"""Input offsets of a stopped job, set by a person; the state stays as it is."""

from collections.abc import Mapping
from dataclasses import replace

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoints import (
    CheckpointId,
    CheckpointV2,
    SystemStreamPartition,
    TaskName,
)
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import version_of
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.clock import Clock
from statekeep.commit.task_log import commit_of_task, take_over_task, versions_of_task
from statekeep.errors import ConfigError
from statekeep.inspection.job import InspectedJob


async def overwrite_input_offsets(
    job: InspectedJob,
    task_name: TaskName,
    offsets: Mapping[SystemStreamPartition, str],
    *,
    owner: str,
    clock: Clock,
) -> CheckpointV2:
    """Make a new commit of a task's current one: other input offsets, the same markers.

    Takes the task over: its current owner is fenced, and its open commit is aborted. For plain Python,
    where the checkpoint holds the input offsets; on Spark they are in the checkpoint location.

    Args:
        job: Opened on the log of this one task.
        task_name: The task.
        offsets: Those to change; the others stay.
        owner: Host and process, for people.
        clock: For the new checkpoint id.

    Raises:
        ConfigError: There is no commit yet, or it knows no such input: nothing was changed.
        TaskFencedError: Yet another owner came in between.

    Source: Samza 1.8 ``CheckpointTool``, which does not stop a running job.
    """
    _, commit = job.find_commit()
    checkpoint = job.checkpoint(commit, task_name)
    if checkpoint is None:
        raise ConfigError(f"the task has no commit with input offsets yet: task={task_name}")
    _check_inputs(checkpoint, offsets)
    stores = job.stores(commit)[MAIN_OPERATOR]
    task = TaskIdentity(
        commit.identity.job_name, MAIN_OPERATOR, task_name, job_uid=commit.identity.job_uid
    )
    log = LogSession(job.log)
    checkpoint_id = CheckpointId.at(clock.time_ns())
    identity = await take_over_task(log, task, stores, owner=owner, checkpoint_id=checkpoint_id)
    newest = log.view.last_commit or commit
    current = log.view.usable_checkpoint(newest, task_name)
    version = version_of(newest, task_name)
    if current is None or version is None:
        raise ConfigError(f"the task has no commit with input offsets yet: task={task_name}")
    changed = replace(
        current, checkpoint_id=checkpoint_id, input_offsets={**current.input_offsets, **offsets}
    )
    attempt = await log.begin_attempt(newest.batch, checkpoint_id, versions_of_task(task, version))
    await log.append(
        commit_of_task(task, identity, (log.epoch, attempt), version, changed, batch=newest.batch)
    )
    return changed


def _check_inputs(checkpoint: CheckpointV2, offsets: Mapping[SystemStreamPartition, str]) -> None:
    strangers = sorted(offsets.keys() - checkpoint.input_offsets.keys())
    if strangers:
        known = ",".join(
            f"{ssp.system}.{ssp.stream}.{ssp.partition}" for ssp in sorted(checkpoint.input_offsets)
        )
        ssp = strangers[0]
        raise ConfigError(
            f"the checkpoint has no such input: input={ssp.system}.{ssp.stream}.{ssp.partition} "
            f"inputs={known}"
        )

"""Clean-up for a whole job: the driver deletes for all tasks, as containers upload for theirs."""

import asyncio
from collections.abc import Mapping
from typing import Final

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.note import Note, no_note
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp, TaskSweep
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.spark.tasks import STATE_STORE, partition_of, task_name
from statekeep.spark.worker.job_spec import JobSpec

_TASKS_AT_ONCE: Final = 8
"""Enough to overlap waiting; a job may have hundreds of tasks, and each needs clients."""


def job_clean_up(
    spec: JobSpec,
    partitions: int,
    factories: Mapping[BackendName, StateBackendFactory],
    *,
    log: LogSession,
    checkpoints: CheckpointStore,
    executor: BlockingExecutor,
    clock: Clock,
    note: Note = no_note,
) -> CleanUp:
    """Return the clean-up of a job, on the commit thread's loop."""
    places = asyncio.Semaphore(_TASKS_AT_ONCE)

    async def delete(sweep: TaskSweep) -> bool:
        """Let the backends of one task delete; nothing of them is kept open between runs."""
        async with places:
            pipeline = TaskCommitPipeline(
                spec.task(partition_of(sweep.task)),
                {STATE_STORE: spec.config.store(STATE_STORE)},
                factories,
                executor=executor,
                clock=clock,
            )
            if sweep.newest is not None:
                pipeline.leave_out(sweep.newest)
            try:
                return await pipeline.clean_up(sweep.retained, sweep.closed)
            finally:
                await pipeline.close()

    return CleanUp(
        log,
        [task_name(partition) for partition in range(partitions)],
        delete,
        spec.config.checkpoint,
        clock,
        checkpoints=checkpoints,
        note=note,
        subject=f"job={spec.config.job.name}",
    )

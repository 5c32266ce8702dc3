"""Release what is no longer worth keeping, delete what only that reaches, trim the log (R8)."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from statekeep.backends.base import BlockingExecutor, StateBackendFactory
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.log_writer import LogWriter
from statekeep.checkpoint.records import ReleaseRecord
from statekeep.clock import Clock
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.pipeline import TaskCommitPipeline
from statekeep.commit.retention import closed_attempts, commits_to_release
from statekeep.errors import RetriableError, StateBackupError, TaskFencedError
from statekeep.spark.driver.markers import usable
from statekeep.spark.worker.job_spec import STATE_STORE, JobSpec, task_name

logger = logging.getLogger(__name__)


class CleanUp:
    """Runs after each commit, off its path, on the commit thread's loop; one run at a time.

    A run that fails or is cut off is made up for by the next one, also by the next driver: what
    is released or void stays in the log until its blobs are gone.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        partitions: int,
        factories: Mapping[BackendName, StateBackendFactory],
        writer: LogWriter,
        checkpoints: CheckpointStore,
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._writer = writer
        self._checkpoints = checkpoints
        store = spec.config.store(STATE_STORE)
        self._pipelines = {
            partition: TaskCommitPipeline(
                spec.task(partition),
                {STATE_STORE: store},
                factories,
                executor=executor,
                clock=clock,
                metrics=CommitMetrics(),
            )
            for partition in range(partitions)
        }
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Release, delete, trim; a failure is a warning and is retried after the next commit."""
        async with self._running:
            try:
                await self._run()
            except TaskFencedError as exc:
                logger.warning("clean-up stopped, another driver has taken over: error=%s", exc)
            except (StateBackupError, RetriableError, ExceptionGroup) as exc:
                logger.warning("clean-up failed and will be repeated: error=%s", exc)

    async def close(self) -> None:
        """Close the backends. Idempotent."""
        async with self._running:
            for pipeline in self._pipelines.values():
                await pipeline.close()

    async def _run(self) -> None:
        view = self._writer.view
        positions = commits_to_release(view, self._spec.config.checkpoint.retain_commits)
        if positions:
            # A fenced driver finds out here, before anything is deleted.
            await self._writer.append(ReleaseRecord(epoch=0, nonce="", positions=positions))
        closed = closed_attempts(view)
        if not closed:
            return
        retained = {partition: _retained(view, partition) for partition in self._pipelines}
        async with asyncio.TaskGroup() as group:
            for partition, pipeline in self._pipelines.items():
                group.create_task(pipeline.clean_up(retained[partition], closed))
        for epoch, attempt in closed:
            await self._checkpoints.delete(f"{epoch}-{attempt}")
        await self._writer.trim(view.lowest_needed)
        logger.info("clean-up done: attempts=%d released=%d", len(closed), len(positions))


def _retained(view: LogView, partition: int) -> Sequence[CheckpointV2]:
    name = task_name(partition)
    return [
        usable(name, bytes(commit.checkpoints[name]), view.bad_markers)
        for commit in view.commits.values()
        if name in commit.checkpoints
    ]

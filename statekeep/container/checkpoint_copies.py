"""Checkpoints in Samza's forms, beside the job log: written after it, read where it is new."""

import logging
from collections.abc import Callable

from statekeep.backends.base import TaskIdentity
from statekeep.checkpoint.checkpoint_manager import CheckpointManager
from statekeep.checkpoint.checkpoints import CheckpointV2
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.records import JobIdentity, ReleaseRecord
from statekeep.checkpoint.version_id import VersionId
from statekeep.container.task_log import commit_of_task, versions_of_task
from statekeep.errors import CommitFailedError, ConfigError, RetriableError

logger = logging.getLogger(__name__)


class CheckpointCopies:
    """Copies a task's commits to the place of ``task.checkpoint.factory``, if there is one.

    The job log alone decides what a task starts from, except for its very first start.
    """

    def __init__(self, manager: CheckpointManager | None, task: TaskIdentity) -> None:
        """Take the place; None: nothing is copied and nothing found."""
        self._manager = manager
        self._task = task

    async def adopt(
        self, log: LogSession, identity: JobIdentity, new_uid: Callable[[], str]
    ) -> None:
        """Make a commit of what the place holds, if the log has none but the empty one.

        So the task goes on where a job of Samza had got to. The empty commit is released: what was
        adopted is restored, or the start fails.

        Raises:
            CheckpointCorruptError: What the place holds cannot be read.
            RetriableError: The place may answer later.
            TaskFencedError: Yet another owner has taken over.
        """
        current = log.view.last_commit
        if self._manager is None or current is None:
            return
        empty = [position for position, commit in log.view.commits.items() if commit.batch < 0]
        if current.batch >= 0:
            if empty:
                await log.append(
                    ReleaseRecord(positions=empty)
                )  # the owner before did not get to it
            return
        found = await self._manager.read_last(self._task.task_name)
        if found is None:
            return
        version = VersionId(current.batch + 1, new_uid())
        attempt = await log.begin_attempt(
            version.batch, found.checkpoint_id, versions_of_task(self._task, version)
        )
        await log.append(commit_of_task(self._task, identity, (log.epoch, attempt), version, found))
        await log.append(ReleaseRecord(positions=empty))
        logger.info(
            "task goes on from a checkpoint of another log: task=%s checkpoint_id=%s",
            self._task.task_name,
            found.checkpoint_id,
        )

    async def has_any(self) -> bool:
        """Return whether `adopt` will find a checkpoint.

        Raises:
            CheckpointCorruptError: What the place holds cannot be read.
            RetriableError: The place may answer later.
        """
        if self._manager is None:
            return False
        return await self._manager.read_last(self._task.task_name) is not None

    async def write(self, checkpoint: CheckpointV2, log: LogSession) -> None:
        """Copy a checkpoint whose commit record stands in the log.

        Not if somebody else has taken over since: the place takes whatever is written last.

        Raises:
            CommitFailedError: It cannot be copied; the commit counts all the same, and the next one
                is copied again.
            TaskFencedError: Another owner has taken over; the commit counts all the same.
        """
        if self._manager is None:
            return
        try:
            await log.check_fence()
            await self._manager.write(self._task.task_name, checkpoint)
        except (ConfigError, RetriableError) as exc:
            raise CommitFailedError(
                f"the committed checkpoint could not be copied: task={self._task.task_name}",
                checkpoint_id=checkpoint.checkpoint_id.serialize(),
                step="checkpoint",
            ) from exc

    async def close(self) -> None:
        """Release clients. Idempotent."""
        if self._manager is not None:
            await self._manager.close()

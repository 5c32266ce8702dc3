"""What became of one wish to commit."""

import asyncio
from typing import Self

from statekeep.checkpoint.checkpoint_id import CheckpointId
from statekeep.checkpoint.checkpoints import CheckpointV2


class TaskCommit:
    """One commit of a task: skipped, or started and then durable or failed.

    Used on the container's event loop. Nothing happens to the commit itself when its waiter is
    cancelled, and a commit that nobody waits for is no leak.
    """

    def __init__(self, checkpoint_id: CheckpointId | None) -> None:
        self.checkpoint_id = checkpoint_id
        """Id of the commit; None if it was skipped."""
        self._ended = asyncio.Event()
        self._checkpoint: CheckpointV2 | None = None
        self._error: Exception | None = None

    @classmethod
    def skipped(cls) -> Self:
        """Return the answer to a wish that came too early; processing just goes on."""
        commit = cls(None)
        commit._ended.set()
        return commit

    @property
    def is_started(self) -> bool:
        """Whether a commit was begun; if not, it was skipped and is due again later."""
        return self.checkpoint_id is not None

    def done(self) -> bool:
        """Return whether it has ended: durable, failed, or skipped in the first place."""
        return self._ended.is_set()

    async def wait(self) -> CheckpointV2 | None:
        """Wait until the commit has ended and return its checkpoint; None if it was skipped.

        Raises:
            CommitFailedError: It is not durable; the commit before it is still current.
            TaskFencedError: Another container has taken over the task: stop, never restart.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._checkpoint

    def succeed(self, checkpoint: CheckpointV2) -> None:
        """Take note that it is durable; called by the one who runs it."""
        self._checkpoint = checkpoint
        self._ended.set()

    def fail(self, error: Exception) -> None:
        """Take note that it failed; called by the one who runs it."""
        self._error = error
        self._ended.set()

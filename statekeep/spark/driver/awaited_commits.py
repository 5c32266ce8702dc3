"""Commits that a batch call waits for: in every batch, or where a replay would get too long (R5)."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from statekeep.config.model import TaskSettings
from statekeep.errors import CommitFailedError
from statekeep.spark.driver.reign import Reign
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.worker.job_spec import VERSION_NOT_HERE

logger = logging.getLogger(__name__)

_MAX_ROUNDS: Final = 8
"""Versions may be lost and healed in each round; a cluster that loses some in all is failing."""


class AwaitedCommits:
    """Hands over by a job of its own and waits for the end. Blocking, on the batch thread."""

    def __init__(
        self,
        settings: TaskSettings,
        reign: Reign,
        jobs: TaskJobs,
        versions: Callable[[int], Mapping[int, str]],
        heal: Callable[[frozenset[int], int], None],
    ) -> None:
        """Wire it.

        Args:
            settings: Time-out and replay limit.
            reign: Its committer is used.
            jobs: The anchored jobs.
            versions: Gives ``{partition: VersionId}`` after a batch.
            heal: Brings the given tasks, which lost their version, to the state after a batch.
        """
        self._settings = settings
        self._reign = reign
        self._jobs = jobs
        self._versions = versions
        self._heal = heal

    def commit_inside_call(self, batch: int) -> None:
        """Commit the batch that is being called: the mode that commits every batch.

        Raises:
            CommitFailedError: It could not be committed, whatever is tolerated elsewhere: the next
                batch must not be delivered on top of it.
        """
        checkpoint_id = self._commit(batch)
        if self._reign.committer.committed_batch < batch:
            msg = f"the batch could not be committed: batch={batch}"
            error = CommitFailedError(msg, checkpoint_id=checkpoint_id, step="record")
            # What it failed by names the task and the backend.
            raise self._reign.committer.final_error or error

    def commit_at_limit(self, batch: int) -> None:
        """Let no batch be processed before ``batch`` is committed: a replay could be impossible.

        Raises:
            CommitFailedError: More commits failed in a row than are tolerated.
        """
        committer, limit = self._reign.committer, self._settings.replay_max_batches
        logger.warning(
            "processing waits for a commit: head=%d committed=%d task.replay.max.batches=%d",
            batch,
            committer.committed_batch,
            limit,
        )
        try:
            while committer.committed_batch < batch:
                self._commit(batch)
        except CommitFailedError as exc:
            exc.add_note(
                f"hint: {limit} batches (task.replay.max.batches) are without a commit; mend the"
                " backend, or raise this together with spark.sql.streaming.minBatchesToRetain"
            )
            raise

    def _commit(self, batch: int) -> str:
        """Wait for the end of one attempt, which may fail; return its id."""
        committer = self._reign.committer
        timeout_s = self._settings.commit_timeout_ms / 1000
        checkpoint_id = ""
        for _ in range(_MAX_ROUNDS):
            plan = self._reign.run(committer.prepare(batch, self._versions(batch), is_forced=True))
            if plan is None:
                return checkpoint_id
            checkpoint_id = plan.checkpoint_id
            errors = self._jobs.hand_over(plan)
            self._reign.run(committer.handed_over(plan, errors))
            self._reign.run(committer.settle(timeout_s))
            lost = frozenset(p for p, why in errors.items() if why.startswith(VERSION_NOT_HERE))
            if not lost:
                return checkpoint_id
            self._heal(lost, batch)
        msg = f"gave up after {_MAX_ROUNDS} recovery rounds, as versions were lost each time: batch={batch}"
        raise CommitFailedError(msg, checkpoint_id=checkpoint_id, step="upload")

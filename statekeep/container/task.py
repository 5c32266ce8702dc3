"""A task of a program that hosts its own container: stores, commits, and where it had got to."""

import logging
from collections.abc import Mapping

from statekeep.checkpoint.checkpoints import StoreName, SystemStreamPartition, TaskName
from statekeep.checkpoint.error_summary import report_end
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import version_of
from statekeep.commit.clean_up import CleanUp
from statekeep.commit.metrics import CommitMetrics
from statekeep.commit.pipeline import TaskStorageCommitManager
from statekeep.container.task_commits import TaskCommit, TaskCommits
from statekeep.container.task_events import TaskEvents
from statekeep.container.task_stores import TaskStores
from statekeep.errors import BackendClosedError, StateBackupError
from statekeep.events import Event, Report
from statekeep.restore.manager import RestoreOutcome
from statekeep.stores.base import KeyValueStore
from statekeep.stores.version import SealedVersion

logger = logging.getLogger(__name__)


class Task:
    """One task. Made by `Container.start_task`; used by one coroutine of its event loop at a time.

    The loop of a program is: read input from after `input_offsets`, process it on the stores, and
    now and then `commit` the offsets that the stores have taken in. After any crash the task starts
    again with the stores exactly as they were at `input_offsets`.
    """

    def __init__(
        self,
        name: TaskName,
        *,
        stores: TaskStores,
        commits: TaskCommits,
        log: LogSession,
        pipeline: TaskStorageCommitManager,
        clean_up: CleanUp,
        metrics: CommitMetrics,
        restored: RestoreOutcome,
        events: TaskEvents,
        report: Report,
        shutdown_ms: int,
    ) -> None:
        """Use `Container.start_task`."""
        self.name = name
        self.metrics = metrics
        self.restored = restored
        """What the restore came to: sources, bytes, and every step down."""
        checkpoint = restored.candidate.checkpoint
        self.input_offsets: Mapping[SystemStreamPartition, str] = (
            {} if checkpoint is None else checkpoint.input_offsets
        )
        """Last processed offset of each input when the restored commit was made; empty before the
        first commit."""
        self._stores = stores
        self._commits = commits
        self._log = log
        self._pipeline = pipeline
        self._clean_up = clean_up
        self._events = events
        self._report = report
        self._shutdown_ms = shutdown_ms
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def epoch(self) -> int:
        """Epoch of this owner's session."""
        return self._log.epoch

    @property
    def last_error(self) -> Exception | None:
        """Why the newest commit failed, as soon as it did; None after a success."""
        return self._commits.last_error

    def store(self, name: str) -> KeyValueStore:
        """Return an open store.

        Raises:
            BackendClosedError: After `close`.
            KeyError: The task was not started with it.
        """
        self._check_open()
        return self._stores.store(StoreName(name))

    def is_commit_due(self) -> bool:
        """Return whether ``task.commit.ms`` is over, or a skipped commit can be made up for.

        Asked in the last tenth of that time, it begins to flush the stores in the background, so
        that the pause of the commit is short. Progress events that have waited for long enough are
        written from here too.
        """
        is_due = self._commits.is_due()
        if not is_due and not self._is_closed and self._commits.is_near():
            self._stores.prepare_seal()
        self._events.poll()
        return is_due

    async def commit(
        self, input_offsets: Mapping[SystemStreamPartition, str], *, force: bool = False
    ) -> TaskCommit:
        """Commit the stores as they are now, together with the input that they have taken in.

        Returns once the stores are sealed locally (milliseconds); the upload goes on while the
        task processes. With a commit in flight for less than ``task.commit.max.delay.ms`` this one
        is skipped; after that it waits, at most ``task.commit.timeout.ms``. Write nothing to the
        stores before it returns. Stores that have not changed since the last commit are not uploaded
        again; if the offsets are those of that commit too, it stands for this one.

        Args:
            input_offsets: Last processed offset of each input, all of them each time.
            force: Wait for the commit in flight instead of skipping this one, and make a new one
                even if nothing has changed.

        Raises:
            CommitFailedError: More commits in a row failed than are tolerated, or the stores could
                not be sealed.
            TaskFencedError: Another container has taken over the task: stop, never restart.
            BackendClosedError: After `close`.
        """
        self._check_open()
        return await self._commits.request(self._seal, input_offsets, is_forced=force)

    async def wait(self) -> None:
        """Wait until no commit and no clean-up is under way.

        Raises:
            CommitFailedError: The newest commit failed.
            TaskFencedError: Another container has taken over the task.
        """
        await self._commits.wait()
        await self._clean_up.wait()

    def report(self, event: Event) -> None:
        """Report an event of the task that its container has seen."""
        self._report(event)

    async def close(self) -> None:
        """Let the commit in flight finish, within ``task.shutdown.ms``, and release everything.

        What was written after the last commit is dropped. Idempotent.

        Raises:
            ExceptionGroup: Something could not be released; the rest was.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self._commits.finish(self._shutdown_ms)
        await self._clean_up.close(0)
        errors: list[Exception] = []
        parts = (self._pipeline, self._stores, self._log)
        for close in (self._end_events, *(part.close for part in parts)):
            try:
                await close()
            except (StateBackupError, OSError, ExceptionGroup) as exc:
                errors.append(exc)
        logger.info("task is closed: task=%s errors=%d", self.name, len(errors))
        if errors:
            msg = f"closing a task failed: task={self.name}"
            raise ExceptionGroup(msg, errors)

    async def _end_events(self) -> None:
        current, head = self._log.view.last_commit, self._stores.head
        report_end(
            self._report,
            self._commits.last_error,
            committed=-1 if current is None else current.batch,
            head=-1 if head is None else head.id.batch,
        )
        await self._events.end()

    async def _seal(self) -> tuple[int, SealedVersion]:
        current = self._log.view.last_commit
        return await self._stores.seal(None if current is None else version_of(current, self.name))

    def _check_open(self) -> None:
        if self._is_closed:
            msg = f"the task is closed: task={self.name}"
            raise BackendClosedError(msg)

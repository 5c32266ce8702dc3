"""What a clone uses of other jobs, and when the pins that keep it there may go."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from statekeep.backends.base import BlockingExecutor, StateBackendFactory, TaskIdentity
from statekeep.backends.optional_powers import SharesBackups
from statekeep.backends.seals import open_job_log
from statekeep.checkpoint.checkpoints import BackendName, Marker, StoreName, TaskName
from statekeep.checkpoint.job_log import JobLog
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView, checkpoint_of
from statekeep.checkpoint.names import MAIN_OPERATOR, job_scope
from statekeep.checkpoint.records import CommitRecord, Share
from statekeep.clock import Clock
from statekeep.commit.retention import ReadCommits
from statekeep.errors import CheckpointCorruptError, ConfigError, UnknownFormatError
from statekeep.fault_points import fault_point

logger = logging.getLogger(__name__)

CLONE_PREFIX: Final = "clone:"
"""Begins the names of pins that clones hold."""


def shared_tasks(
    commit: CommitRecord, factories: Mapping[BackendName, StateBackendFactory]
) -> list[TaskName]:
    """Return the tasks of a clone's commit that name backups of another job, sorted.

    A backend that the settings do not name may hold such backups.

    Raises:
        CheckpointCorruptError: A checkpoint in the record cannot be read.
    """
    identity = commit.identity
    if not identity.shares:
        return []

    def is_shared(name: str) -> bool:
        checkpoint = checkpoint_of(commit, name)
        if checkpoint is None:
            return False
        task = TaskIdentity(
            identity.job_name, MAIN_OPERATOR, TaskName(name), job_uid=identity.job_uid
        )
        return any(
            not _is_own(factories.get(backend), task, stores)
            for backend, stores in checkpoint.state_markers.items()
        )

    return [TaskName(name) for name in sorted(commit.checkpoints) if is_shared(name)]


def _is_own(
    factory: StateBackendFactory | None, task: TaskIdentity, markers: Mapping[StoreName, Marker]
) -> bool:
    if factory is None:
        return not markers
    if not isinstance(factory, SharesBackups):
        return True
    return all(factory.is_own(task, store, marker) for store, marker in markers.items())


class OriginLogs:
    """The logs of the jobs that a clone shares commits with; found by the backends of the clone."""

    def __init__(
        self,
        factories: Mapping[BackendName, StateBackendFactory],
        executor: BlockingExecutor,
        clock: Clock,
    ) -> None:
        """Take what a log is opened with; no I/O."""
        self._factories = factories
        self._executor = executor
        self._clock = clock

    def check(self, shares: Iterable[Share]) -> None:
        """Make sure that the settings name the backends of these logs.

        Raises:
            ConfigError: They do not.
        """
        for share in shares:
            self._require_named(share.log, share)

    async def pin(self, share: Share, clone: str) -> None:
        """Keep a commit of another job for a clone.

        Raises:
            ConfigError: The job is gone or was reset, or does not hold the commit any more.
            RetriableError: A service may answer later.
        """
        session = await self._find(share)
        if session is None:
            raise _gone(share)
        try:
            if not _is_of(session.view, share) or share.position not in session.view.commits:
                raise _gone(share)
            await session.pin(share.pin, share.position, clone=clone)
        finally:
            await session.close()

    async def drop_pin(self, share: Share, clone: str) -> None:
        """Give the commit back; one that is not kept, or whose job is gone, is no error.

        Raises:
            ConfigError: The settings do not name the backend of the log.
            RetriableError: A service may answer later; the call may be repeated.
        """
        try:
            session = await self._find(share)
        except (CheckpointCorruptError, UnknownFormatError) as exc:
            logger.warning(
                "the log of a clone's origin cannot be read, its pin stays: job=%s pin=%s error=%s",
                share.job_name,
                share.pin,
                exc,
            )
            return
        if session is None:
            return
        try:
            if share.pin in session.view.clones:
                fault_point("clone.before_unpin")
                await session.unpin(share.pin, clone=clone)
        finally:
            await session.close()

    async def _find(self, share: Share) -> LogSession | None:
        """Return a pin writer of the log of a job, wherever it has moved; None if it is not there."""
        backend, seen = share.log, set[str]()
        while True:
            seen.add(backend)
            log = self._open(backend, share)
            session = LogSession(log)
            is_found = False
            try:
                if not await log.is_there():
                    return None
                moved_to = (await session.poll()).moved_to
                is_found = moved_to is None or moved_to in seen
            finally:
                if not is_found:
                    await session.close()
            if moved_to is None or is_found:
                return session
            backend = moved_to

    def _open(self, backend: str, share: Share) -> JobLog:
        self._require_named(backend, share)
        name, scope = BackendName(backend), job_scope(share.job_name)
        return open_job_log(self._factories, name, scope, self._executor, self._clock)

    def _require_named(self, backend: str, share: Share) -> None:
        if BackendName(backend) not in self._factories:
            raise ConfigError(
                "the settings do not name the backend that holds the log of the clone's origin: "
                f"backend={backend} origin={share.job_name}",
                key=f"backends.{backend}.factory",
                hint="give the backends that the clone was made with",
            )


def _is_of(view: LogView, share: Share) -> bool:
    return view.last_commit is not None and view.last_commit.identity.job_uid == share.job_uid


def _gone(share: Share) -> ConfigError:
    return ConfigError(
        "the job was reset, or does not hold the commit any more: "
        f"job={share.job_name} commit={share.position}",
        hint="choose another commit: `statekeep checkpoints list` shows what is retained. Of a job that is a"
        " clone itself, `statekeep clone promote` gives it backups of its own, if its origin is still there",
    )


async def commits_that_share(
    view: LogView,
    factories: Mapping[BackendName, StateBackendFactory],
    read_commits: ReadCommits,
) -> list[int]:
    """Return the retained commits of a clone that name backups of other jobs, oldest first.

    Raises:
        CheckpointCorruptError: A commit cannot be read.
        RetriableError: The log may answer later.
    """
    records = await read_commits(list(view.commits))
    return [position for position, commit in records.items() if shared_tasks(commit, factories)]


class OriginPins:
    """Drops the pins of a clone in other jobs once it has backups of its own of all that it retains.

    The pins may go as soon as no retained commit of the clone names a backup of another job. A later commit
    takes over only what a retained one names, so none will name any again.
    """

    def __init__(
        self,
        log: LogSession,
        factories: Mapping[BackendName, StateBackendFactory],
        origins: OriginLogs,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what is asked.

        Args:
            log: Of the clone.
            factories: Its backends.
            origins: Where the other logs are.
            on_gone: Called once the pins are dropped: later commits need not name the other jobs.
        """
        self._log = log
        self._factories = factories
        self._origins = origins
        self._on_gone = on_gone
        self._sharing = -1
        """A commit that was found to name a backup of another job: no other has to be read."""

    async def drop_unneeded(self) -> bool:
        """Drop the pins if it is time to, and return whether they are; False too for a job that is no clone.

        Raises:
            ConfigError: The settings do not name a backend that holds the log of an origin.
            CheckpointCorruptError: A commit of the clone cannot be read.
            RetriableError: A service may answer later; the call may be repeated.
        """
        view = self._log.view
        newest = view.last_commit
        if newest is None or not newest.identity.shares:
            return False
        if shared_tasks(newest, self._factories) or self._sharing in view.commits:
            return False
        sharing = await commits_that_share(view, self._factories, self._log.read_commits)
        if sharing:
            self._sharing = sharing[-1]
            return False
        for share in newest.identity.shares:
            await self._origins.drop_pin(share, newest.identity.job_name)
        logger.info(
            "the clone uses no backups of other jobs any more: job=%s", newest.identity.job_name
        )
        self._on_gone()
        return True

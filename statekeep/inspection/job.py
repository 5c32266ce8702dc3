"""A job's log and backups, opened by a process that is not the job."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.optional_powers import ListsTaskLogs
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.seals import open_checkpoint_store, open_job_log
from statekeep.checkpoint.checkpoints import BackendName, CheckpointV2, StoreName, TaskName
from statekeep.checkpoint.event_log import KEPT_SESSIONS, Event, read_events
from statekeep.checkpoint.job_log import CheckpointStore, JobLog
from statekeep.checkpoint.log_reader import LogReader
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.names import MAIN_OPERATOR, MAIN_STORE, job_scope, task_scope
from statekeep.checkpoint.records import CommitRecord, KeptRecord, Record
from statekeep.clock import Clock
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.origins import CLONE_PREFIX, OriginLogs
from statekeep.config.model import Config
from statekeep.errors import ConfigError
from statekeep.events import Report
from statekeep.inspection.nearest import nearest_hint
from statekeep.inspection.reading_pin import HOLD_PREFIX, reading_pin
from statekeep.inspection.task_restore import Progress, checkpoint_in, restore_task, stores_of
from statekeep.restore.manager import RestoreOutcome

_THREADS: Final = 16
_ABANDONED_AFTER_S: Final = 3.0
"""Enough to end well where a service answers."""
OTHER_NAME: Final = re.compile(r"[0-9]+(-[0-9]+)?")
"""A position or a checkpoint id, by which a commit may be named too."""


class NoSuchJobError(ConfigError):
    """Raised when there is no log of the job, or of its task, where it is looked for."""


@dataclass(frozen=True, slots=True)
class LogStorage:
    """Where the log of a job, or of one task, is or will be, and the backends beside it."""

    scope: str
    log: JobLog
    log_backend: BackendName
    factories: Mapping[BackendName, StateBackendFactory]
    """Every backend that a store lists, and the one that holds the log."""
    executor: BoundedExecutor
    clock: Clock

    def checkpoint_store(self) -> CheckpointStore:
        """Return where sidecars put checkpoints for the driver; closed by the caller."""
        return open_checkpoint_store(
            self.factories, self.log_backend, self.scope, self.executor, self.clock
        )

    def log_in(self, backend: BackendName) -> JobLog:
        """Return the log of the same scope in a backend of ``factories``; closed by the caller."""
        return open_job_log(self.factories, backend, self.scope, self.executor, self.clock)


def origins_of(storage: LogStorage) -> OriginLogs:
    """Return the logs of the jobs that a clone shares commits with."""
    return OriginLogs(storage.factories, storage.executor, storage.clock)


class InspectedJob:
    """The log of a job as it stood when it was opened, and its backups.

    Made by `open_job`; used on its event loop until the end of that block. Reads only, but for
    what `pin_writer` writes.

    Attributes:
        config: What the job was opened with.
        storage: Where the log and the backups are; closed with the block.
        log: That of ``storage``.
        records: Every record of the log that can be read, with its position.
        view: What the log amounts to.
        executor: That of ``storage``.
        clock: That of ``storage``.
    """

    def __init__(
        self,
        config: Config,
        storage: LogStorage,
        *,
        records: Sequence[tuple[int, Record]],
        view: LogView,
    ) -> None:
        self.config = config
        self.storage = storage
        self.records = records
        self._commits = {r.position: r.commit for _, r in records if isinstance(r, KeptRecord)}
        self._commits |= {p: record for p, record in records if isinstance(record, CommitRecord)}
        self.view = view
        self.log = storage.log
        self.executor = storage.executor
        self.clock = storage.clock

    @property
    def pin_writer(self) -> LogSession:
        """What writes pins beside the job's own driver."""
        return LogSession(self.log)

    async def progress(self, others: Iterable[int] = ()) -> Sequence[Event]:
        """Return the progress events of the newest sessions, oldest first; what is damaged is left out.

        Args:
            others: Epochs of more sessions.

        Raises:
            RetriableError: The service may answer later.
        """
        store = self.storage.checkpoint_store()
        newest = self.view.epoch
        try:
            epochs = range(max(1, newest - KEPT_SESSIONS + 1), newest + 1)
            return await read_events(store, {*epochs, *others})
        finally:
            await store.close()

    @asynccontextmanager
    async def held(self, position: int) -> AsyncGenerator[None]:
        """Keep a commit from being released for as long as it is read: see `reading_pin`.

        Raises:
            ConfigError: It is released already.
            RetriableError: A service may answer later.
        """
        async with reading_pin(self.log, position, self.clock):
            yield

    def find_commit(self, which: str | None = None) -> tuple[int, CommitRecord]:
        """Return a retained commit with its position.

        Args:
            which: The name of its pin, its position, or its checkpoint id; None: the current one.

        Raises:
            ConfigError: There is no such commit, or it is released.
        """
        view = self.view
        if which is None:
            if view.last_commit is not None:
                return view.last_commit_position, view.last_commit
            raise ConfigError(f"the job has no commit yet: job={self.config.job.name}")
        if which in view.pins:
            return view.pins[which], self.commit_at(view.pins[which])
        for position, commit in view.commits.items():
            if which in (str(position), commit.checkpoint_id):
                return position, self.commit_at(position)
        is_released = any(
            which in (str(position), commit.checkpoint_id)
            for position, commit in view.released.items()
        )
        what = "the commit is released" if is_released else "no such commit"
        known = ",".join(map(str, view.commits))
        raise ConfigError(
            f"{what}: commit={which} retained={known}",
            hint=nearest_hint(
                which, view.pins, "`statekeep checkpoints list` shows what is retained"
            ),
        )

    def commit_at(self, position: int) -> CommitRecord:
        """Return the record of a retained commit."""
        return self._commits[position]

    async def read_commits(self, positions: Iterable[int]) -> Mapping[int, CommitRecord]:
        """As `LogReader.read_commits`."""
        return {position: self._commits[position] for position in positions}

    def checkpoint(self, commit: CommitRecord, task: TaskName) -> CheckpointV2 | None:
        """As `checkpoint_in`."""
        return checkpoint_in(commit, task)

    def stores(self, commit: CommitRecord) -> Mapping[str, Sequence[StoreName]]:
        """As `stores_of`."""
        return stores_of(commit)

    async def restore(
        self,
        commit: CommitRecord,
        task: TaskName,
        directory: Path,
        *,
        backend: BackendName | None = None,
        on_progress: Progress = lambda _: None,
    ) -> RestoreOutcome:
        """Restore one task's state at a commit of this job, as `restore_task` does."""
        return await restore_task(
            self.config,
            self.storage.factories,
            commit,
            task,
            directory,
            executor=self.executor,
            clock=self.clock,
            bad_markers=self.view.bad_markers,
            backend=backend,
            on_progress=on_progress,
        )


def check_pin_name(name: str) -> None:
    """Make sure that a commit may be kept under a name.

    Raises:
        ConfigError: It means something else, or is one of our own.
    """
    if name.startswith((HOLD_PREFIX, CLONE_PREFIX)) or OTHER_NAME.fullmatch(name):
        raise ConfigError(
            f"no commit can be kept under this name: name={name}",
            hint="choose one that is not a position or checkpoint id and does not begin with "
            f"{HOLD_PREFIX!r} or {CLONE_PREFIX!r}",
        )


@asynccontextmanager
async def open_log_storage(
    config: Config,
    clock: Clock,
    *,
    task: str | None = None,
    threads: int = _THREADS,
    report: Report | None = None,
) -> AsyncGenerator[LogStorage]:
    """Open the storage of a log without reading it; arguments and errors as of `open_job`."""
    executor = BoundedExecutor(threads, "statekeep-inspect")
    try:
        with hung_calls_abandoned(executor):
            async with _log_storage(config, clock, task, executor, report) as storage:
                yield storage
    finally:
        await executor.close()


@contextmanager
def hung_calls_abandoned(executor: BoundedExecutor) -> Generator[None]:
    """Wait for no call much longer once the block is cancelled: a service may hang."""
    try:
        yield
    except asyncio.CancelledError:
        asyncio.get_running_loop().call_later(_ABANDONED_AFTER_S, executor.abandon)
        raise


@asynccontextmanager
async def _log_storage(
    config: Config, clock: Clock, task: str | None, executor: BoundedExecutor, report: Report | None
) -> AsyncGenerator[LogStorage]:
    registry = BackendRegistry(config)
    factories = dict(registry.factories(MAIN_STORE if task is None else ""))
    if config.job.log_backend is not None:
        listed = BackendName(config.job.log_backend)
        factories[listed] = registry.factory(listed)
    if report is not None:
        for factory in factories.values():
            factory.report_requests(report)
    name = name_of_job(config, task)
    scope = job_scope(name) if task is None else task_scope(name, MAIN_OPERATOR, task)
    log_backend = _log_backend(config, factories)
    log = open_job_log(factories, log_backend, scope, executor, clock)
    try:
        yield LogStorage(scope, log, log_backend, factories, executor, clock)
    finally:
        await log.close()


class OpenJob(Protocol):
    """`open_job`, or one that says meanwhile that the log is read."""

    def __call__(
        self, config: Config, clock: Clock, *, task: str | None = None
    ) -> AbstractAsyncContextManager[InspectedJob]:
        """Open a job."""
        ...


@asynccontextmanager
async def open_job(
    config: Config,
    clock: Clock,
    *,
    task: str | None = None,
    threads: int = _THREADS,
    report: Report | None = None,
) -> AsyncGenerator[InspectedJob]:
    """Open a job's log and backends, without fencing the job.

    Args:
        config: Names the job and its backends, as the job itself has them.
        clock: For durations and retries.
        task: The task whose log it is, in plain Python, where each task has its own; None: the
            log of the whole job, as on Spark.
        threads: For blocking calls.
        report: Gets each request; None: they are not counted.

    Raises:
        ConfigError: No such job, or a setting is wrong.
        CheckpointCorruptError: A record of the log cannot be read.
        RetriableError: A service may answer later.
    """
    async with open_log_storage(
        config, clock, task=task, threads=threads, report=report
    ) as storage:
        records: list[tuple[int, Record]] = []
        reader = await read_log(
            config, storage, task, lambda position, record: records.append((position, record))
        )
        yield InspectedJob(config, storage, records=records, view=reader.view)


async def read_log(
    config: Config, storage: LogStorage, task: str | None, take: Callable[[int, Record], None]
) -> LogReader:
    """Read the log of a job; arguments and errors as of `open_job`.

    Args:
        config: Of the job.
        storage: Of the log.
        task: As of ``storage``.
        take: Is given each record, with its position.
    """
    reader = LogReader(storage.log)
    # Asked first: where a log is a topic, what is not there is read in vain for long.
    if not await storage.log.is_there() or not await reader.catch_up(take):
        raise no_such_job(config, storage.log_backend, task)
    reader.require_here()
    return reader


async def tasks_with_logs(config: Config, storage: LogStorage) -> Sequence[str] | None:
    """Return the tasks of a job in plain Python that have a log; None if the backend cannot say.

    Raises:
        ConfigError: The storage refuses us.
        RetriableError: The service may answer later.
    """
    factory = storage.factories[storage.log_backend]
    if not isinstance(factory, ListsTaskLogs):
        return None
    job = config.job.instance_name
    return await factory.task_logs(job, MAIN_OPERATOR, storage.executor, storage.clock)


def name_of_job(config: Config, task: str | None) -> str:
    """Return the name under which a job keeps its state: on Spark (no task) and in plain Python."""
    return config.job.name if task is None else config.job.instance_name


def _log_backend(
    config: Config, factories: Mapping[BackendName, StateBackendFactory]
) -> BackendName:
    if config.job.log_backend is not None:
        named = BackendName(config.job.log_backend)
        if not factories[named].properties.can_hold_job_log:
            raise ConfigError(
                f"this backend cannot hold the job log: backend={named}",
                key="job.log.backend",
                hint="name one that can, such as blob",
            )
        return named
    for name, factory in factories.items():
        if factory.properties.can_hold_job_log:
            return name
    raise ConfigError(
        f"no backend that is listed can hold a job log: backends={','.join(factories)}",
        key="job.log.backend",
        hint="give the settings of the job: its backends and where they are",
    )


def no_such_job(config: Config, log_backend: BackendName, task: str | None) -> NoSuchJobError:
    """Return the error of a job whose log is not there, with where else it may be."""
    of_task = ""
    other = (
        "a query on Spark is the job of its queryName, else of its directory and a hash. If it lists"
        " no backend, or began with an earlier version, its log is beside its checkpoint location:"
        " name that with --location, or set job.log.backend=blob and"
        " blob.store.uri=<checkpoint location>-statekeep. A job in plain Python has one log for each"
        " task: name it with --task. Its program alone changes its state"
    )
    if task is not None:
        of_task, other = f" task={task}", "a job on Spark has one log for all tasks: name none"
    return NoSuchJobError(
        f"the job has no log here: job={config.job.name}{of_task} backend={log_backend}",
        key="job.name",
        hint=f"check job.name, job.log.backend and the uri of the backend; {other}",
    )

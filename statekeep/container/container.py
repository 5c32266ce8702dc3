"""The container: the process part that hosts tasks, with one event loop, one pool, the backends."""

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from statekeep.backends.base import StateBackendFactory, TaskIdentity
from statekeep.backends.preparation import prepare, prepare_unless_away
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.seals import encryption_limits
from statekeep.checkpoint.checkpoints import BackendName, StoreName, TaskName
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.names import MAIN_OPERATOR
from statekeep.clock import Clock, SystemClock
from statekeep.commit.executor import BoundedExecutor
from statekeep.config.job_settings import ContainerSettings
from statekeep.config.model import Config
from statekeep.container.task import Task
from statekeep.container.task_start import TaskParts, start_task
from statekeep.errors import BackendClosedError, ConfigError
from statekeep.events import (
    CommitVerified,
    Event,
    EventSource,
    Listener,
    RequestDone,
    VerifyFailed,
)
from statekeep.inspection.continuous_proof import ContinuousProof, ProvenCommit, with_log_backend
from statekeep.metrics.listeners import load_listeners
from statekeep.reporter import ListenerThread
from statekeep.restore.progress import RestoreProgress
from statekeep.restore.progress_bar import RestoreProgressBar
from statekeep.stores.task_directory import sweep_unused

logger = logging.getLogger(__name__)

_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``: to abort the open attempts, and to close stores and backends."""


class Container:
    """Hosts the tasks of a program that keeps state without Spark.

    An async context manager; everything runs on the event loop that enters it. ::

        async with Container(config) as container:
            task = await container.start_task("Partition 0", stores=["counts"])
            counts = task.store("counts")
            ...
            await task.commit({ssp: offset})

    Leaving it lets the commits in flight finish, within ``task.shutdown.ms``, also after an
    exception. What was written after a task's last commit is dropped, as in a crash: commit with
    ``force`` before leaving. No thread, asyncio task or lock is left then; but for a call that
    hangs, such as into a dead file system, which is given up by name after that time and a margin.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        new_uid: Callable[[], str] = random_nonce,
        on_commit_failure: Callable[[TaskName, Exception], None] | None = None,
        on_progress: Callable[[RestoreProgress], None] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """Check the configuration; nothing is connected yet.

        Args:
            config: The job's settings.
            clock: The machine's, unless a test has its own.
            new_uid: Draws the uids of versions.
            on_commit_failure: Called on the event loop as soon as the async part of a commit has
                failed; by default the next commit finds out.
            on_progress: Called with the progress of restores; by default a bar on the terminal.
            listeners: Get the events of all tasks, beside those that ``metrics.listeners`` names. They
                are closed when the container is left.

        Raises:
            ConfigError: A setting is missing or wrong, or no backend can hold the job log.
        """
        config.check()
        self._config = config
        self._clock = clock if clock is not None else SystemClock()
        self._new_uid = new_uid
        self._on_commit_failure = on_commit_failure
        self._bar = RestoreProgressBar(self._clock.monotonic_ns)
        self._on_progress = on_progress if on_progress is not None else self._bar.update
        self._factories = _build_factories(config)
        self._log_backend = _find_log_backend(config, self._factories)
        kept_in = [self._factories[BackendName(name)] for name in config.backend_names()]
        self._limits = (
            *_limits(self._factories, self._log_backend),
            *encryption_limits(kept_in, self._clock),
        )
        self._given_listeners = tuple(listeners)
        self._listeners: ListenerThread | None = None
        self._pools: _Pools | None = None
        self._tasks: dict[TaskName, Task | None] = {}
        self._proof = ContinuousProof(
            with_log_backend(config, self._log_backend.name),
            clock=self._clock,
            report=self._report_proof,
            rng=random.Random(),  # noqa: S311 - any task will do
            tasks_with_logs=lambda: self._running,
        )
        self._proving: asyncio.Task[None] | None = None
        self._away: set[BackendName] = set()
        """Optional backends that did not answer when the container was entered."""

    async def __aenter__(self) -> Self:
        pools = self._pools = _Pools.of(self._config.container)
        try:
            self._listen()
            await self._prepare_backends(pools.commit)
        except BaseException:
            await self._close_listeners()
            await pools.close()
            raise
        await pools.local.run(sweep_unused, self._config.job.local_dir, self._clock.time_ns())
        for limit in self._limits:
            logger.warning("the job runs with a limit: %s", limit)
        if self._config.job.verify_interval_ms:
            self._proving = asyncio.create_task(self._proof.run(), name="prove commits")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pools is None:
            return
        giving_up = asyncio.create_task(self._give_up_hung_calls(self._pools))
        try:
            if self._proving is not None:
                self._proving.cancel()
                await asyncio.wait({self._proving})
            await self._close_tasks()
        finally:
            self._bar.close()
            await self._close_listeners()
            await self._pools.close()
            giving_up.cancel()
            await asyncio.wait({giving_up})

    def _listen(self) -> None:
        """Let the listeners know of each request, if there are any."""
        found = (*load_listeners(self._config), *self._given_listeners)
        if found:
            self._listeners = ListenerThread(found)
            for factory in self._factories.values():
                factory.report_requests(self._report_request)

    def _report_request(self, event: Event) -> None:
        if self._listeners is not None and isinstance(event, RequestDone):
            job = self._config.job.instance_name
            self._listeners.put(event, EventSource(job, event.task, self._clock.time_ns()))

    def _report_proof(self, event: Event) -> None:
        """Let a task write down how the proof of its commit has ended."""
        if not isinstance(event, CommitVerified | VerifyFailed):
            self._report_request(event)
        elif event.task in self._running:
            self._running[TaskName(event.task)].report(event)

    async def _close_listeners(self) -> None:
        if self._listeners is not None and self._pools is not None:
            await self._pools.local.run(self._listeners.close)

    async def _give_up_hung_calls(self, pools: "_Pools") -> None:
        """Once the commits in flight had their time, wait no longer for calls that hang.

        In real time: threads know no other.
        """
        await asyncio.sleep(self._config.task.shutdown_ms / 1000 + _MARGIN_S)
        await asyncio.gather(*(pool.abandon_hung_calls(asyncio.sleep) for pool in pools.all()))

    @property
    def tasks(self) -> Mapping[TaskName, Task]:
        """The tasks that were started and not closed by this container's end, by name."""
        return {name: task for name, task in self._tasks.items() if task is not None}

    @property
    def last_verified(self) -> ProvenCommit | None:
        """What ``job.verify.interval.ms`` has last proven of a task's newest commit; None before the first time."""
        return self._proof.last_verified

    @property
    def verify_failing(self) -> str:
        """Why the newest proof has failed; "" if it has not."""
        return self._proof.failing

    @property
    def _running(self) -> Mapping[TaskName, Task]:
        return {name: task for name, task in self.tasks.items() if not task.is_closed}

    async def start_task(self, name: str, stores: Iterable[str]) -> Task:
        """Take over a task, restore its stores, and open them.

        The previous owner of the task is fenced: its next commit fails. Tasks may be started
        concurrently. Cancelling this stops the restore and leaves nothing half done; the task can
        be started again.

        Args:
            name: The task, such as ``Partition 0``.
            stores: Its stores. One that no commit knows begins empty.

        Raises:
            ConfigError: A backend refuses us, or holds another job.
            RestoreFailedError: No retained commit can be restored.
            TaskFencedError: Yet another container has taken over meanwhile.
            RetriableError: A service may answer later.
            ValueError: The task runs in this container already.
        """
        pools = self._pools
        if pools is None:
            msg = "the container is not entered"
            raise BackendClosedError(msg)
        task_name = TaskName(name)
        if task_name in self._tasks and not _is_closed(self._tasks[task_name]):
            msg = f"the task runs in this container already: task={name}"
            raise ValueError(msg)
        self._tasks[task_name] = None
        pools.raise_caps(self._config.container, len(self._tasks))
        try:
            parts = self._parts(pools, task_name, stores)
            await self._prepare_required(parts)
            task = await start_task(parts)
        except BaseException:
            del self._tasks[task_name]
            raise
        self._tasks[task_name] = task
        return task

    def _parts(self, pools: "_Pools", name: TaskName, stores: Iterable[str]) -> TaskParts:
        def on_failure(error: Exception) -> None:
            if self._on_commit_failure is not None:
                self._on_commit_failure(name, error)

        return TaskParts(
            task=TaskIdentity(self._config.job.instance_name, MAIN_OPERATOR, name),
            stores={StoreName(store): self._config.store(store) for store in stores},
            config=self._config,
            factories=self._factories,
            log_backend=self._log_backend,
            executor=pools.commit,
            restore_executor=pools.restore,
            local_executor=pools.local,
            clock=self._clock,
            new_uid=self._new_uid,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            on_failure=on_failure,
            on_progress=self._on_progress,
            find_away=lambda: self._find_away(pools.commit),
            listeners=self._listeners,
            limits=self._limits,
        )

    async def _prepare_backends(self, executor: BoundedExecutor) -> None:
        """Create, then check, the remote side of every backend; an optional one may be away."""
        optional = {BackendName(name) for name in self._config.optional_backend_names()}
        optional -= {self._log_backend.name}
        for name, factory in self._factories.items():
            admin = factory.admin(executor, self._clock)
            if name not in optional:
                await prepare(admin)
            elif not await prepare_unless_away(name, admin):
                self._away.add(name)

    async def _find_away(self, executor: BoundedExecutor) -> Collection[BackendName]:
        """Return the optional backends that do not answer; asked again where one may hold a log."""
        for name in tuple(self._away) if self._config.job.log_backend is None else ():
            if await prepare_unless_away(name, self._factories[name].admin(executor, self._clock)):
                self._away.discard(name)
        return self._away

    async def _prepare_required(self, parts: TaskParts) -> None:
        """Prepare what was away and is optional for other stores than those of the task."""
        listed = {name for store in parts.stores.values() for name in store.required_factories}
        for name in self._away.intersection(map(BackendName, listed)):
            await prepare(self._factories[name].admin(parts.executor, parts.clock))
            self._away.discard(name)

    async def _close_tasks(self) -> None:
        """Close all tasks at once, so that they share the shutdown time."""
        results = await asyncio.gather(
            *(task.close() for task in self.tasks.values()), return_exceptions=True
        )
        self._tasks.clear()
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            msg = "closing the container's tasks failed"
            raise ExceptionGroup(msg, errors)


@dataclass(frozen=True)
class _Pools:
    """The threads of a container, by what waits there for what."""

    commit: BoundedExecutor
    """Uploads, clean-up, the log."""
    restore: BoundedExecutor
    local: BoundedExecutor
    """The stores on the local disk, which wait for no service."""

    @classmethod
    def of(cls, threads: ContainerSettings) -> Self:
        """Make pools without threads; on the event loop that is to use them."""
        commits, restores = threads.commit_pool_max_size, threads.restore_pool_max_size
        least = threads.commit_pool_threads(0)
        return cls(
            commit=BoundedExecutor(least, "statekeep", ceiling=commits),
            restore=BoundedExecutor(
                threads.restore_pool_threads(0), "statekeep-restore", ceiling=restores
            ),
            local=BoundedExecutor(least, "statekeep-local", ceiling=commits),
        )

    def all(self) -> tuple[BoundedExecutor, ...]:
        return (self.commit, self.restore, self.local)

    def raise_caps(self, threads: ContainerSettings, task_count: int) -> None:
        """Let each task have a thread of each pool, within the bounds of the settings."""
        self.commit.raise_cap(threads.commit_pool_threads(task_count))
        self.restore.raise_cap(threads.restore_pool_threads(task_count))
        self.local.raise_cap(threads.commit_pool_threads(task_count))

    async def close(self) -> None:
        for pool in self.all():
            await pool.close()


def _build_factories(config: Config) -> Mapping[BackendName, StateBackendFactory]:
    registry = BackendRegistry(config)
    factories = dict(registry.factories())
    if config.job.log_backend is not None:
        factories[BackendName(config.job.log_backend)] = registry.factory(config.job.log_backend)
    return factories


def _find_log_backend(
    config: Config, factories: Mapping[BackendName, StateBackendFactory]
) -> StateBackendFactory:
    """Return the backend that holds the log: the named one, or the first listed that can."""
    if config.job.log_backend is not None:
        named = factories[BackendName(config.job.log_backend)]
        if not named.properties.can_hold_job_log:
            raise ConfigError(
                f"this backend cannot hold the job log: backend={named.name}",
                key="job.log.backend",
            )
        return named
    for factory in factories.values():
        if factory.properties.can_hold_job_log:
            return factory
    raise ConfigError(
        f"no listed backend can hold the job log: backends={','.join(factories)}",
        key="stores.backup.factories",
        hint="list a backend such as blob, or name one as job.log.backend",
    )


def _limits(
    factories: Mapping[BackendName, StateBackendFactory], log_backend: StateBackendFactory
) -> tuple[str, ...]:
    """Return what the job does without, because its backends hold nothing beyond the process.

    Without a log nothing can be restored, so that its backend decides as well.
    """
    volatile = [name for name, factory in factories.items() if not factory.properties.is_durable]
    if log_backend.properties.is_durable and len(volatile) < len(factories):
        return ()
    limit = (
        f"state does not outlive the process: backends={','.join(volatile)}"
        f" log_backend={log_backend.name} (list a durable one, such as blob, first in"
        " stores.backup.factories)"
    )
    return (limit,)


def _is_closed(task: Task | None) -> bool:
    return task is not None and task.is_closed

"""A driver's reign over one job: its log, its commits and clean-up, on the commit thread."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, ParamSpec, TypeVar

from statekeep.backends.base import StateBackendFactory
from statekeep.backends.registry import BackendRegistry
from statekeep.backends.sealing import (
    encryption_limits,
    open_checkpoint_store,
    open_job_log,
    outdated_markers,
)
from statekeep.checkpoint.checkpoints import BackendName
from statekeep.checkpoint.event_recorder import EventRecorder
from statekeep.checkpoint.job_log import CheckpointStore
from statekeep.checkpoint.log_scope import job_scope
from statekeep.checkpoint.log_session import LogSession
from statekeep.checkpoint.log_view import LogView
from statekeep.checkpoint.records import (
    BadMarkerRecord,
    BatchRecord,
    CommitRecord,
    JobIdentity,
    QueryState,
)
from statekeep.clock import Clock
from statekeep.commit.clean_up_failures import CleanUpFailing
from statekeep.commit.executor import BoundedExecutor
from statekeep.commit.gate import CommitGate
from statekeep.config.model import Config
from statekeep.errors import BackendClosedError, CheckpointLocationError, TaskFencedError
from statekeep.fault_points import fault_point
from statekeep.spark.driver.backend_setup import Factories, check_reach, prepare_backends
from statekeep.spark.driver.clean_up import CleanUp
from statekeep.spark.driver.commit_summary import CommitSummary
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.committer import Committer
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.identity import settled_identity
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.log_backend import find_log_backend
from statekeep.spark.driver.new_query import first_commit, query_state, with_query
from statekeep.spark.driver.takeover import Resumption, find_resumption, roll_forward
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.job_spec import HandOverPlan, JobSpec

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.25
DEFAULT_TASKS: Final = 32
"""Of a job for which nobody says how many: 16, 32 and 64 cost the same, and state can move in parts
of a thirty-second. Spark's own default, 200, costs a batch half as much again."""
_LOOKS: Final = 8
"""At a checkpoint location beside a log that grows: a few batches are between two of them."""


class Recording:
    """A batch record that is being appended."""

    def __init__(self, future: "Future[int]") -> None:
        self._future = future

    def wait(self) -> None:
        """Wait until the record is durable.

        Raises:
            TaskFencedError: Another driver has taken over.
            RetriableError: The place of the job log may answer later.
        """
        self._future.result()
        fault_point("batch_record.after")


class Reign:
    """Everything of a driver that lives on the commit thread's loop, as plain blocking calls.

    Made by the thread that starts the query; used by the thread that runs batches. Order of calls:
    `open`, `check_location`, `fence`, `take_over`, then commits and records, then `close`.
    """

    def __init__(
        self, config: Config, location: CheckpointLocation, clock: Clock, events: EventList
    ) -> None:
        self._config = config
        self._location = location
        self._clock = clock
        self._events = events
        self._recorder: EventRecorder | None = None
        self._thread = CommitThread("statekeep-commit")
        threads = config.container
        self._executor = BoundedExecutor(
            threads.commit_pool_threads(1),
            "statekeep-driver",
            ceiling=threads.commit_pool_max_size,
        )
        self._factories: dict[BackendName, StateBackendFactory] = {}
        self._log_backend: BackendName | None = None
        self._writer: LogSession | None = None
        self._checkpoints: CheckpointStore | None = None
        self._committer: Committer | None = None
        self._clean_up: CleanUp | None = None
        self._cleaning: set[asyncio.Task[None]] = set()
        """At most two: one that runs and one that waits for it."""
        self._background: list[Future[None]] = []
        self._is_closed = False

    @property
    def view(self) -> LogView:
        """What the log tells. It grows on the commit thread: copy a mapping before iterating."""
        return self._log.view

    @property
    def committer(self) -> Committer:
        """Its coroutines run by `run` alone."""
        if self._committer is None:
            msg = "the driver session has not begun"
            raise RuntimeError(msg)
        return self._committer

    @property
    def clean_up_failing(self) -> CleanUpFailing | None:
        """Since when old backups are not deleted, and why; None if the newest clean-up ended well."""
        return None if self._clean_up is None else self._clean_up.failing

    @property
    def epoch(self) -> int:
        """The number of this reign; 0 before `take_over`."""
        return self._log.epoch

    @property
    def log_backend(self) -> BackendName:
        """The backend that holds the job log and the tasks' checkpoints."""
        if self._log_backend is None:
            msg = "the job log is not open"
            raise RuntimeError(msg)
        return self._log_backend

    @property
    def _log(self) -> LogSession:
        if self._writer is None:
            msg = "the job log is not open"
            raise RuntimeError(msg)
        return self._writer

    def open(self, partitions: int | None) -> CommitRecord | None:
        """Set up the backends, read the log; return the current commit, None for a new job.

        Args:
            partitions: How many tasks the job has; None: as many as its log says, and of a new job
                `DEFAULT_TASKS`.

        Raises:
            ConfigError: A backend is unknown or refuses us, or none can hold the job log.
            RetriableError: One that the job needs does not answer.
            CheckpointCorruptError: A record cannot be read.
        """
        registry = BackendRegistry(self._config)
        self._factories = dict(registry.factories())
        self.limits = encryption_limits(self._factories.values(), self._clock)
        for limit in self.limits:
            logger.warning("the query runs with a limit: %s", limit)
        if (name := self._config.job.log_backend) is not None:
            self._factories[BackendName(name)] = registry.factory(name)
        check_reach(self._factories)
        self._thread.run(self._open(registry, partitions))
        return self._log.view.last_commit

    def check_location(self) -> None:
        """Refuse a checkpoint location that is not the job's, before anyone is fenced.

        An older driver that lives goes on in both, and they are not read at one moment: what does
        not fit is looked at again if the log has grown meanwhile.

        Raises:
            CheckpointLocationError: It belongs to another job or query, is older, or is gone.
            ConfigError: The job cannot go on from the checkpoint that the settings name.
        """
        for _ in range(_LOOKS - 1):
            seen = self.view.next_position
            try:
                self._find_resumption()
            except CheckpointLocationError as exc:
                if self._thread.run(self._log.look()).next_position == seen:
                    raise
                logger.info("an older driver goes on, looking again: error=%s", exc)
            else:
                return
        self._find_resumption()

    def check_followed(self, own_epoch: int) -> None:
        """Read the end of the log, before `fence`.

        Raises:
            TaskFencedError: A driver has taken over since ``own_epoch``.
            RetriableError: The place of the log may answer later.
        """
        newer_epoch = self._thread.run(self._log.look()).epoch
        if newer_epoch > own_epoch:
            msg = "another driver has taken over this job"
            raise TaskFencedError(msg, own_epoch=own_epoch, newer_epoch=newer_epoch)

    def fence(self, expected: JobIdentity) -> JobIdentity:
        """Fence older drivers; return the job's identity, which nobody else can settle any more.

        Args:
            expected: The job as it is configured now; see `settled_identity`.

        Raises:
            ConfigError: Something drifted that must not.
        """
        return self._thread.run(self._fence(expected))

    def take_over(
        self,
        spec: JobSpec,
        identity: JobIdentity,
        on_commit: Callable[[CommitSummary], None],
        find_abandoned: Callable[[HandOverPlan], Collection[int]],
    ) -> Resumption | None:
        """Roll finished uploads forward, and fix where this reign begins.

        Where the job stands is read now, after the fence: until then an older driver may go on.

        Args:
            spec: The job.
            identity: What `fence` returned.
            on_commit: Told of every commit, on the commit thread's loop.
            find_abandoned: Asks the hosts; see `roll_forward`. Blocking.

        Returns:
            Where the job goes on, with the commit that was rolled forward; None for a new job.
        """
        return self._thread.run(self._take_over(spec, identity, on_commit, find_abandoned))

    def begin(self, identity: JobIdentity, checkpoint_id: str) -> None:
        """Write the commit with which a query begins, in its first batch call (R2).

        It is the empty one, unless the job's state is that of a query before.

        Raises:
            ConfigError: The query does not read on from where that one had got to.
        """
        first = first_commit(self.view.last_commit, identity, checkpoint_id, self.epoch)
        record = with_query(first, self._location)
        fault_point("empty_commit.before")
        self._thread.run(self._log.append(record))
        fault_point("empty_commit.after")

    def append(self, record: BatchRecord | BadMarkerRecord) -> None:
        """Append a record; durable when this returns (R3)."""
        self._thread.run(self._log.append(record))

    def append_beside(self, record: BatchRecord) -> "Recording":
        """Begin to append a record while the caller goes on; durable once `Recording.wait` returns."""
        return Recording(self._thread.submit(self._log.append(record)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one of the committer's coroutines and wait for its result."""
        return self._thread.run(work)

    async def look_for_successor(self) -> None:
        """Read the end of the log; on the commit thread's loop.

        Raises:
            TaskFencedError: Another driver has taken over.
            RetriableError: The place of the log may answer later.
        """
        await self._log.check_fence()

    def retained_batches(self) -> list[int]:
        """Return the batches of this query's commits that are not released."""
        return [commit.batch for commit in self.view.comparable_commits]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that runs until `close`."""
        self._background.append(self._thread.submit(work))

    def watch(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Start a coroutine beside a blocking call; return what ends it."""

        async def run() -> None:
            await work()

        future = self._thread.submit(run())

        def stop() -> None:
            future.cancel()

        return stop

    async def blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on the driver's pool, from the commit thread's loop."""
        return await self._executor.run(call, *args, **kwargs)

    def give_up_calls_once(self, is_over: Callable[[], bool]) -> None:
        """Once ``is_over`` says so, wait for blocking calls that hang no longer; asked until `close` ends.

        Whatever waits for a call then fails, in `run` and `close` too: a store that hangs does not
        hold up the end of a query.
        """
        self._thread.submit(self._give_up_calls_once(is_over))

    def close(self) -> None:
        """End the commit thread and all that runs on it. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for work in self._background:
            work.cancel()
        try:
            self._thread.run(self._close())
        finally:
            self._writer = None
            self._thread.close()

    async def _open(self, registry: BackendRegistry, partitions: int | None) -> None:
        name = self._log_backend = await find_log_backend(
            registry,
            self._factories,
            self._config,
            self._location,
            executor=self._executor,
            clock=self._clock,
        )
        self._factories[name] = registry.factory(name)
        scope = job_scope(self._config.job.name)
        if partitions is None:
            # A changelog has as many partitions as the job has tasks, which only the log can say.
            await self._prepare({name: self._factories[name]}, 0)
        else:
            await self._prepare(self._factories, partitions)
        place = (self._factories, name, scope, self._executor, self._clock)
        self._checkpoints = open_checkpoint_store(*place)
        self._writer = LogSession(open_job_log(*place), note=self._events.add)
        await self._writer.open()
        if partitions is None:
            commit = self._writer.view.last_commit
            tasks = DEFAULT_TASKS if commit is None else commit.identity.partitions
            await self._prepare(self._factories, tasks, is_log_checked=True)

    async def _prepare(
        self, factories: Factories, partitions: int, *, is_log_checked: bool = False
    ) -> None:
        await prepare_backends(
            factories,
            self._config,
            partitions=partitions,
            log_backend=self.log_backend,
            is_log_checked=is_log_checked,
            executor=self._executor,
            clock=self._clock,
        )

    async def _fence(self, expected: JobIdentity) -> JobIdentity:
        assert self._checkpoints is not None  # noqa: S101 - opened before
        fault_point("epoch_record.before")
        await self._log.take_over(f"{socket.gethostname()}:{os.getpid()}")
        fault_point("epoch_record.after")
        self._record_events(self._checkpoints)
        return settled_identity(self._log.view.last_commit, expected)

    async def _take_over(
        self,
        spec: JobSpec,
        identity: JobIdentity,
        on_commit: Callable[[CommitSummary], None],
        find_abandoned: Callable[[HandOverPlan], Collection[int]],
    ) -> Resumption | None:
        assert self._checkpoints is not None  # noqa: S101 - opened before
        resumption = await self._executor.run(self._find_resumption)
        committed = self._wire(spec, identity, on_commit)
        if resumption is None:
            return None
        current = self._log.view.last_commit
        if resumption.is_new_query and current is not None and current.query is not None:
            first = first_commit(current, identity, current.checkpoint_id, self.epoch)
            await self._log.append(first)
            logger.info(
                "the state goes on under a new query: checkpoint_id=%s", first.checkpoint_id
            )
        rolled = await roll_forward(
            resumption,
            self._log.view,
            self._checkpoints,
            self.committer,
            clock=self._clock,
            find_abandoned=lambda plan: self._executor.run(find_abandoned, plan),
        )
        commit = self._log.view.last_commit
        committed_batch = -1 if commit is None else commit.batch
        fault_point("base_record.before")
        await self._log.go_on_from(resumption.query_id, resumption.head)
        fault_point("base_record.after")
        if rolled is not None:
            committed(rolled)
        return replace(resumption, committed=committed_batch)

    def _wire(
        self,
        spec: JobSpec,
        identity: JobIdentity,
        on_commit: Callable[[CommitSummary], None],
    ) -> Callable[[CommitSummary], None]:
        """Make the committer and the clean-up; return what is to be called after a commit."""
        assert self._checkpoints is not None  # noqa: S101 - opened before
        # The driver deletes for all tasks, as containers upload for theirs.
        self._executor.raise_cap(self._config.container.commit_pool_threads(identity.partitions))
        self._clean_up = clean_up = CleanUp(
            spec=spec,
            partitions=identity.partitions,
            factories=self._factories,
            writer=self._log,
            checkpoints=self._checkpoints,
            executor=self._executor,
            clock=self._clock,
            note=self._events.add,
        )

        def committed(summary: CommitSummary) -> None:
            on_commit(summary)
            if not clean_up.is_waiting:
                cleaning = asyncio.create_task(clean_up.run())
                self._cleaning.add(cleaning)
                cleaning.add_done_callback(self._cleaning.discard)

        self._committer = Committer(
            writer=self._log,
            checkpoints=self._checkpoints,
            gate=CommitGate(self._config.task),
            clock=self._clock,
            identity=identity,
            query_state=self._query_state,
            on_commit=committed,
            required_backends=self._config.store(STATE_STORE).required_factories,
            optional_backends=self._config.store(STATE_STORE).optional_factories,
            find_outdated=lambda markers: outdated_markers(
                self._factories, markers, self._executor
            ),
            note=self._events.add,
        )
        return committed

    def _record_events(self, store: CheckpointStore) -> None:
        recorder = EventRecorder(store, self.epoch, self._config.job, self._clock)
        self._events.pass_to(lambda e: recorder.add(e.time_ms, e.kind, e.details))
        self.spawn(recorder.run())
        self._recorder = recorder

    def _find_resumption(self) -> Resumption | None:
        return find_resumption(self._location, self.view, self._config.job.start_from_checkpoint)

    async def _query_state(self, batch: int) -> QueryState:
        return await self._executor.run(query_state, self._location, self.view.last_commit, batch)

    async def _close(self) -> None:
        if cleaning := list(self._cleaning):
            await asyncio.wait(cleaning, timeout=self._config.task.shutdown_ms / 1000)
            for run in cleaning:
                run.cancel()  # what is cut off here is made up for after the next start
            await asyncio.gather(*cleaning, return_exceptions=True)
        self._events.pass_to(None)
        if self._recorder is not None:
            await self._recorder.finish()
        for held in (self._checkpoints, self._writer):
            try:
                if held is not None:
                    await held.close()
            except BackendClosedError as exc:
                logger.warning("the job log is left as it is: error=%s", exc)
        await self._executor.close()

    async def _give_up_calls_once(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            await self._clock.sleep(_POLL_S)
        await self._executor.abandon_hung_calls(self._clock.sleep)

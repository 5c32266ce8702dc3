"""A job as its driver owns it: taken over at the start of a query, with all that works for it."""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import msgspec
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from statekeep.backends.seals import outdated_markers
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.error_summary import report_end
from statekeep.checkpoint.event_log import EventRecorder
from statekeep.checkpoint.log_session import random_nonce
from statekeep.checkpoint.log_view import LogView, begin_ns_of
from statekeep.checkpoint.records import JobIdentity, QueryState
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp
from statekeep.commit.gate import CommitGate
from statekeep.config.model import Config
from statekeep.errors import BackendClosedError, CheckpointLocationError, ConfigError
from statekeep.events import CommitSummary, JobStarted
from statekeep.inspection.continuous_proof import with_log_backend
from statekeep.reporter import Reporter
from statekeep.spark.driver.batch_loop import BatchLoop, Sink
from statekeep.spark.driver.commit_records import query_state
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.first_start import check_imported_time_mode, newest_offsets
from statekeep.spark.driver.job_commits import JobCommits, job_clean_up
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.opening import (
    JobStorage,
    check_retention,
    check_sources,
    open_storage,
    source_limits,
    tasks_of_a_new_job,
    wanted_tasks,
)
from statekeep.spark.driver.progress import KEPT_BATCHES, EventList, Stopwatch
from statekeep.spark.driver.query_watch import QueryWatch
from statekeep.spark.driver.rebalancer import Rebalancer, StallGuard
from statekeep.spark.driver.replaying import sweep_shadows
from statekeep.spark.driver.reshaping import Reshaper, check_reshape
from statekeep.spark.driver.takeover import Resumption, Takeover, new_identity, resolved_identity
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.driver.ticks import TickRule, Ticks, has_ticks
from statekeep.spark.operator.clock import TimeMode
from statekeep.spark.placement import expected_executors, router_of, wait_for_executors
from statekeep.spark.stage import Stage, operators_with_watermark
from statekeep.spark.tasks import operator_tasks
from statekeep.spark.variable_stores import (
    backends_in_use,
    backends_of,
    lasting_stores,
    stores_of_query,
    variable_stores_of,
)
from statekeep.spark.worker.job_spec import JobSpec

logger = logging.getLogger(__name__)

_EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_LAST_CLEAN_UP_S: Final = 5.0
"""Of the former tasks, before their number changes."""


@dataclass(frozen=True, kw_only=True)
class JobDefinition:
    """What a query is to be."""

    spark: SparkSession
    frame: DataFrame
    """The streaming input."""
    stages: Sequence[Stage]
    """The stateful operators, in the order in which rows go through them."""
    config: Config
    """Checked settings; names the job."""
    location: CheckpointLocation
    """The query's checkpoint location."""
    sink: Sink
    """Gets the output of each batch, with its number."""
    clock: Clock
    """For delays."""
    events: EventList = field(default_factory=EventList)
    """Keeps events, and passes them to whatever writes them down."""
    reporter: Reporter | None = None
    """Of the query's events, those of ``events`` among them; None: one of its own."""
    ticks: Ticks | None = None
    """The source of ``frame`` that asks for batches; None where nothing waits for a time."""


class OwnedJob:
    """Takes a job over, brings every task to the newest batch that counts, and holds what works for it.

    Of what `open` has not come to, the attributes are None or not there; `release` ends the rest.
    """

    identity: JobIdentity
    jobs: TaskJobs
    commits: JobCommits
    batches: BatchLoop
    watch: QueryWatch

    def __init__(
        self,
        definition: JobDefinition,
        thread: CommitThread,
        turn: threading.Lock,
        stopwatch: Stopwatch,
        watermark_ms: Callable[[], int],
    ) -> None:
        """Take what to begin with; no I/O.

        Args:
            definition: Of the query.
            thread: Where commits are made.
            turn: Held by the one thread that works on a batch.
            stopwatch: Takes the phases of the start.
            watermark_ms: Returns the watermark of the next batch.
        """
        self._definition = definition
        self._session = random_nonce()
        self._spark = definition.spark
        self._stages = definition.stages
        self._config = definition.config
        self._location = definition.location
        self._clock = definition.clock
        self._thread = thread
        self._turn = turn
        self._stopwatch = stopwatch
        self._watermark_ms = watermark_ms
        self._tick_rules: Sequence[TickRule] = ()
        reporter = definition.reporter
        if reporter is None:
            parts = [definition.events]
            reporter = Reporter(definition.clock, definition.config.job.name, parts=parts)
        self._reporter = reporter
        self.report = reporter.report
        self.storage: JobStorage | None = None
        self.rebalancer: Rebalancer | None = None
        self.clean_up: CleanUp | None = None
        self._recorder: EventRecorder | None = None
        self.recent_commits: deque[CommitSummary] = deque(maxlen=KEPT_BATCHES)
        self.has_tasks = False
        """They may run, and what they have left open is to be closed."""
        self.is_begun = False
        """Listeners have its start, and are to have its end."""

    def open(
        self, check_wanted: Callable[[], None] = lambda: None, own_epoch: int | None = None
    ) -> None:
        """Take over the job and bring every task to the newest batch that counts.

        Args:
            check_wanted: Called before other drivers are fenced; raises to let them be.
            own_epoch: Of the run before, if this one may begin only while that run is the job's
                newest owner; None: the current owner is fenced in any case.

        Raises:
            TaskFencedError: Another driver has taken over since ``own_epoch``.
            ConfigError: A setting, a backend or the job's identity is wrong.
            CheckpointLocationError: The checkpoint location is not the job's.
            RestoreFailedError: State is out of reach.
        """
        check_retention(self._spark, self._config.task.replay_max_batches)
        check_sources(
            self._definition.frame, is_replay_needed=not self._config.task.is_commit_every_batch
        )
        storage, expected = self._open_storage()
        resolve = partial(resolved_identity, expected=expected, given_up=self._given_up())
        takeover = Takeover(
            storage.log,
            storage.checkpoints,
            self._location,
            self._thread,
            start_from=self._config.job.start_from_checkpoint,
            clock=self._clock,
        )
        identity = resolve(storage.log.view.last_commit)
        self._check_reshape(storage, expected)
        self._check_location(takeover, identity)
        self._stopwatch.lap("log")
        self._check_time_mode(storage.log.view)
        self._spread_tasks(identity)
        self._stopwatch.lap("placement")
        # All that may fail or take long comes before: until now an older driver goes on.
        check_wanted()
        if own_epoch is not None:
            takeover.check_followed(own_epoch)
        takeover.fence()
        self._thread.run(self._record_events(storage))
        self.identity = resolve(storage.log.view.last_commit)
        if self._config.task.count is None:  # as many as the job has by now
            expected = msgspec.structs.replace(expected, partitions=self.identity.partitions)
        self._check_reshape(storage, expected)
        if self.identity.partitions != identity.partitions:  # the driver before has changed them
            self._spread_tasks(self.identity)
        self._wire_tasks(storage)
        resumption = takeover.take_over(self.commits, self.identity, self.jobs.abandoned)
        sweep_shadows(self._location, storage.log.epoch)
        self._stopwatch.lap("takeover")
        if resumption is not None and self.identity.partitions != expected.partitions:
            resumption = self._reshape(storage, resumption, expected.partitions)
        self._wire_batches(storage)
        self._report_start(storage, resumption)
        if resumption is not None:
            self.batches.resume(resumption, self._stopwatch)
        self.jobs.check_variables()  # with what the tasks have told of their state
        if (
            self._definition.ticks is not None
            and str(self._spark.conf.get(_EMPTY_BATCHES)).lower() == "true"
        ):
            self._definition.ticks.follow(self._wants_batch)

    def _open_storage(self) -> tuple[JobStorage, JobIdentity]:
        """Open backends and job log; return them, and the job as it is configured now."""
        operators = len(self._stages)
        storage = self.storage = self._thread.run(
            open_storage(
                self._config,
                self._location,
                wanted_tasks(self._config, operators),
                default=tasks_of_a_new_job(self._spark, operators),
                executor=self._thread.executor,
                clock=self._clock,
                report=self.report,
            )
        )
        router = router_of(operators)
        key_schema = "; ".join(stage.operator.key_schema.simpleString() for stage in self._stages)
        processors = [type(stage.operator.processor).__qualname__ for stage in self._stages]
        identity = new_identity(self._config, storage.partitions, router, key_schema, processors)
        return storage, identity

    def _check_location(self, takeover: Takeover, identity: JobIdentity) -> None:
        try:
            takeover.check_location(identity)
        except CheckpointLocationError as exc:
            name = self._config.settings["job.name"]
            exc.add_note(
                f"hint: the job's name is {name.value!r}, set by {name.source}; if the query had another"
                " name before, set job.name to that"
            )
            raise

    def _check_reshape(self, storage: JobStorage, expected: JobIdentity) -> None:
        commit = storage.log.view.last_commit
        if commit is not None:
            listed = backends_in_use(self._config)
            check_reshape(commit.identity, expected, storage.factories, listed)

    def _check_time_mode(self, view: LogView) -> None:
        """Refuse to begin or to end with timers under a query that runs already, or with another clock."""
        modes = [stage.operator.time_mode.value for stage in self._stages]
        check_imported_time_mode(view, modes)
        text = newest_offsets(self._location, view)
        if text is not None and has_ticks(text) != (self._definition.ticks is not None):
            raise ConfigError(
                "the query began with another time mode: "
                f"timeMode={','.join(modes)} location={self._location.uri}",
                key="timeMode",
                hint="go back to the former timeMode, or start anew under another job.name with"
                " another checkpoint location",
            )

    def _given_up(self) -> Sequence[StoreName]:
        """Return the stores whose state is not wanted any more, as settings say."""
        stores = stores_of_query(self._config)
        return [name for name in stores if self._config.store(name).is_begun_empty]

    def _spread_tasks(self, identity: JobIdentity) -> None:
        """Give the tasks their slots, once executors are there; from now on they may come and go."""
        tag = f"statekeep-{identity.job_uid}"
        before = self.rebalancer
        if before is not None:
            before.close()
        else:
            wait_for_executors(self._spark, expected_executors(self._spark))
        self.rebalancer = Rebalancer(
            self._spark,
            identity.partitions,
            tag,
            lambda call: self._thread.submit(self._thread.executor.run(call)),
        )
        if before is None:
            guard = StallGuard(self._spark, tag, self._clock, self._note_executors)
            self._thread.spawn(guard.watch())

    def _note_executors(self, is_settled: bool) -> None:  # noqa: FBT001 - as the guard calls it
        if self.rebalancer is not None:
            self.rebalancer.note_change(is_settled=is_settled)

    def _wire_tasks(self, storage: JobStorage) -> None:
        """Make what runs the tasks, and what commits them; the driver owns the log."""
        assert self.rebalancer is not None  # noqa: S101 - the tasks have slots
        specs = [self._job_spec(storage, number) for number in range(len(self._stages))]
        self.jobs = TaskJobs(self._spark, self.rebalancer, specs, self._thread, self._stages)
        self.jobs.epoch = storage.log.epoch
        self.has_tasks = True
        self._wire_commits(storage, specs[0])

    def _wire_commits(self, storage: JobStorage, spec: JobSpec) -> None:
        """Make what commits and what cleans up after them."""
        executor, partitions = self._thread.executor, self.identity.partitions
        # The driver deletes for all tasks, as sidecars upload for theirs.
        executor.raise_cap(self._config.container.commit_pool_threads(partitions))

        async def read_query_state(batch: int) -> QueryState:
            current = storage.log.view.last_commit
            return await executor.run(query_state, self._location, current, batch)

        self.commits = JobCommits(
            log=storage.log,
            checkpoints=storage.checkpoints,
            gate=CommitGate(self._config.task),
            clock=self._clock,
            identity=self.identity,
            query_state=read_query_state,
            on_commit=self._committed,
            required_backends=backends_of(self._config, is_optional=False),
            optional_backends=backends_of(self._config, is_optional=True),
            find_outdated=lambda markers: outdated_markers(storage.factories, markers, executor),
            report=self.report,
            is_observed=self._reporter.has_listeners,
        )
        self.clean_up = job_clean_up(
            spec,
            partitions,
            storage.factories,
            log=storage.log,
            checkpoints=storage.checkpoints,
            executor=executor,
            clock=self._clock,
            on_gone=self.commits.forget_shares,
            report=self.report,
        )

    def _job_spec(self, storage: JobStorage, number: int) -> JobSpec:
        """Return the job with one of its operators."""
        operator, partitions = self._stages[number].operator, self.identity.partitions
        variable_stores = variable_stores_of(self._config, operator.name)
        lasting, commit = lasting_stores(self._config), storage.log.view.last_commit
        listed = {s for of in commit.identity.stores.values() for s in of} if commit else set()
        return JobSpec(
            config=self._config,
            job_uid=self.identity.job_uid,
            log_backend=storage.log_backend,
            app_id=self._spark.sparkContext.applicationId,
            operator=replace(operator, variable_stores=variable_stores),
            processor=cloudpickle.dumps(operator.processor),  # type: ignore[no-untyped-call]
            session=self._session,
            python_path=tuple(sys.path),
            tasks=operator_tasks(number, len(self._stages), partitions),
            stores=stores_of_query(self._config),
            lasting_stores=lasting,
            listed_stores=tuple(store for store in lasting if store in listed),
        )

    def _reshape(self, storage: JobStorage, resumption: Resumption, partitions: int) -> Resumption:
        """Give the state to so many tasks; what is not committed is replayed and committed before."""
        if resumption.head > resumption.committed:
            logger.info(
                "all batches are committed before the number of tasks changes: head=%d committed=%d",
                resumption.head,
                resumption.committed,
            )
            self._wire_batches(storage)
            self.batches.resume(resumption, self._stopwatch)
            self.batches.commit_head()
        if self.clean_up is not None:
            self._thread.run(self.clean_up.close(_LAST_CLEAN_UP_S))
        operators = len(self._stages)
        spec = self._job_spec(storage, 0)
        Reshaper(
            spark=self._spark,
            thread=self._thread,
            log=storage.log,
            config=with_log_backend(self._config, storage.log_backend),
            local_name=spec.local_name,
            operators=operators,
            clock=self._clock,
        ).run(partitions)
        self.identity = msgspec.structs.replace(self.identity, partitions=partitions)
        self._spread_tasks(self.identity)
        self._wire_tasks(storage)
        self._stopwatch.lap("reshape")
        return replace(resumption, committed=resumption.head)

    def _wire_batches(self, storage: JobStorage) -> None:
        """Make what runs batches, and what watches beside them."""
        if self._definition.ticks is not None:
            self._tick_rules = [
                TickRule(stage.operator.time_mode, tasks, self._clock, self._watermark_ms)
                for stage, tasks, has_watermark in zip(
                    self._stages,
                    self.jobs.tasks,
                    operators_with_watermark(self._stages),
                    strict=True,
                )
                if stage.operator.time_mode is TimeMode.PROCESSING
                or (stage.operator.time_mode is TimeMode.EVENT and has_watermark)
            ]
        self.batches = BatchLoop(
            frame=self._definition.frame,
            operators=[stage.operator for stage in self._stages],
            config=self._config,
            location=self._location,
            identity=self.identity,
            thread=self._thread,
            log=storage.log,
            commits=self.commits,
            jobs=self.jobs,
            sink=self._definition.sink,
            report=self.report,
            clock=self._clock,
            tick_rules=self._tick_rules,
        )
        self.watch = QueryWatch(
            thread=self._thread,
            log=storage.log,
            commits=self.commits,
            batches=self.batches,
            jobs=self.jobs,
            location=self._location,
            turn=self._turn,
            settings=self._config.task,
            clock=self._clock,
        )

    def _wants_batch(self, *, is_available_now: bool) -> bool:
        """Return whether some operator needs a batch; each of them is asked."""
        wanted = [r.wants_batch(is_available_now=is_available_now) for r in self._tick_rules]
        return any(wanted)

    async def _record_events(self, storage: JobStorage) -> None:
        """Write events down from now on, under this driver session's own epoch."""
        recorder = EventRecorder(
            storage.checkpoints, storage.log.epoch, self._config.job, self._clock
        )
        self._definition.events.pass_to(lambda e: recorder.add(e.time_ms, e.kind, e.details))
        self._thread.spawn(recorder.run())
        self._recorder = recorder

    def _committed(self, summary: CommitSummary) -> None:
        self.recent_commits.append(summary)
        if self.clean_up is not None:
            self.clean_up.start()

    @property
    def settings(self) -> Config:
        """What the job is found by from outside: they name the backend that its log is in; after `open`."""
        assert self.storage is not None  # noqa: S101 - it is open
        return with_log_backend(self._config, self.storage.log_backend)

    def _report_start(self, storage: JobStorage, resumption: Resumption | None) -> None:
        logger.info(
            "%s: job=%s tasks=%d backends=%s",
            "a new job begins" if resumption is None else "the job goes on",
            self._config.job.name,
            self.identity.partitions,
            ",".join(backends_in_use(self._config)),
        )
        self.is_begun = True
        self.report(
            JobStarted(
                partitions=self.identity.partitions,
                stores=self.identity.stores,
                backends=backends_in_use(self._config),
                log_backend=storage.log_backend,
                commit_position=storage.log.view.last_commit_position,
                committed=-1 if resumption is None else resumption.committed,
                head=-1 if resumption is None else resumption.head,
                limits=[*source_limits(self._definition.frame), *storage.limits],
                epoch=storage.log.epoch,
                commit_ns=begin_ns_of(storage.log.view.last_commit),
            )
        )

    def report_end(self, error: BaseException | None) -> None:
        """Tell listeners that the job has ended.

        Args:
            error: Why; None: it was asked to.
        """
        with suppress(BackendClosedError):  # the commit thread has ended
            self._thread.run(self.commits.leave())
        report_end(
            self.report,
            error,
            committed=self.commits.committed_batch,
            head=self.batches.head,
        )

    def leave_ticks(self) -> None:
        """Ask for no batch any more. Idempotent."""
        if self._definition.ticks is not None:
            self._definition.ticks.leave(self._wants_batch)

    def close_slots(self) -> None:
        """Release the tables that say which task runs where. Idempotent."""
        if self.rebalancer is not None:
            self.rebalancer.close()

    async def begin_last_clean_up(self) -> None:
        """Let `release` wait for a clean-up: the next query of the job may be a long time off."""
        if self.clean_up is not None:
            self.clean_up.start(is_forced=True)

    async def release(self) -> None:
        """End what works for the job, but for the thread and the tasks' slots."""
        if self.clean_up is not None:
            await self.clean_up.close(self._config.task.shutdown_ms / 1000)
        self._reporter.report_rest()
        self._definition.events.pass_to(None)
        if self._recorder is not None:
            await self._recorder.finish()
        if self.storage is not None:
            await self.storage.close()

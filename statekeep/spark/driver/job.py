"""One stateful query on the driver: takes over the job, runs its batches, ends with a commit."""

import logging
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, NoReturn

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StateOperatorProgress

from statekeep.backends.seals import outdated_markers
from statekeep.checkpoint.checkpoints import StoreName
from statekeep.checkpoint.error_summary import report_end
from statekeep.checkpoint.event_log import EventRecorder
from statekeep.checkpoint.log_view import LogView, begin_ns_of
from statekeep.checkpoint.records import JobIdentity, QueryState
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp
from statekeep.commit.gate import CommitGate
from statekeep.config.model import Config
from statekeep.config.query_defaults import page_command
from statekeep.errors import (
    BackendClosedError,
    CheckpointLocationError,
    CommitFailedError,
    ConfigError,
    StateBackupError,
    TaskFencedError,
)
from statekeep.events import CommitSummary, JobStarted, QueryStarted
from statekeep.inspection.continuous_proof import ContinuousProof, with_log_backend
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
from statekeep.spark.driver.progress import (
    KEPT_BATCHES,
    EventList,
    Stopwatch,
    explanation,
    operator_progress,
)
from statekeep.spark.driver.query_watch import (
    BatchStoppedError,
    QueryWatch,
    StopDeadline,
    WatchedQuery,
    find_successor,
    is_interruption,
)
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
_ATTACH_S: Final = 60.0
_POLL_S: Final = 0.25
_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``: for a batch that was cancelled to return, for sidecars to end."""


class StatefulJob:
    """One stateful query: what is set up before it, watched beside it, and ended after it.

    `open` runs on the thread that starts the query, `run_batch` on the one where Spark calls
    ``foreachBatch``, commits of an idle or ended query on the thread that watches it; ``_turn`` lets
    exactly one of them work at a time.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        frame: DataFrame,
        stages: Sequence[Stage],
        config: Config,
        location: CheckpointLocation,
        sink: Sink,
        clock: Clock,
        events: EventList | None = None,
        reporter: Reporter | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        """Wire the job; no I/O.

        Args:
            spark: The session.
            frame: The streaming input.
            stages: The stateful operators, in the order in which rows go through them.
            config: Checked settings; names the job.
            location: The query's checkpoint location.
            sink: Gets the output of each batch, with its number.
            clock: For delays.
            events: Keeps events, and passes them to whatever writes them down; None: a list of its own.
            reporter: Of the query's events, those of ``events`` among them; None: one of its own.
            ticks: The source of ``frame`` that asks for batches; None where nothing waits for a time.
        """
        self._spark = spark
        self._frame = frame
        self._stages = stages
        self._config = config
        self._location = location
        self._sink = sink
        self._clock = clock
        self._stopwatch = Stopwatch(clock)
        self._ticks = ticks
        self._tick_rules: Sequence[TickRule] = ()
        self.events = EventList() if events is None else events
        if reporter is None:
            reporter = Reporter(clock, config.job.name, parts=[self.events])
        self._reporter = reporter
        self._report = reporter.report
        self._has_listeners = reporter.has_listeners
        self._recent_commits: deque[CommitSummary] = deque(maxlen=KEPT_BATCHES)
        self.failure: BaseException | None = None
        """What the batch call raised, as Python has it."""
        self.fenced: TaskFencedError | None = None
        """Another driver has taken over, as was found out when the query was idle or had failed."""
        self.commit_failure: CommitFailedError | None = None
        """More commits failed in a row than are tolerated, as was found out when it was idle."""
        self.end_error: Exception | None = None
        """What kept the last commit from being made."""
        self._rebalancer: Rebalancer | None = None
        self._turn = threading.Lock()
        self._batch_thread: int | None = None
        """The thread that runs a batch: a sink may stop its own query."""
        self._thread = CommitThread("statekeep-commit", config.container, clock)
        self._storage: JobStorage | None = None
        self._recorder: EventRecorder | None = None
        self._clean_up: CleanUp | None = None
        self._proof: ContinuousProof | None = None
        self._query: WatchedQuery | None = None
        self._is_attached = threading.Event()
        self._deadline: StopDeadline | None = None
        self._is_asked_to_stop = False
        self._is_pausing = False
        self._is_open = False
        self._is_begun = False
        """Listeners have its start, and are to have its end."""
        self._ended = threading.Event()
        self._is_hurried = threading.Event()
        """The query has ended, and a caller waits for the job."""
        self._query_error: Exception | None = None
        self._closing = threading.Lock()
        self._is_closed = False

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
        check_sources(self._frame, is_replay_needed=not self._config.task.is_commit_every_batch)
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
        self._identity = resolve(storage.log.view.last_commit)
        if self._config.task.count is None:  # as many as the job has by now
            expected = msgspec.structs.replace(expected, partitions=self._identity.partitions)
        self._check_reshape(storage, expected)
        if self._identity.partitions != identity.partitions:  # the driver before has changed them
            self._spread_tasks(self._identity)
        self._wire_tasks(storage)
        resumption = takeover.take_over(self._commits, self._identity, self._jobs.abandoned)
        sweep_shadows(self._location, storage.log.epoch)
        self._stopwatch.lap("takeover")
        if resumption is not None and self._identity.partitions != expected.partitions:
            resumption = self._reshape(storage, resumption, expected.partitions)
        self._wire_batches(storage)
        self._report_start(storage, resumption)
        if resumption is not None:
            self._batches.resume(resumption, self._stopwatch)
        self._jobs.check_variables()  # with what the tasks have told of their state
        if self._ticks is not None and str(self._spark.conf.get(_EMPTY_BATCHES)).lower() == "true":
            self._ticks.follow(self._wants_batch)
        self._is_open = True

    def _open_storage(self) -> tuple[JobStorage, JobIdentity]:
        """Open backends and job log; return them, and the job as it is configured now."""
        operators = len(self._stages)
        storage = self._storage = self._thread.run(
            open_storage(
                self._config,
                self._location,
                wanted_tasks(self._config, operators),
                default=tasks_of_a_new_job(self._spark, operators),
                executor=self._thread.executor,
                clock=self._clock,
                report=self._report,
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

    def _spread_tasks(self, identity: JobIdentity) -> None:
        """Give the tasks their slots, once executors are there; from now on they may come and go."""
        tag = f"statekeep-{identity.job_uid}"
        before = self._rebalancer
        if before is not None:
            before.close()
        else:
            wait_for_executors(self._spark, expected_executors(self._spark))
        self._rebalancer = Rebalancer(
            self._spark,
            identity.partitions,
            tag,
            lambda call: self._thread.submit(self._thread.executor.run(call)),
        )
        if before is None:
            guard = StallGuard(self._spark, tag, self._clock, self._note_executors)
            self._thread.spawn(guard.watch())

    def _note_executors(self, is_settled: bool) -> None:  # noqa: FBT001 - as the guard calls it
        if self._rebalancer is not None:
            self._rebalancer.note_change(is_settled=is_settled)

    def _wire_tasks(self, storage: JobStorage) -> None:
        """Make what runs the tasks, and what commits them; the driver owns the log."""
        assert self._rebalancer is not None  # noqa: S101 - the tasks have slots
        specs = [self._job_spec(storage, number) for number in range(len(self._stages))]
        self._jobs = TaskJobs(self._spark, self._rebalancer, specs, self._thread, self._stages)
        self._jobs.epoch = storage.log.epoch
        self._wire_commits(storage, specs[0])

    def _reshape(self, storage: JobStorage, resumption: Resumption, partitions: int) -> Resumption:
        """Give the state to so many tasks; what is not committed is replayed and committed before."""
        if resumption.head > resumption.committed:
            logger.info(
                "all batches are committed before the number of tasks changes: head=%d committed=%d",
                resumption.head,
                resumption.committed,
            )
            self._wire_batches(storage)
            self._batches.resume(resumption, self._stopwatch)
            self._batches.commit_head()
        if self._clean_up is not None:
            self._thread.run(self._clean_up.close(_MARGIN_S))
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
        self._identity = msgspec.structs.replace(self._identity, partitions=partitions)
        self._spread_tasks(self._identity)
        self._wire_tasks(storage)
        self._stopwatch.lap("reshape")
        return replace(resumption, committed=resumption.head)

    def _wire_batches(self, storage: JobStorage) -> None:
        """Make what runs batches, and what watches beside them."""
        if self._ticks is not None:
            self._tick_rules = [
                TickRule(stage.operator.time_mode, tasks, self._clock, self._watermark_ms)
                for stage, tasks, has_watermark in zip(
                    self._stages,
                    self._jobs.tasks,
                    operators_with_watermark(self._stages),
                    strict=True,
                )
                if stage.operator.time_mode is TimeMode.PROCESSING
                or (stage.operator.time_mode is TimeMode.EVENT and has_watermark)
            ]
        self._batches = BatchLoop(
            frame=self._frame,
            operators=[stage.operator for stage in self._stages],
            config=self._config,
            location=self._location,
            identity=self._identity,
            thread=self._thread,
            log=storage.log,
            commits=self._commits,
            jobs=self._jobs,
            sink=self._sink,
            report=self._report,
            clock=self._clock,
            tick_rules=self._tick_rules,
        )
        self._watch = QueryWatch(
            thread=self._thread,
            log=storage.log,
            commits=self._commits,
            batches=self._batches,
            jobs=self._jobs,
            location=self._location,
            turn=self._turn,
            settings=self._config.task,
            clock=self._clock,
        )

    def _given_up(self) -> Sequence[StoreName]:
        """Return the stores whose state is not wanted any more, as settings say."""
        stores = stores_of_query(self._config)
        return [name for name in stores if self._config.store(name).is_begun_empty]

    def _check_time_mode(self, view: LogView) -> None:
        """Refuse to begin or to end with timers under a query that runs already, or with another clock."""
        modes = [stage.operator.time_mode.value for stage in self._stages]
        check_imported_time_mode(view, modes)
        text = newest_offsets(self._location, view)
        if text is not None and has_ticks(text) != (self._ticks is not None):
            raise ConfigError(
                "the query began with another time mode: "
                f"timeMode={','.join(modes)} location={self._location.uri}",
                key="timeMode",
                hint="go back to the former timeMode, or start anew under another job.name with"
                " another checkpoint location",
            )

    def _wants_batch(self, *, is_available_now: bool) -> bool:
        """Return whether some operator needs a batch; each of them is asked."""
        wanted = [r.wants_batch(is_available_now=is_available_now) for r in self._tick_rules]
        return any(wanted)

    def _watermark_ms(self) -> int:
        """Return the watermark of the next batch, on the query's thread between two batches."""
        # The first batch may end before the thread that starts the query has its handle.
        if not self._is_attached.wait(_ATTACH_S) or self._query is None:
            raise StateBackupError("the query was only partly started")
        return self._query.watermark_ms()

    def _wire_commits(self, storage: JobStorage, spec: JobSpec) -> None:
        """Make what commits and what cleans up after them."""
        executor, partitions = self._thread.executor, self._identity.partitions
        # The driver deletes for all tasks, as sidecars upload for theirs.
        executor.raise_cap(self._config.container.commit_pool_threads(partitions))

        async def read_query_state(batch: int) -> QueryState:
            current = storage.log.view.last_commit
            return await executor.run(query_state, self._location, current, batch)

        self._commits = JobCommits(
            log=storage.log,
            checkpoints=storage.checkpoints,
            gate=CommitGate(self._config.task),
            clock=self._clock,
            identity=self._identity,
            query_state=read_query_state,
            on_commit=self._committed,
            required_backends=backends_of(self._config, is_optional=False),
            optional_backends=backends_of(self._config, is_optional=True),
            find_outdated=lambda markers: outdated_markers(storage.factories, markers, executor),
            report=self._report,
            is_observed=self._has_listeners,
        )
        self._clean_up = job_clean_up(
            spec,
            partitions,
            storage.factories,
            log=storage.log,
            checkpoints=storage.checkpoints,
            executor=executor,
            clock=self._clock,
            on_gone=self._commits.forget_shares,
            report=self._report,
        )

    def _prove_commits(self) -> None:
        """Let the newest commit be verified now and then, if that is wanted."""
        if self._config.job.verify_interval_ms:
            self._proof = ContinuousProof(
                self.settings,
                clock=self._clock,
                report=self._report,
                rng=random.Random(),  # noqa: S311 - any task will do
            )
            self._thread.spawn(self._proof.run())

    async def _record_events(self, storage: JobStorage) -> None:
        """Write events down from now on, under this driver session's own epoch."""
        recorder = EventRecorder(
            storage.checkpoints, storage.log.epoch, self._config.job, self._clock
        )
        self.events.pass_to(lambda e: recorder.add(e.time_ms, e.kind, e.details))
        self._thread.spawn(recorder.run())
        self._recorder = recorder

    def _job_spec(self, storage: JobStorage, number: int) -> JobSpec:
        """Return the job with one of its operators."""
        operator, partitions = self._stages[number].operator, self._identity.partitions
        variable_stores = variable_stores_of(self._config, operator.name)
        lasting, commit = lasting_stores(self._config), storage.log.view.last_commit
        listed = {s for of in commit.identity.stores.values() for s in of} if commit else set()
        return JobSpec(
            config=self._config,
            job_uid=self._identity.job_uid,
            log_backend=storage.log_backend,
            app_id=self._spark.sparkContext.applicationId,
            operator=replace(operator, variable_stores=variable_stores),
            processor=cloudpickle.dumps(operator.processor),  # type: ignore[no-untyped-call]
            python_path=tuple(sys.path),
            tasks=operator_tasks(number, len(self._stages), partitions),
            stores=stores_of_query(self._config),
            lasting_stores=lasting,
            listed_stores=tuple(store for store in lasting if store in listed),
        )

    def run_batch(self, rows: DataFrame, batch: int) -> None:
        """Process one batch, record it, deliver its output (R3-R5); Spark's ``foreachBatch``.

        Raises:
            StateBackupError: The batch is not the next one, or cannot be processed exactly.
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
            BatchStoppedError: The query is stopping, and the batch was broken off.
        """
        try:
            with self._turn:
                is_begun = not self._is_pausing
                if is_begun:
                    self._batch_thread = threading.get_ident()
                    try:
                        self._batches.run(rows, batch)
                    finally:
                        self._batch_thread = None
                    self._watch.note_batch()
            if not is_begun:
                self._await_stop()
        except BaseException as exc:
            self.failure = exc
            is_broken_off = self._jobs.placement.is_given_up or is_interruption(exc)
            if is_broken_off and self._query is not None and self._query.is_stopping():
                raise BatchStoppedError from None
            raise

    def attach(self, query: WatchedQuery) -> None:
        """Watch the Spark query from now on: commit when idle, commit and close when it ends."""
        self._stopwatch.lap("query")
        logger.info(
            "the query is started: job=%s %s", self._config.job.name, self._stopwatch.summary()
        )
        logger.info(
            "look at the job on a page: %s", page_command(self._config, self._location.shared_uri)
        )
        self._report(QueryStarted(self._stopwatch.phases_ms))
        self._query = query
        self._is_attached.set()
        self._prove_commits()
        self._deadline = deadline = StopDeadline(
            self._commits,
            lambda: self._thread.executor.run(query.is_stopping),
            self._jobs.placement.give_up,
            self._clock,
            self._config.task.shutdown_ms,
        )
        # The batch that was cancelled has returned by then, and the sidecars had time to end.
        self._thread.give_up_calls_once(lambda: deadline.is_over_since(2 * _MARGIN_S))
        self._thread.spawn(deadline.watch())
        threading.Thread(
            # In this context, as what is spawned: it has the handler of fault points.
            target=copy_context().run,
            args=(self._look_after, query, deadline),
            name="statekeep-watch",
            daemon=True,
        ).start()

    def explain(self) -> str:
        """Return what the operators are and where their state goes, a line each."""
        return explanation(self._stages, self._config, self._identity.partitions)

    def prepare_stop(self) -> None:
        """Let ``task.shutdown.ms`` begin: `stop` is about to be called on the query.

        Where every batch is committed in its own call, a batch that runs may be delivered already,
        and Spark would break off its commit: it may end first, within that time.
        """
        deadline = self._deadline
        if deadline is None:
            return
        self._is_asked_to_stop = True
        deadline.begin()
        if self._config.task.is_commit_every_batch:
            self._await_batch(deadline)

    def pause(self) -> None:
        """Begin no other batch, and wait until the one that runs has ended; the query is stopped next.

        It has ended once Spark has recorded it, too: a stop before that would leave a batch that was
        delivered and is in no commit. Returns early if the query ends or is stopped meanwhile.
        """
        self._is_pausing = True
        while not self._is_ending():
            if self._turn.acquire(timeout=_POLL_S):
                self._turn.release()
                break
        while not self._is_ending() and not self._is_recorded():
            self._ended.wait(_POLL_S)

    def _is_ending(self) -> bool:
        return self._ended.is_set() or self._is_asked_to_stop

    def _is_recorded(self) -> bool:
        """Whether Spark has recorded the newest batch, or its records cannot be read."""
        try:
            newest = self._thread.call(self._location.newest, "commits")
        except (StateBackupError, CancelledError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("it is not known whether Spark has recorded the batch: error=%s", exc)
            return True
        return newest >= self._batches.head

    def _await_stop(self) -> NoReturn:
        """Hold a batch that came while the query is to be stopped between two: it is not begun."""
        while self._query is not None and not self._query.is_stopping():
            self._ended.wait(_POLL_S)
        raise BatchStoppedError

    def _await_batch(self, deadline: StopDeadline) -> None:
        """Wait for the end of the batch that runs, if one does, until ``deadline``.

        Not for the turn, which the end of the job keeps.
        """
        while self._batch_thread not in {None, threading.get_ident()}:
            rest_s = deadline.remaining_s()
            if rest_s == 0 or self._ended.is_set():
                return
            if self._turn.acquire(timeout=min(_POLL_S, rest_s)):
                self._turn.release()
                return

    def find_successor(self) -> TaskFencedError | None:
        """Look whether another driver has taken over since `open`; None if it has not."""
        if self._storage is None:
            return None
        return self._thread.run(find_successor(self._storage.log))

    @property
    def is_in_batch(self) -> bool:
        """Whether the calling thread is the one that runs a batch, as in a sink."""
        return self._batch_thread == threading.get_ident()

    @property
    def settings(self) -> Config:
        """What the job is found by from outside: they name the backend that its log is in; after `open`."""
        assert self._storage is not None  # noqa: S101 - it is open
        return with_log_backend(self._config, self._storage.log_backend)

    @property
    def last_commit(self) -> CommitSummary | None:
        """The newest one of this run; None before the first."""
        return self._recent_commits[-1] if self._recent_commits else None

    @property
    def epoch(self) -> int:
        """The number of this driver session; after `open`."""
        return self._jobs.epoch

    def wait_ended(self) -> None:
        """Wait for the end of the job after that of its query: at most the last commit."""
        self._is_hurried.set()
        self._ended.wait()
        self.close()

    @property
    def error(self) -> BaseException | None:
        """Why the job has ended, at its root; None if it was asked to, or runs."""
        if self._query_error is not None:
            return self.fenced or self.failure or self._query_error
        return self.fenced or self.commit_failure or self.end_error

    def end_failed_start(self, error: BaseException) -> None:
        """Close a job whose query could not be started, and report why it ends."""
        if self._is_begun:
            self._report_end(error)
        self.close()

    def close(self) -> None:
        """Release the commit thread. Idempotent, from any thread."""
        self._ended.set()
        self._is_attached.set()
        if self._ticks is not None:
            self._ticks.leave(self._wants_batch)
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._thread.end_background()
                if self._rebalancer is not None:
                    self._rebalancer.close()
                try:
                    self._thread.run(self._release())
                finally:
                    self._thread.close()

    async def _release(self) -> None:
        if self._clean_up is not None:
            await self._clean_up.close(self._config.task.shutdown_ms / 1000)
        self._reporter.report_rest()
        self.events.pass_to(None)
        if self._recorder is not None:
            await self._recorder.finish()
        if self._storage is not None:
            await self._storage.close()

    def status(self) -> dict[str, Any]:
        """Return how far commits are."""
        is_open = self._is_open
        failing = None if self._clean_up is None else self._clean_up.failing
        return {
            "lastCommittedBatch": self._commits.committed_batch if is_open else None,
            "isCommitting": is_open and self._commits.open_batch is not None,
            "cleanUpFailing": None if failing is None else asdict(failing),
            **self._proof_status(),
        }

    def _proof_status(self) -> dict[str, Any]:
        proof = self._proof
        if proof is None:
            return {"lastVerifiedCommit": None, "verifyFailing": None}
        verified = proof.last_verified
        return {
            "lastVerifiedCommit": None if verified is None else asdict(verified),
            "verifyFailing": proof.failing or None,
        }

    def operator_progress(
        self, batch: int, restarts: Mapping[str, object]
    ) -> list[StateOperatorProgress]:
        """Return the entries of ``stateOperators`` for one of the newest batches, else none."""
        batches, commits = list(self._batches.recent_batches), list(self._recent_commits)
        found = next((done for done in reversed(batches) if done[0].batch == batch), None)
        if found is None:
            return []
        commit = next((commit for commit in reversed(commits) if commit.batch <= batch), None)
        return [
            operator_progress(done, len(tasks), commit, stage.operator.declared.counts, restarts)
            for stage, tasks, done in zip(self._stages, self._jobs.tasks, found, strict=True)
        ]

    def _look_after(self, query: WatchedQuery, deadline: StopDeadline) -> None:
        """Runs on a thread of its own for as long as the query lives, and ends the job."""
        try:
            try:
                while self._thread.call(query.is_running):
                    self._is_hurried.wait(_POLL_S)
                    self._watch.poll(deadline)
            except (TaskFencedError, CommitFailedError) as exc:
                logger.warning("the query is stopped: error=%s", exc)
                if isinstance(exc, TaskFencedError):
                    self.fenced = exc
                else:
                    self.commit_failure = exc
                self._thread.call(query.stop)
            deadline.begin()
            self._query_error = self._thread.call(query.exception)
            is_expected = self._query_error is None and self._is_asked_to_stop
            if self.fenced is None and not is_expected:
                # Spark stops a query without an error when the same one starts anew in the session.
                self.fenced = self.find_successor()
            self._end(deadline, is_committing=self.error is None)
        except Exception as exc:
            logger.exception("the job did not stop cleanly")
            self.end_error = exc
        finally:
            deadline.begin()  # what hangs now is given up, however the query has ended
            deadline.end()
            self._is_open = False
            self._report_end(self.error)
            self.close()

    def _end(self, deadline: StopDeadline, *, is_committing: bool) -> None:
        """Commit what was delivered, within ``task.shutdown.ms``; then let the sidecars end."""
        timeout_s = deadline.remaining_s() + _MARGIN_S
        if not self._turn.acquire(timeout=timeout_s):
            logger.warning("the running batch does not end: timeout_s=%s", timeout_s)
            return
        try:
            if is_committing:
                self._watch.commit_last(deadline)
                self._thread.run(self._begin_last_clean_up())
        finally:
            deadline.end()
            self._stop_sidecars(max(deadline.remaining_s(), _MARGIN_S))

    async def _begin_last_clean_up(self) -> None:
        """Let `close` wait for a clean-up: the next query of the job may be a long time off."""
        if self._clean_up is not None:
            self._clean_up.start(is_forced=True)

    def _stop_sidecars(self, timeout_s: float) -> None:
        """Let the sidecars end once their uploads are done, if there still are executors."""
        is_committed = self.fenced is None and (self._commits.committed_batch == self._batches.head)
        end_session = partial(self._jobs.end_session, is_committed=is_committed)
        stopping = self._thread.submit(self._thread.executor.run(end_session))
        wait([stopping], timeout=timeout_s)
        while not stopping.done():
            self._jobs.placement.give_up()
            wait([stopping], timeout=_POLL_S)  # its job may begin only now
        try:
            stopping.result()
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning(
                "sidecars could not be stopped and end with their executors: error=%s", exc
            )

    def _committed(self, summary: CommitSummary) -> None:
        self._recent_commits.append(summary)
        if self._clean_up is not None:
            self._clean_up.start()

    def _report_start(self, storage: JobStorage, resumption: Resumption | None) -> None:
        logger.info(
            "%s: job=%s tasks=%d backends=%s",
            "a new job begins" if resumption is None else "the job goes on",
            self._config.job.name,
            self._identity.partitions,
            ",".join(backends_in_use(self._config)),
        )
        self._is_begun = True
        self._report(
            JobStarted(
                partitions=self._identity.partitions,
                stores=self._identity.stores,
                backends=backends_in_use(self._config),
                log_backend=storage.log_backend,
                commit_position=storage.log.view.last_commit_position,
                committed=-1 if resumption is None else resumption.committed,
                head=-1 if resumption is None else resumption.head,
                limits=[*source_limits(self._frame), *storage.limits],
                epoch=storage.log.epoch,
                commit_ns=begin_ns_of(storage.log.view.last_commit),
            )
        )

    def _report_end(self, error: BaseException | None) -> None:
        with suppress(BackendClosedError):  # the commit thread has ended
            self._thread.run(self._commits.leave())
        report_end(
            self._report,
            error,
            committed=self._commits.committed_batch,
            head=self._batches.head,
        )

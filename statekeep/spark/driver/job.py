"""One stateful query on the driver: takes over the job, runs its batches, ends with a commit."""

# The JVM's objects and pyarrow have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportOptionalCall=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportAttributeAccessIssue=false

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StateOperatorProgress

from statekeep.backends.sealing import outdated_markers
from statekeep.checkpoint.event_recorder import EventRecorder
from statekeep.checkpoint.note import summary_of
from statekeep.checkpoint.records import QueryState
from statekeep.clock import Clock
from statekeep.commit.clean_up import CleanUp
from statekeep.commit.committer import CommitSummary
from statekeep.commit.gate import CommitGate
from statekeep.config.model import Config
from statekeep.errors import (
    CommitFailedError,
    ConfigError,
    StateBackupError,
    TaskFencedError,
)
from statekeep.spark.anchor import (
    ROUTER,
    Anchor,
    expected_executors,
    slot_count,
    spread,
    wait_for_executors,
)
from statekeep.spark.driver.batch_loop import BatchLoop, Sink
from statekeep.spark.driver.clean_up import job_clean_up
from statekeep.spark.driver.commit_thread import CommitThread
from statekeep.spark.driver.events import EventList
from statekeep.spark.driver.job_commits import JobCommits
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.new_query import query_state
from statekeep.spark.driver.opening import DEFAULT_TASKS, JobPlace, open_place
from statekeep.spark.driver.progress import operator_progress
from statekeep.spark.driver.query_watch import QueryWatch, StopPatience, find_successor
from statekeep.spark.driver.replay import (
    check_retention,
    check_sources,
    source_limits,
    sweep_shadows,
)
from statekeep.spark.driver.stall_guard import StallGuard
from statekeep.spark.driver.stopwatch import Stopwatch
from statekeep.spark.driver.takeover import Resumption, Takeover, new_identity, settled_identity
from statekeep.spark.driver.task_jobs import TaskJobs
from statekeep.spark.driver.tick_rule import TickRule
from statekeep.spark.driver.ticks import Ticks, has_ticks
from statekeep.spark.driver.watched_query import (
    BatchStoppedError,
    WatchedQuery,
    is_interruption,
)
from statekeep.spark.initial_state import InitialState
from statekeep.spark.operator.runner import OperatorSpec
from statekeep.spark.tasks import STATE_STORE
from statekeep.spark.worker.job_spec import JobSpec

logger = logging.getLogger(__name__)

_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_EMPTY_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_ATTACH_S: Final = 60.0
_POLL_S: Final = 0.25
_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``: for a batch that was cancelled to return, for containers to end."""


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
        operator: OperatorSpec,
        config: Config,
        location: CheckpointLocation,
        sink: Sink,
        clock: Clock,
        initial: InitialState | None = None,
        events: EventList | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        """Wire the job; no I/O.

        Args:
            spark: The session.
            frame: The streaming input.
            operator: The stateful operator.
            config: Checked settings; names the job.
            location: The query's checkpoint location.
            sink: Gets the output of each batch, with its number.
            clock: For delays.
            initial: What the state of a new job begins with.
            events: Where events go; None: a list of its own.
            ticks: The source of ``frame`` that asks for batches; None where nothing waits for a time.
        """
        self._spark = spark
        self._frame = frame
        self._operator = operator
        self._initial = initial
        self._config = config
        self._location = location
        self._sink = sink
        self._clock = clock
        self._stopwatch = Stopwatch(clock)
        self._ticks = ticks
        self._tick_rule: TickRule | None = None
        self.events = EventList(clock) if events is None else events
        self.last_commit: CommitSummary | None = None
        self.failure: BaseException | None = None
        """What the batch call raised, as Python has it."""
        self.fenced: TaskFencedError | None = None
        """Another driver has taken over, as was found out when the query was idle or had failed."""
        self.commit_failure: CommitFailedError | None = None
        """More commits failed in a row than are tolerated, as was found out when it was idle."""
        self.end_error: Exception | None = None
        """What kept the last commit from being made."""
        self._anchor: Anchor | None = None
        self._turn = threading.Lock()
        self._batch_thread: int | None = None
        """The thread that runs a batch: a sink may stop its own query."""
        self._thread = CommitThread("statekeep-commit", config.container, clock)
        self._place: JobPlace | None = None
        self._recorder: EventRecorder | None = None
        self._clean_up: CleanUp | None = None
        self._query: WatchedQuery | None = None
        self._is_attached = threading.Event()
        self._patience: StopPatience | None = None
        self._is_open = False
        self._commit_made = threading.Condition()
        self._ended = threading.Event()
        self._is_hurried = threading.Event()
        """The query has ended, and somebody waits for the job."""
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
                newest owner; None: whoever owns the job is fenced.

        Raises:
            TaskFencedError: Another driver has taken over since ``own_epoch``.
            ConfigError: A setting, a backend or the job's identity is wrong.
            CheckpointLocationError: The checkpoint location is not the job's.
            RestoreFailedError: State is out of reach.
        """
        stopwatch = self._stopwatch
        check_retention(self._spark, self._config.task.replay_max_batches)
        check_sources(self._frame, is_replay_needed=not self._config.task.is_commit_every_batch)
        wanted = self._wanted_tasks()
        place = self._place = self._thread.run(
            open_place(
                self._config,
                self._location,
                wanted,
                executor=self._thread.executor,
                clock=self._clock,
                note=self.events.add,
            )
        )
        commit = place.log.view.last_commit
        partitions = wanted or (DEFAULT_TASKS if commit is None else commit.identity.partitions)
        key_schema = self._operator.key_schema.simpleString()
        expected = new_identity(self._config, partitions, ROUTER, key_schema)
        identity = settled_identity(commit, expected)
        takeover = Takeover(
            place.log,
            place.checkpoints,
            self._location,
            self._thread,
            start_from=self._config.job.start_from_checkpoint,
            clock=self._clock,
        )
        takeover.check_location()
        stopwatch.lap("log")
        self._check_time_mode()
        tag = f"statekeep-{identity.job_uid}"
        wait_for_executors(self._spark, expected_executors(self._spark))
        self._anchor = Anchor(
            self._spark, spread(partitions, slot_count(self._spark, partitions)), tag
        )
        self._thread.spawn(StallGuard(self._spark, tag, self._clock).watch())
        stopwatch.lap("placement")
        # All that may fail or take long comes before: until now an older driver goes on.
        check_wanted()
        if own_epoch is not None:
            takeover.check_followed(own_epoch)
        takeover.fence()
        self._thread.run(self._record_events(place))
        self._identity = settled_identity(place.log.view.last_commit, expected)
        spec = self._job_spec(place)
        self._jobs = TaskJobs(self._spark, self._anchor, spec, self._thread, self._initial)
        self._wire_commits(place, spec)
        resumption = takeover.take_over(self._commits, self._identity, self._jobs.abandoned)
        self._jobs.epoch = place.log.epoch
        sweep_shadows(self._location, place.log.epoch)
        stopwatch.lap("takeover")
        if self._ticks is not None:
            mode, tasks = self._operator.time_mode, self._identity.partitions
            self._tick_rule = TickRule(mode, tasks, self._clock, self._watermark_ms)
        self._batches = BatchLoop(
            frame=self._frame,
            operator=self._operator,
            config=self._config,
            location=self._location,
            identity=self._identity,
            thread=self._thread,
            log=place.log,
            commits=self._commits,
            jobs=self._jobs,
            sink=self._sink,
            events=self.events,
            clock=self._clock,
            tick_rule=self._tick_rule,
        )
        self._watch = QueryWatch(
            thread=self._thread,
            log=place.log,
            commits=self._commits,
            batches=self._batches,
            jobs=self._jobs,
            location=self._location,
            turn=self._turn,
            settings=self._config.task,
            clock=self._clock,
        )
        self._note_start(place, resumption)
        if resumption is not None:
            self._batches.resume(resumption, stopwatch)
        if self._ticks is not None and self._tick_rule is not None and self._has_empty_batches():
            self._ticks.follow(self._tick_rule.wants_batch)
        self._is_open = True

    def _check_time_mode(self) -> None:
        """Refuse to begin or to end with timers under a query that runs already."""
        newest = self._location.newest("offsets")
        text = None if newest < 0 else self._location.read(f"offsets/{newest}")
        if text is not None and has_ticks(text) != (self._ticks is not None):
            raise ConfigError(
                "the query began with another time mode: "
                f"timeMode={self._operator.time_mode.value} location={self._location.uri}",
                key="timeMode",
                hint="go back to the former timeMode, or start anew under another job.name with"
                " another checkpoint location",
            )

    def _watermark_ms(self) -> int:
        """Return the watermark of the next batch, on the query's thread between two batches."""
        # The first batch may end before the thread that starts the query has its handle.
        if not self._is_attached.wait(_ATTACH_S) or self._query is None:
            raise StateBackupError("the query was not started whole")
        return self._query.watermark_ms()

    def _has_empty_batches(self) -> bool:
        return str(self._spark.conf.get(_EMPTY_BATCHES)).lower() == "true"

    def _wanted_tasks(self) -> int | None:
        """Return how many tasks the user wants, by our setting or by Spark's; None: nobody said."""
        if self._config.task.count is not None:
            return self._config.task.count
        conf = self._spark._jsparkSession.sessionState().conf()  # noqa: SLF001 - tells what is set
        if conf.contains(_SHUFFLE_PARTITIONS):
            return int(str(self._spark.conf.get(_SHUFFLE_PARTITIONS)))
        return None

    def _wire_commits(self, place: JobPlace, spec: JobSpec) -> None:
        """Make what commits and what cleans up after them."""
        executor, partitions = self._thread.executor, self._identity.partitions
        # The driver deletes for all tasks, as containers upload for theirs.
        executor.raise_cap(self._config.container.commit_pool_threads(partitions))
        self._clean_up = job_clean_up(
            spec,
            partitions,
            place.factories,
            log=place.log,
            checkpoints=place.checkpoints,
            executor=executor,
            clock=self._clock,
            note=self.events.add,
        )
        store = self._config.store(STATE_STORE)

        async def read_query_state(batch: int) -> QueryState:
            current = place.log.view.last_commit
            return await executor.run(query_state, self._location, current, batch)

        self._commits = JobCommits(
            log=place.log,
            checkpoints=place.checkpoints,
            gate=CommitGate(self._config.task),
            clock=self._clock,
            identity=self._identity,
            query_state=read_query_state,
            on_commit=self._committed,
            required_backends=store.required_factories,
            optional_backends=store.optional_factories,
            find_outdated=lambda markers: outdated_markers(place.factories, markers, executor),
            note=self.events.add,
        )

    async def _record_events(self, place: JobPlace) -> None:
        """Write events down from now on, under the epoch that nobody else has."""
        recorder = EventRecorder(place.checkpoints, place.log.epoch, self._config.job, self._clock)
        self.events.pass_to(lambda e: recorder.add(e.time_ms, e.kind, e.details))
        self._thread.spawn(recorder.run())
        self._recorder = recorder

    def _job_spec(self, place: JobPlace) -> JobSpec:
        return JobSpec(
            config=self._config,
            job_uid=self._identity.job_uid,
            log_backend=place.log_backend,
            app_id=self._spark.sparkContext.applicationId,
            operator=self._operator,
            processor=cloudpickle.dumps(self._operator.processor),  # type: ignore[no-untyped-call]
            python_path=tuple(sys.path),
        )

    def run_batch(self, rows: DataFrame, batch: int) -> None:
        """Process one batch, record it, deliver its output (R3-R5); Spark's ``foreachBatch``.

        Raises:
            StateBackupError: The batch is not the next one, or cannot be processed exactly.
            CommitFailedError: More commits failed in a row than are tolerated.
            TaskFencedError: Another driver has taken over.
            BatchStoppedError: The query was told to stop, and Spark has broken the batch off.
        """
        try:
            with self._turn:
                self._batch_thread = threading.get_ident()
                try:
                    self._batches.run(rows, batch)
                finally:
                    self._batch_thread = None
                self._watch.note_batch()
        except BaseException as exc:
            self.failure = exc
            if is_interruption(exc) and self._query is not None and self._query.is_stopping():
                raise BatchStoppedError from None
            raise

    def attach(self, query: WatchedQuery) -> None:
        """Watch the Spark query from now on: commit when idle, commit and close when it ends."""
        self._stopwatch.lap("query")
        logger.info(
            "the query is started: job=%s %s", self._config.job.name, self._stopwatch.summary()
        )
        self._query = query
        self._is_attached.set()
        self._patience = patience = StopPatience(
            self._commits,
            lambda: self._thread.executor.run(query.is_stopping),
            self._jobs.anchor.give_up,
            self._clock,
            self._config.task.shutdown_ms,
        )
        # The batch that was cancelled has returned by then, and the containers had time to end.
        self._thread.give_up_calls_once(lambda: patience.is_over_since(2 * _MARGIN_S))
        self._thread.spawn(patience.watch())
        threading.Thread(
            # In this context, as what is spawned: it has the handler of fault points.
            target=copy_context().run,
            args=(self._look_after, query, patience),
            name="statekeep-watch",
            daemon=True,
        ).start()

    def prepare_stop(self) -> None:
        """Let ``task.shutdown.ms`` begin: the query is about to be told to stop.

        Where every batch is committed in its own call, a batch that runs may be delivered already,
        and Spark would break off its commit: it may end first, within that time.
        """
        patience = self._patience
        if patience is None:
            return
        patience.begin()
        if self._config.task.is_commit_every_batch:
            self._await_batch(patience)

    def _await_batch(self, patience: StopPatience) -> None:
        """Wait for the end of the batch that runs, if one does, as long as ``patience`` lasts.

        Not for the turn, which the end of the job keeps.
        """
        while self._batch_thread not in {None, threading.get_ident()}:
            rest_s = patience.remaining_s()
            if rest_s == 0 or self._ended.is_set():
                return
            if self._turn.acquire(timeout=min(_POLL_S, rest_s)):
                self._turn.release()
                return

    def find_successor(self) -> TaskFencedError | None:
        """Look whether another driver has taken over since `open`; None if it has not."""
        if self._place is None:
            return None
        return self._thread.run(find_successor(self._place.log))

    @property
    def epoch(self) -> int:
        """The number of this driver session; after `open`."""
        return self._jobs.epoch

    def wait_ended(self) -> None:
        """Wait for the end of the job after that of its query: at most the last commit."""
        self._is_hurried.set()
        self._ended.wait()
        self.close()

    def wait_committed(self, batch: int, timeout_s: float) -> bool:
        """Wait until a commit of ``batch`` or a later one is durable; False after the time-out."""
        with self._commit_made:
            return self._commit_made.wait_for(
                lambda: self.last_commit is not None and self.last_commit.batch >= batch, timeout_s
            )

    @property
    def error(self) -> BaseException | None:
        """Why the job has ended, at its root; None if it was asked to, or runs."""
        if self._query_error is not None:
            return self.fenced or self.failure or self._query_error
        return self.fenced or self.commit_failure or self.end_error

    def close(self) -> None:
        """Release the commit thread. Idempotent, from any thread."""
        self._ended.set()
        self._is_attached.set()
        if self._ticks is not None and self._tick_rule is not None:
            self._ticks.leave(self._tick_rule.wants_batch)
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._thread.end_background()
                try:
                    self._thread.run(self._release())
                finally:
                    self._thread.close()
                if self._anchor is not None:
                    self._anchor.close()

    async def _release(self) -> None:
        if self._clean_up is not None:
            await self._clean_up.close(self._config.task.shutdown_ms / 1000)
        self.events.pass_to(None)
        if self._recorder is not None:
            await self._recorder.finish()
        if self._place is not None:
            await self._place.close()

    def status(self) -> dict[str, Any]:
        """Return how far commits are."""
        is_open = self._is_open
        failing = None if self._clean_up is None else self._clean_up.failing
        return {
            "lastCommittedBatch": self._commits.committed_batch if is_open else None,
            "isCommitting": is_open and self._commits.open_batch is not None,
            "cleanUpFailing": None if failing is None else asdict(failing),
        }

    def operator_progress(
        self, batch: int, restarts: Mapping[str, object]
    ) -> StateOperatorProgress | None:
        """Return the entry of ``stateOperators`` for a batch, if it is the newest one."""
        done = self._batches.last_batch
        if done.batch != batch:
            return None
        return operator_progress(
            done, self._identity.partitions, self.last_commit, self._operator.declared, restarts
        )

    def _look_after(self, query: WatchedQuery, patience: StopPatience) -> None:
        """Runs on a thread of its own for as long as the query lives, and ends the job."""
        try:
            try:
                while self._thread.call(query.is_running):
                    self._is_hurried.wait(_POLL_S)
                    self._watch.look(patience)
            except (TaskFencedError, CommitFailedError) as exc:
                logger.warning("the query is stopped: error=%s", exc)
                if isinstance(exc, TaskFencedError):
                    self.fenced = exc
                else:
                    self.commit_failure = exc
                self._thread.call(query.stop)
            patience.begin()
            self._query_error = self._thread.call(query.exception)
            if self._query_error is not None and self.fenced is None:
                self.fenced = self.find_successor()
            self._end(patience, is_committing=self.error is None)
        except Exception as exc:
            logger.exception("the job did not end well")
            self.end_error = exc
        finally:
            patience.begin()  # what hangs now is given up, however the query has ended
            patience.end()
            self._is_open = False
            self._note_end()
            self.close()

    def _end(self, patience: StopPatience, *, is_committing: bool) -> None:
        """Commit what was delivered, within ``task.shutdown.ms``; then let the containers end."""
        timeout_s = patience.remaining_s() + _MARGIN_S
        if not self._turn.acquire(timeout=timeout_s):
            logger.warning("the running batch does not end: timeout_s=%s", timeout_s)
            return
        try:
            if is_committing:
                self._watch.commit_last(patience)
                self._thread.run(self._begin_last_clean_up())
        finally:
            patience.end()
            self._stop_containers(max(patience.remaining_s(), _MARGIN_S))

    async def _begin_last_clean_up(self) -> None:
        """Let `close` wait for a clean-up: the next query of the job may be a long time off."""
        if self._clean_up is not None:
            self._clean_up.start(is_forced=True)

    def _stop_containers(self, timeout_s: float) -> None:
        """Let the containers end once their uploads are done, if there still are executors."""
        is_committed = self.fenced is None and (self._commits.committed_batch == self._batches.head)
        end_session = partial(self._jobs.end_session, is_committed=is_committed)
        stopping = self._thread.submit(self._thread.executor.run(end_session))
        wait([stopping], timeout=timeout_s)
        while not stopping.done():
            self._jobs.anchor.give_up()
            wait([stopping], timeout=_POLL_S)  # its job may begin only now
        try:
            stopping.result()
        except (StateBackupError, PySparkException, Py4JError, OSError) as exc:
            logger.warning("containers end with their executors: error=%s", exc)

    def _committed(self, summary: CommitSummary) -> None:
        with self._commit_made:
            self.last_commit = summary
            self._commit_made.notify_all()
        if self._clean_up is not None:
            self._clean_up.start()

    def _note_start(self, place: JobPlace, resumption: Resumption | None) -> None:
        self.events.add(
            "job-initialised",
            partitions=self._identity.partitions,
            stores=self._identity.stores,
            backends=self._config.store(STATE_STORE).backup_factories,
            log_backend=place.log_backend,
            commit_position=place.log.view.last_commit_position,
            committed=-1 if resumption is None else resumption.committed,
            head=-1 if resumption is None else resumption.head,
            limits=[*source_limits(self._frame), *place.limits],
        )

    def _note_end(self) -> None:
        error = self.error
        if isinstance(error, TaskFencedError):
            self.events.add("fenced", own_epoch=error.own_epoch, newer_epoch=error.newer_epoch)
        self.events.add(
            "stopped",
            committed=self._commits.committed_batch,
            head=self._batches.head,
            error=None if error is None else summary_of(error),
        )

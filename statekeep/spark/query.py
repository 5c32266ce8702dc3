"""The handle of a running stateful query, with the habits of Spark's `StreamingQuery`."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from statekeep.clock import Clock
from statekeep.errors import ConfigError, StateBackupError
from statekeep.events import CommitSummary
from statekeep.reporter import ListenerThread, Reporter, RequestCounter
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.progress import EventList, QueryEvent, add_operators
from statekeep.spark.query_run import QueryPlan, QueryRun, as_query_failure
from statekeep.spark.restart_policy import RestartPolicy
from statekeep.spark.state_writer import write_between_runs, write_request
from statekeep.spark.supervisor import Supervisor
from statekeep.spark.termination import termination

_Failure = TypeVar("_Failure", bound=Exception)

_BOUNDED_TRIGGERS: Final = ("availableNow", "once")
"""Their queries end by themselves."""
_MARGIN_S: Final = 5.0
"""Beyond ``task.shutdown.ms``, for the thread that follows a query to see its end."""


class StatefulStreamingQuery:
    """A query on statekeep's runtime. What is not special here is that of the Spark query.

    Where ``job.restart.strategy`` says so, or where an older driver has written to the checkpoint
    location of the job's owner, a query that failed is started again behind the same handle: `id`
    stays, `runId` is another one, and Spark's own list of active queries has it only while a run is
    active.
    """

    def __init__(self, plan: QueryPlan, events: EventList, supervisor: Supervisor) -> None:
        """Wrap a query that was just started; by `start`.

        Args:
            plan: What it is started from.
            events: Of all runs.
            supervisor: Follows the first run, and starts the next ones.
        """
        self._plan = plan
        self._events = events
        self._supervisor = supervisor
        _queries.add(self)

    @classmethod
    def start(cls, plan: QueryPlan, clock: Clock) -> Self:
        """Start a query, and have it started again as its settings say.

        Errors of the first start are the caller's: see `QueryPlan.start`.
        """
        events = EventList()
        listeners = ListenerThread(plan.listeners) if plan.listeners else None
        # Before the list of events, so that the sums at the end come before the end.
        counter = RequestCounter()
        reporter = Reporter(
            clock, plan.config.job.name, parts=[counter, events], listeners=listeners
        )
        counter.report_to(reporter.report)

        def end_listeners() -> None:
            if listeners is not None:
                listeners.close()

        try:
            run = plan.start(events, reporter, clock)
        except BaseException:
            end_listeners()
            raise
        context = plan.source.sparkSession.sparkContext
        supervisor = Supervisor(
            run,
            lambda check_wanted, own_epoch: plan.start(
                events, reporter, clock, check_wanted, own_epoch
            ),
            RestartPolicy(plan.config.restart, clock),
            report=reporter.report,
            on_end=end_listeners,
            clock=clock,
            is_session_alive=lambda: context._jsc is not None,  # noqa: SLF001 - None once it is stopped
            timeout_s=plan.config.task.shutdown_ms / 1000 + _MARGIN_S,
        )
        return cls(plan, events, supervisor)

    @property
    def id(self) -> str:
        """The id that survives restarts from the same checkpoint location."""
        return self._query.id

    @property
    def runId(self) -> str:  # noqa: N802 - Spark's name
        """The id of this run."""
        return self._query.runId

    @property
    def name(self) -> str:
        """The name given by ``queryName``, or None."""
        return self._query.name

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Whether the query runs, is about to be started again, or its last commit is under way."""
        return not self._supervisor.has_ended

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now.

        Beside Spark's entries ``lastCommittedBatch`` and ``isCommitting``, and ``restarts`` with the
        ``restartReason`` of the newest one. ``cleanUpFailing`` is None unless old backups are not
        deleted: then it has ``minutes``, since when, and the ``error``. ``lastVerifiedCommit`` is the
        newest one that ``job.verify.interval.ms`` has proven, with its ``time_ms``; ``verifyFailing`` is
        None unless the newest proof has found a fault.
        """
        return dict(self._query.status) | self._job.status() | self._restarts()

    @property
    def lastCommit(self) -> CommitSummary | None:  # noqa: N802 - named like lastProgress
        """The newest commit of this run; None before the first."""
        return self._job.last_commit

    @property
    def events(self) -> Sequence[QueryEvent]:
        """What happened since the start of the query, restarts included, oldest first."""
        return self._events.snapshot()

    @property
    def lastProgress(self) -> Any:  # noqa: ANN401, N802 - Spark's StreamingQueryProgress, a dict
        """The newest progress of this run, with the state operator's entry; None before a batch."""
        run = self._run
        progress = run.query.lastProgress
        return None if progress is None else self._with_state(progress, run.job)

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        """The newest progress reports of this run, with the state operator's entry; at most 100 have it."""
        run = self._run
        return [self._with_state(progress, run.job) for progress in run.query.recentProgress]

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has ended, over restarts, and its last commit is durable.

        Args:
            timeout: Seconds, as Spark has it; None sets no limit.

        Returns:
            Whether it has ended, if a time-out was given.

        Raises:
            StreamingQueryException: The query failed; the Python error is its cause, and a note
                says how often it was started again.
            KeyboardInterrupt: Ctrl-C has ended the query.
        """
        supervisor = self._supervisor
        if not supervisor.wait_ended(timeout):
            return False
        termination.await_interrupt()
        if supervisor.error is None:
            return None if timeout is None else True
        if supervisor.failed_start is not None:
            raise self._add_note(as_query_failure(supervisor.failed_start))
        try:
            return self._run.await_termination(timeout)
        except (StreamingQueryException, StateBackupError) as exc:
            self._add_note(exc)
            raise

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Block until all input that is there now was processed, over restarts; for tests."""
        while True:
            run = self._run
            try:
                run.query.processAllAvailable()
            except StreamingQueryException as exc:
                if self._supervisor.wait_for_next(run):
                    continue
                self._add_note(exc)
                run.raise_failure(exc)
            # Spark returns early where the run was stopped, as for a change of the state.
            if not run.query.isActive and self._supervisor.wait_for_next(run):
                continue
            run.raise_if_stopped()
            if self._supervisor.failed_start is not None:
                raise self._add_note(as_query_failure(self._supervisor.failed_start))
            return

    def stop(self) -> None:
        """Stop the query; commit first what was delivered, within ``task.shutdown.ms``.

        A query that waits to be started again ends without its error.
        """
        self._supervisor.stop()

    def write_state(
        self,
        variable: str,
        rows: Any,  # noqa: ANN401 - as `sk.write_state` takes them
        *,
        reason: str,
        delete: bool = False,
        ttl_ms: int | None = None,
        operator: str | None = None,
    ) -> int:
        """Put rows into a state variable between two batches, or delete its keys, as a new commit.

        Blocks: the batch that runs ends first, then the query stops, which commits, and starts again behind
        this handle with the changed state. That is no restart of ``job.restart.strategy``. If the rows do
        not fit, nothing is changed, and the query goes on.

        Args:
            variable: As of `write_state`, like all others.
            rows: A DataFrame is collected before the query stops.
            reason: Kept in the job log, with user and host.
            delete: Delete the keys.
            ttl_ms: Of a variable with ``ttlDurationMs``.
            operator: The stateful operator; None: the query's only one.

        Returns:
            The position of the commit with the change, or of the one before if nothing differs.

        Raises:
            ConfigError: As of `write_state`; or the query has ended, is stopping, starts again, is changed
                already, or ends by itself (``availableNow``, ``once``); or a sink of its own calls this.
            StateSchemaError: A value does not fit.
            StateBackupError: Not all that was delivered could be committed, or a backend failed.
        """
        if self._job.is_in_batch:
            raise ConfigError(
                "the sink of the query cannot change its state: the change would wait for this batch",
                hint="call write_state on another thread, and do not wait for it in the sink",
            )
        bounded = [name for name in _BOUNDED_TRIGGERS if name in self._plan.trigger]
        if bounded:
            raise ConfigError(
                f"the query ends by itself, and its state is not changed before: trigger={bounded[0]}",
                hint="once it has ended, use sk.write_state with its settings",
            )
        request = write_request(
            self._job.settings,
            variable,
            rows,
            reason=reason,
            delete=delete,
            ttl_ms=ttl_ms,
            operator=operator,
        )
        return self._supervisor.change_state(partial(write_between_runs, request))

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002 - Spark's signature
        """Print the stateful operator, then Spark's plan of its input."""
        print(self._job.explain())  # noqa: T201 - what Spark's own does
        self._query.explain(extended)

    def exception(self) -> StreamingQueryException | None:
        """Return what the query failed with, None if it did not or will be started again."""
        supervisor = self._supervisor
        if supervisor.error is None:
            return None
        if supervisor.failed_start is not None:
            return self._add_note(as_query_failure(supervisor.failed_start))
        failure = self._run.exception()
        return None if failure is None else self._add_note(failure)

    @property
    def _run(self) -> QueryRun:
        return self._supervisor.run

    @property
    def _query(self) -> StreamingQuery:
        return self._run.query

    @property
    def _job(self) -> StatefulJob:
        return self._run.job

    def _restarts(self) -> dict[str, Any]:
        return {"restarts": self._supervisor.restarts, "restartReason": self._supervisor.reason}

    def _add_note(self, error: _Failure) -> _Failure:
        """Say how often the query was started again before it failed with this."""
        if self._supervisor.restarts > 0:
            error.add_note(
                f"the query was started again before: restarts={self._supervisor.restarts}"
            )
        return error

    def _with_state(self, progress: Any, job: StatefulJob) -> Any:  # noqa: ANN401 - Spark's class
        add_operators(progress, job.operator_progress(progress["batchId"], self._restarts()))
        return progress


_queries: Final[WeakSet[StatefulStreamingQuery]] = WeakSet()
"""Those of this process: Spark's listeners are of the session, not of a query."""


def complete_progress(progress: Any) -> None:  # noqa: ANN401 - Spark's class
    """Give Spark's progress of a run the entries of our operators, if it is a run of one of our queries."""
    run_id = str(progress.runId)
    for query in list(_queries):
        run = query._run  # noqa: SLF001 - of this module
        if run.query.runId == run_id:
            query._with_state(progress, run.job)  # noqa: SLF001 - as above

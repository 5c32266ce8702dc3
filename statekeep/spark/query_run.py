"""One run of a stateful query: a Spark query, and the job behind it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # ships no types
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from statekeep.clock import Clock
from statekeep.config.model import Config
from statekeep.events import Listener
from statekeep.reporter import Reporter
from statekeep.spark.driver.batch_loop import Sink
from statekeep.spark.driver.job import StatefulJob
from statekeep.spark.driver.location import CheckpointLocation
from statekeep.spark.driver.owned_job import JobDefinition
from statekeep.spark.driver.progress import EventList
from statekeep.spark.driver.query_watch import WatchedQuery
from statekeep.spark.driver.ticks import Ticks
from statekeep.spark.failures import explain
from statekeep.spark.restart_policy import is_double_write
from statekeep.spark.stage import Stage

logger = logging.getLogger(__name__)


class QueryRun:
    """A Spark query from its start to its end, with its job."""

    def __init__(self, query: StreamingQuery, job: StatefulJob) -> None:
        """Take a query that was just started, and let its job watch it."""
        self.query = query
        self.job = job
        job.attach(WatchedQuery(query))

    def wait_ended(self) -> None:
        """Wait until the query has ended, however it ended, and its job is closed."""
        with suppress(StreamingQueryException):
            self.query.awaitTermination()
        self.job.wait_ended()

    def await_termination(self, timeout: int | None) -> bool | None:
        """Wait as `StatefulStreamingQuery.awaitTermination` does."""
        try:
            ended = self.query.awaitTermination(timeout)
        except StreamingQueryException as exc:
            self.job.wait_ended()
            self.raise_failure(exc)
        if timeout is None or ended:
            self.job.wait_ended()
            self.raise_if_stopped()
            if self.job.end_error is not None:
                raise self.job.end_error
        return ended

    def stop(self) -> None:
        """Stop the query; commit first what was delivered."""
        try:
            self.job.prepare_stop()
        finally:
            self.query.stop()  # also where a user breaks the wait off: its time has begun
        self.job.wait_ended()

    def stop_between_batches(self) -> None:
        """Let the batch that runs end, however long that takes; then `stop`."""
        try:
            self.job.pause()
        finally:
            self.stop()

    def exception(self) -> StreamingQueryException | None:
        """Return what the query failed with, None if it did not."""
        failure = self.query.exception()
        return self._why_stopped() if failure is None else explain(failure, self.job.failure)

    def raise_if_stopped(self) -> None:
        """Raise what an idle query was stopped for, in the form that failed queries have."""
        why = self._why_stopped()
        if why is not None:
            raise why

    def raise_failure(self, failure: StreamingQueryException) -> NoReturn:
        """Raise what a call of Spark's has raised of the query, in words of its cause.

        A worker's error is a text, all of which is in the failure: the cause is another one.
        """
        error = self.job.fenced or self.job.failure
        cause = None if isinstance(error, PythonException) else error
        raise explain(failure, error).with_traceback(None) from cause

    def _why_stopped(self) -> StreamingQueryException | None:
        why = self.job.fenced or self.job.commit_failure
        return None if why is None else as_query_failure(why)


def as_query_failure(error: Exception) -> StreamingQueryException:
    """Return an error that no Spark query raised, in the form that failed queries have."""
    exception = StreamingQueryException(str(error))
    exception.__cause__ = error
    return exception


@dataclass(frozen=True)
class QueryPlan:
    """All that a query is started from, as often as needed."""

    source: DataFrame
    stages: Sequence[Stage]
    config: Config
    location: CheckpointLocation
    sink: Sink
    ticks: Ticks | None
    """A source of ``source``, where an operator has timers."""
    query_name: str | None
    trigger: Mapping[str, Any]
    listeners: Sequence[Listener] = ()
    """Of the program and of the settings."""

    def start(
        self,
        events: EventList,
        reporter: Reporter,
        clock: Clock,
        check_wanted: Callable[[], None] = lambda: None,
        own_epoch: int | None = None,
    ) -> QueryRun:
        """Take over the job, recover its state, and start a Spark query.

        Args:
            events: Keeps what happens.
            reporter: Reports it, to ``events`` and to listeners.
            clock: For delays.
            check_wanted: Called before other drivers are fenced, and before the Spark query starts;
                raises if the query is no longer wanted.
            own_epoch: As in `StatefulJob.open`.

        Raises:
            TaskFencedError: Another driver has taken over since ``own_epoch``.
            ConfigError: A setting, a backend or the session is wrong.
            CheckpointLocationError: The checkpoint location is not the job's.
            RestoreFailedError: State is out of reach of every backend.
        """
        job = StatefulJob(
            JobDefinition(
                spark=self.source.sparkSession,
                frame=self.source,
                stages=self.stages,
                config=self.config,
                location=self.location,
                sink=self.sink,
                clock=clock,
                events=events,
                reporter=reporter,
                ticks=self.ticks,
            )
        )
        try:
            job.open(check_wanted, own_epoch)
            writer = self.source.writeStream.foreachBatch(job.run_batch)
            writer = writer.option("checkpointLocation", self.location.uri)
            if self.query_name is not None:
                writer = writer.queryName(self.query_name)
            if self.trigger:
                writer = writer.trigger(**self.trigger)
            check_wanted()
            with self.location.plain_renames():
                query = _start(writer, job)
            return QueryRun(query, job)
        except BaseException as exc:
            job.end_failed_start(exc)
            raise


def _start(writer: DataStreamWriter, job: StatefulJob, attempts: int = 2) -> StreamingQuery:
    """Start a Spark query.

    Drivers that begin a job at once meet in the checkpoint location, too. One that has taken over may
    find that an older one has written the query's metadata since it looked: then it reads those.

    Raises:
        TaskFencedError: It cannot be started, and another driver has taken over.
    """
    try:
        return writer.start()
    except (PySparkException, Py4JError) as exc:
        fenced = job.find_successor()
        if fenced is not None:
            raise fenced from exc
        if attempts == 1 or not is_double_write(exc):
            raise
        logger.warning(
            "another driver wrote to the checkpoint location, the query is started again"
        )
    return _start(writer, job, attempts - 1)


Starter = Callable[[Callable[[], None], int | None], QueryRun]
"""Starts a query anew, from where the job stands: `QueryPlan.start` with its last two arguments."""

"""The handle of a running stateful query, with the habits of Spark's `StreamingQuery`."""

from collections.abc import Sequence
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from statekeep.spark.driver.committer import CommitSummary
from statekeep.spark.driver.events import QueryEvent
from statekeep.spark.driver.job import StatefulJob


class StatefulStreamingQuery:
    """A query on statekeep's runtime. What is not special here is that of the Spark query."""

    def __init__(self, query: StreamingQuery, job: StatefulJob) -> None:
        self._query = query
        self._job = job
        job.attach(lambda: bool(query.isActive), lambda: query.exception() is None, query.stop)

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
        """Whether the query runs or its last commit is still under way."""
        return self._query.isActive or not self._job.has_ended

    @property
    def status(self) -> dict[str, Any]:
        """What the query does now, with ``lastCommittedBatch`` and ``isCommitting``."""
        return dict(self._query.status) | self._job.status()

    @property
    def lastCommit(self) -> CommitSummary | None:  # noqa: N802 - named like lastProgress
        """The newest commit of this run; None before the first."""
        return self._job.last_commit

    @property
    def events(self) -> Sequence[QueryEvent]:
        """What happened in this run: batches, commits, recoveries, oldest first."""
        return self._job.events.snapshot()

    @property
    def lastProgress(self) -> Any:  # noqa: ANN401, N802 - Spark's StreamingQueryProgress, a dict
        """The newest progress, with the state operator's entry; None before the first batch."""
        progress = self._query.lastProgress
        return None if progress is None else self._with_state(progress)

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        """The newest progress reports; only the last batch's has the state operator's entry."""
        return [self._with_state(progress) for progress in self._query.recentProgress]

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query has ended and its last commit is durable.

        Args:
            timeout: Seconds, as Spark has it; None waits for ever.

        Returns:
            Whether it has ended, if a time-out was given.

        Raises:
            StreamingQueryException: The query failed; the Python error is its cause.
        """
        try:
            ended = self._query.awaitTermination(timeout)
        except StreamingQueryException as exc:
            self._job.wait_ended()
            if self._job.failure is not None:
                raise exc from self._job.failure
            raise
        if timeout is None or ended:
            self._job.wait_ended()
            self._raise_if_fenced()
            self._job.raise_if_failed()
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Block until all input that is there now was processed; for tests."""
        try:
            self._query.processAllAvailable()
        except StreamingQueryException as exc:
            if self._job.failure is not None:
                raise exc from self._job.failure
            raise
        self._raise_if_fenced()

    def stop(self) -> None:
        """Stop the query; commit first what was delivered, within ``task.shutdown.ms``."""
        self._query.stop()
        self._job.wait_ended()

    def explain(self, extended: bool = False) -> None:  # noqa: FBT001, FBT002 - Spark's signature
        """Print the plan of the input."""
        self._query.explain(extended)

    def exception(self) -> StreamingQueryException | None:
        """Return what the query failed with, None if it did not."""
        return self._query.exception() or self._fencing()

    def _fencing(self) -> StreamingQueryException | None:
        """Return what stopped an idle query, in the form that failed queries have."""
        fenced = self._job.fenced
        if fenced is None:
            return None
        exception = StreamingQueryException(str(fenced))
        exception.__cause__ = fenced
        return exception

    def _raise_if_fenced(self) -> None:
        fencing = self._fencing()
        if fencing is not None:
            raise fencing

    def _with_state(self, progress: Any) -> Any:  # noqa: ANN401 - Spark's class
        entry = self._job.operator_progress(progress["batchId"])
        if entry is not None:
            progress["stateOperators"] = [*progress["stateOperators"], entry]
        return progress

"""A Spark query as the job behind it sees it."""

# The JVM's objects have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery


class WatchedQuery:
    """Asked by the job again and again; every call blocks on the JVM for a moment, from any thread.

    Spark calls a query inactive as soon as it was told to stop. Its thread may then only be about to
    call ``foreachBatch``, and whoever told it waits for that thread.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def is_running(self) -> bool:
        """Whether the query's thread lives: a batch may still come."""
        handle: Any = self._query._jsq  # noqa: SLF001 - no public way to the thread
        stream = handle.streamingQuery()
        return bool(stream.queryExecutionThread().isAlive())

    def is_stopping(self) -> bool:
        """Whether the query was told to stop, or has ended."""
        return not self._query.isActive

    def exception(self) -> StreamingQueryException | None:
        """Return what the query failed with, None if it did not, or runs."""
        return self._query.exception()

    def stop(self) -> None:
        """End the query, and wait until its thread has ended."""
        self._query.stop()

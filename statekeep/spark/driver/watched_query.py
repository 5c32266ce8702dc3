"""A Spark query as the job behind it sees it."""

# The JVM's objects have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

import traceback
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


class BatchStoppedError(Exception):
    """Raised to Spark in place of an error by which a stop has broken a batch off.

    Spark looks for an interruption in the text of such an error by a regular expression, which takes
    some stack for each character behind the words that are repeated here: the stack of Java that
    those errors quote makes it overflow, and Spark prints 1,024 frames of that.
    """

    def __init__(self) -> None:
        super().__init__(
            "the query was stopped: py4j.protocol.Py4JJavaError: An error occurred while calling"
            f" foreachBatch: {_INTERRUPTIONS[0]}"
        )


def is_interruption(error: BaseException) -> bool:
    """Tell whether Spark has interrupted a call into the JVM that this error comes from."""
    text = "".join(traceback.format_exception(error))
    return any(name in text for name in _INTERRUPTIONS)


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

    def watermark_ms(self) -> int:
        """Return the watermark that the next batch will have; asked between two batches."""
        handle: Any = self._query._jsq  # noqa: SLF001 - reports have that of the last batch only
        return int(handle.streamingQuery().watermarkTracker().currentWatermark())

    def stop(self) -> None:
        """End the query, and wait until its thread has ended."""
        self._query.stop()

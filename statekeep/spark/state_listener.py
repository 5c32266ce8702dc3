"""Spark's listeners of queries, with the figures of our operators in the progress that they get."""

from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from typing_extensions import override

from statekeep.spark.query import complete_progress


def state_listener(listener: StreamingQueryListener) -> StreamingQueryListener:
    """Wrap a listener of Spark's, so that it gets ``stateOperators`` as ``query.lastProgress`` has them.

    Spark makes the progress of a query in the JVM, only from its own operators. Add what this returns::

        spark.streams.addListener(sk.state_listener(MyListener()))

    Queries without one of Statekeep's operators get what Spark reports.

    Args:
        listener: Gets the events of all queries, as from Spark.
    """
    return _StateListener(listener)


class _StateListener(StreamingQueryListener):
    """Passes each event on, on the thread that Spark calls."""

    def __init__(self, inner: StreamingQueryListener) -> None:
        self._inner = inner

    @override
    def onQueryStarted(self, event: Any) -> None:
        self._inner.onQueryStarted(event)

    @override
    def onQueryProgress(self, event: Any) -> None:
        complete_progress(event.progress)
        self._inner.onQueryProgress(event)

    @override
    def onQueryIdle(self, event: Any) -> None:
        self._inner.onQueryIdle(event)

    @override
    def onQueryTerminated(self, event: Any) -> None:
        self._inner.onQueryTerminated(event)

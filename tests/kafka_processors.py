"""The processor of the tests on Spark, in a module that executors can import."""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

OUTPUT: Final = "key string, n long"


class Count(StatefulProcessor):
    """Counts the records of each key."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        (n,) = self._state.get() or (0,)
        n += sum(1 for _ in rows)
        self._state.update((n,))
        yield Row(key=key[0], n=n)

    @override
    def close(self) -> None:
        """Nothing is open."""

"""Processors of the tests, in a module that executors can import."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues

OUTPUT = "key string, n long, s long"


class Count(StatefulProcessor):
    """Counts and sums ``v`` of each key; one row a key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long, s long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        n, s = self._state.get() or (0, 0)
        for row in rows:
            n += 1
            s += row.v
        self._state.update((n, s))
        yield Row(key=key[0], n=n, s=s)

    def close(self) -> None:
        """Nothing is open."""


class CountFrames(Count):
    """The same on pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        n, s = self._state.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            s += int(frame["v"].sum())
        self._state.update((n, s))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "s": [s]})


class Unsteady(Count):
    """Its output differs from run to run: the pid of the worker is in it."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        import time

        count = sum(1 for _ in rows)
        self._state.update((count, time.perf_counter_ns()))
        yield Row(key=key[0], n=count, s=time.perf_counter_ns())

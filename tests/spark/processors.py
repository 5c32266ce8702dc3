"""Processors of the tests, in a module that executors can import."""

import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues
from typing_extensions import override

OUTPUT = "key string, n long, s long"


class Count(StatefulProcessor):
    """Counts and sums ``v`` of each key; one row a key and batch."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("count", "n long, s long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        n, s = self._state.get() or (0, 0)
        for row in rows:
            n += 1
            s += row.v
        self._state.update((n, s))
        yield Row(key=key[0], n=n, s=s)

    @override
    def close(self) -> None:
        """Nothing is open."""


class Overflowing(Count):
    """Puts a text where the state holds a number."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        self._state.update((sum(1 for _ in rows), "many"))
        yield Row(key=key[0], n=0, s=0)


class CountFrames(Count):
    """The same on pandas frames."""

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Any:
        n, s = self._state.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            s += int(frame["v"].sum())
        self._state.update((n, s))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "s": [s]})


class Unsteady(Count):
    """Its output differs from run to run: the pid of the worker is in it."""

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        count = sum(1 for _ in rows)
        self._state.update((count, time.perf_counter_ns()))
        yield Row(key=key[0], n=count, s=time.perf_counter_ns())


class Totals(StatefulProcessor):
    """What the README's programs run: the sum of ``v`` of each ``id``."""

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("totals", "total long")

    @override
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Any:
        (total,) = self._total.get() or (0,)
        total += sum(row.v for row in rows)
        self._total.update((total,))
        yield Row(id=key[0], total=total)

    @override
    def close(self) -> None:
        """Nothing is open."""
